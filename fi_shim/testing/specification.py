"""What is simulated: `FI_SHIM_SIMULATE`, read into one frozen dataclass."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

UNITS: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
FABRIC: Final = ("off", "on", "denied")
SMALLEST_GRANULARITY: Final = 2 << 20  # bytes; of allocations and of multicast objects, on every device so far
MULTICAST: Final = 512 << 20  # bytes; the recommended multicast granularity of an H200


@dataclass(frozen=True)
class Specification:
    """The simulated devices.

    Attributes:
        capacities: bytes of each device.
        multicast: recommended multicast granularity in bytes; 0: the devices have no multicast. Objects of up to 2 MiB are
            recommended 2 MiB, unless `multicast_for_any_size`.
        granularity: allocation granularity in bytes.
        fabric: "off": no FABRIC handles. "on": they work. "denied": the driver says that they do, and refuses to make any, as on
            a host without an IMEX channel.
    """

    capacities: tuple[int, ...]
    multicast: int = MULTICAST
    granularity: int = SMALLEST_GRANULARITY
    fabric: str = "off"
    multicast_for_any_size: bool = False


def parse(text: str) -> Specification:
    """Read `4x8GiB[;2=600MiB][;multicast=512MiB|off][;granularity=2MiB][;fabric=off|on|denied]`.

    Raises:
        ValueError: something is not understood; the message names it.
    """
    first, *options = [part.strip() for part in text.split(";")]
    match = re.fullmatch(r"([1-9][0-9]*)x(.+)", first)
    if match is None:
        raise ValueError(f"FI_SHIM_SIMULATE: {first!r} is not a number of devices and their memory, as 4x8GiB")
    specification = Specification((_size(match[2]),) * int(match[1]))
    for option in options:
        name, equals, value = (part.strip() for part in option.partition("="))
        if not equals:
            raise ValueError(f"FI_SHIM_SIMULATE: {option!r} is not name=value")
        specification = _with(specification, name, value)
    return specification


def _with(specification: Specification, name: str, value: str) -> Specification:
    if name.isdecimal():
        device = int(name)
        if device >= len(specification.capacities):
            raise ValueError(f"FI_SHIM_SIMULATE: there is no device {name} among {len(specification.capacities)}")
        capacities = list(specification.capacities)
        capacities[device] = _size(value)
        return replace(specification, capacities=tuple(capacities))
    if name == "multicast":
        return replace(specification, multicast=0 if value == "off" else _granularity(name, value))
    if name == "granularity":
        return replace(specification, granularity=_granularity(name, value))
    if name == "fabric" and value in FABRIC:
        return replace(specification, fabric=value)
    raise ValueError(f"FI_SHIM_SIMULATE: {name}={value} is not understood")


def _size(text: str) -> int:
    match = re.fullmatch(r"([0-9]+) *(" + "|".join(UNITS) + ")", text)
    if match is None:
        raise ValueError(f"FI_SHIM_SIMULATE: {text!r} is not a size, as 600MiB; the units are {', '.join(UNITS)}")
    return int(match[1]) * UNITS[match[2]]


def _granularity(name: str, text: str) -> int:
    size = _size(text)
    if size < SMALLEST_GRANULARITY or size & (size - 1):
        raise ValueError(f"FI_SHIM_SIMULATE: {name}={text} is not a power of two of at least 2MiB")
    return size
