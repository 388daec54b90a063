"""What a dry run sees: allocations in order, the device they are on, what of multicast is touched."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Final

RANK: Final = 0
CURRENT_DEVICE: Final = 5  # not the rank's number: releases up to 0.6.6 confuse them
SMALL_BYTES: Final = 4096  # tables of pointers and flags: at most 400 bytes each; planned buffers are 2 MiB at least
_BASE: Final = 1 << 40


@dataclass
class Journal:
    """One creation. Sizes in bytes."""

    allocation_granularity: int = 2 << 20
    multicast_granularity: int = 512 << 20
    signal_pad_size: int = 2048
    world_size: int = 1
    allocations: list[tuple[str, int, int]] = field(default_factory=list)
    """(allocator, requested, allocated); requested is 0 where nobody was seen to ask."""
    devices: set[int] = field(default_factory=set)
    multicast: str = "none"
    requested: int = 0
    """Given to the SymmDeviceMemory that is being made."""
    _addresses: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def allocate(self, allocator: str, size: int, *, requested: int | None = None, device: int | None = None) -> int:
        """Note an allocation and give it an address. Small ones are not listed."""
        if size > SMALL_BYTES or allocator in {"cuMemCreate", "symm_mem"}:
            self.allocations.append((allocator, int(size if requested is None else requested), int(size)))
            if device is not None:
                self.devices.add(int(device))
        return self.address()

    def address(self) -> int:
        """An address that was not given before."""
        return _BASE + (next(self._addresses) << 34)

    def restart(self, *, world_size: int, allocation_granularity: int, multicast_granularity: int, signal_pad_size: int) -> None:
        """Begin another creation."""
        self.allocations, self.devices, self.multicast, self.requested = [], set(), "none", 0
        self.world_size = world_size
        self.allocation_granularity, self.multicast_granularity = allocation_granularity, multicast_granularity
        self.signal_pad_size = signal_pad_size
