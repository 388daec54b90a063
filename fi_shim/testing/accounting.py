"""What is still allocated: the answer of `fi_shim.testing.outstanding()`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fi_shim.testing.ledger import Allocation, Process
    from fi_shim.testing.shared_machine import SharedMachine


@dataclass(frozen=True)
class Held:
    """An allocation that a process holds; `device` is -1 for a multicast object.

    `handle_types` and `rdma` are what it was created with (CUmemAllocationHandleType's number, gpuDirectRDMACapable).
    """

    number: int
    device: int
    size: int
    handle_types: int
    rdma: bool
    handles: int
    mappings: int


@dataclass(frozen=True)
class ProcessMemory:
    """What one process holds; sizes in bytes.

    Attributes:
        allocations: by handle or mapping, its own and imported ones.
        reservations: address -> size of reserved address ranges.
        descriptors: open file descriptor -> number of the exported allocation that it keeps alive.
        linear: (device, size) of each cuMemAlloc and cudaMalloc.
        cached: device -> what torch's allocator holds unused.
    """

    pid: int
    allocations: tuple[Held, ...]
    reservations: dict[int, int]
    descriptors: dict[int, int]
    linear: tuple[tuple[int, int], ...]
    cached: dict[int, int]

    @property
    def handles(self) -> int:
        """Number of handles."""
        return sum(held.handles for held in self.allocations)

    @property
    def mappings(self) -> int:
        """Number of mapped ranges."""
        return sum(held.mappings for held in self.allocations)

    def __bool__(self) -> bool:
        return bool(self.allocations or self.reservations or self.descriptors or self.linear or any(self.cached.values()))


@dataclass(frozen=True)
class Outstanding:
    """What is allocated on the simulated machine; false if the listed processes hold nothing.

    Attributes:
        processes: this one, or all that live.
        bytes: device -> bytes that are taken, by whomever (devices with none are left out).
    """

    processes: tuple[ProcessMemory, ...]
    bytes: dict[int, int]

    def __bool__(self) -> bool:
        return any(self.processes)


def take_stock(machine: SharedMachine, *, all_processes: bool) -> Outstanding:
    """Look at the machine as it is now."""
    with machine.transaction() as ledger:
        machine.reclaim()
        used = {device: ledger.used(device) for device in range(len(ledger.capacities))}
        numbers = sorted(ledger.processes) if all_processes else [machine.process]
        processes = tuple(_of_process(machine, ledger.processes[number]) for number in numbers)
    return Outstanding(processes, {device: size for device, size in used.items() if size})


def _of_process(machine: SharedMachine, process: Process) -> ProcessMemory:
    ledger = machine.ledger
    held = tuple(_held(one, process.number) for one in ledger.allocations.values() if process.number in one.holders)
    linear = tuple((one.device, one.size) for one in ledger.linear.values() if one.process == process.number)
    return ProcessMemory(process.pid, held, dict(process.reservations), machine.descriptors(process.pid), linear, dict(process.cached))


def _held(one: Allocation, process: int) -> Held:
    holder = one.holders[process]
    return Held(one.number, one.device, one.size, one.handle_types, one.rdma, holder.handles, holder.mappings)
