"""One process's device addresses: reservations, mappings and linear memory, with the driver's rules about them.

Addresses start above everything a host process can have, and none is given out twice: a stale pointer is always an error.
The codes are those that an H200's driver 580 answered to the same misuse; in one point we are stricter: it maps over a reservation's end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from fi_shim.testing.bindings import Refusal

FIRST_ADDRESS: Final = 1 << 49  # above the host's 47 bits
PAGE: Final = 2 << 20  # bytes; reservations are multiples of it
GAP: Final = 2 << 20  # bytes between two ranges, so that running over the end is noticed


@dataclass
class Mapping:
    """A range that cuMemMap made; `devices` may use it."""

    address: int
    size: int
    handle: int
    number: int
    devices: set[int] = field(default_factory=set)


@dataclass
class Range:
    """Linear memory; `opened` if it is another process's, opened from an IPC handle."""

    address: int
    size: int
    device: int
    opened: bool = False


class AddressSpace:
    """What the process may use where."""

    def __init__(self) -> None:
        self.reservations: dict[int, int] = {}
        self.mappings: dict[int, Mapping] = {}
        self.ranges: dict[int, Range] = {}
        self._next = FIRST_ADDRESS

    def reserve(self, size: int, alignment: int, granularity: int) -> int:
        """Reserve `size` bytes at a multiple of `alignment` (0: the driver's choice), and where an allocation can be mapped."""
        if size <= 0 or size % PAGE or alignment & (alignment - 1):
            raise Refusal("CUDA_ERROR_INVALID_VALUE")
        address = self.take(size, max(alignment, granularity))
        self.reservations[address] = size
        return address

    def take(self, size: int, alignment: int) -> int:
        """Use up addresses without reserving them."""
        address = -(-self._next // alignment) * alignment
        self._next = address + size + GAP
        return address

    def unreserve(self, address: int, size: int) -> None:
        """Give a reservation back: all of it, and nothing mapped in it."""
        if self.reservations.get(address) != size or self.mapped_in(address, size):
            raise Refusal("CUDA_ERROR_INVALID_VALUE")
        del self.reservations[address]

    def map(self, mapping: Mapping) -> None:
        """Map an allocation inside one reservation, over nothing else."""
        if not self._reserved(mapping.address, mapping.size) or self.mapped_in(mapping.address, mapping.size):
            raise Refusal("CUDA_ERROR_INVALID_VALUE")
        self.mappings[mapping.address] = mapping

    def unmap(self, address: int, size: int) -> list[Mapping]:
        """Take away the mappings in a reserved range, each of them whole; there may be none."""
        found = self.mapped_in(address, size)
        whole = all(address <= one.address and one.address + one.size <= address + size for one in found)
        if not whole or not self._reserved(address, size):
            raise Refusal("CUDA_ERROR_INVALID_VALUE")
        for mapping in found:
            del self.mappings[mapping.address]
        return found

    def allow(self, address: int, size: int, devices: set[int], *, allowed: bool) -> None:
        """Let `devices` use (or no longer use) the mappings that fill the range."""
        for mapping in self._exactly(address, size):
            mapping.devices = mapping.devices | devices if allowed else mapping.devices - devices

    def mapped_in(self, address: int, size: int) -> list[Mapping]:
        """Mappings that overlap the range, by address."""
        overlapping = [one for one in tuple(self.mappings.values()) if one.address < address + size and address < one.address + one.size]
        return sorted(overlapping, key=lambda one: one.address)

    def check(self, address: int, size: int, device: int) -> None:
        """Refuse unless `device` may read and write the whole range; no bytes are always allowed."""
        for linear in tuple(self.ranges.values()):
            if linear.address <= address and address + size <= linear.address + linear.size:
                return
        end, position = address + size, address
        for mapping in self.mapped_in(address, size):
            if mapping.address > position or device not in mapping.devices:
                break
            position = mapping.address + mapping.size
        if position < end:
            raise Refusal("CUDA_ERROR_INVALID_VALUE")

    def _reserved(self, address: int, size: int) -> bool:
        return size > 0 and any(base <= address and address + size <= base + length for base, length in tuple(self.reservations.items()))

    def _exactly(self, address: int, size: int) -> list[Mapping]:
        found, position = self.mapped_in(address, size), address
        for mapping in found:
            if mapping.address != position:
                raise Refusal("CUDA_ERROR_INVALID_VALUE")
            position += mapping.size
        if not found or position != address + size:
            raise Refusal("CUDA_ERROR_INVALID_VALUE")
        return found
