"""Who holds which device memory: the state of the simulated machine, and the records that change it.

Nothing here knows files or locks. Records are plain lists, so that processes can exchange them as lines of JSON; applying the
same records in the same order gives every process the same ledger.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    Record = Sequence[Any]

BLOCK: Final = 2 << 20  # bytes; small allocations of one process share blocks of this size, as the driver's suballocator does


@dataclass
class Holder:
    """How often one process refers to an allocation."""

    handles: int = 0
    mappings: int = 0


@dataclass
class Allocation:
    """Physical memory on one device (`device` >= 0), or a multicast object (`device` is -1, it takes no memory)."""

    number: int
    device: int
    size: int
    handle_types: int
    rdma: bool = False
    team_size: int = 0
    exported: bool = False
    holders: dict[int, Holder] = field(default_factory=dict)
    team: set[int] = field(default_factory=set)
    bound: dict[int, tuple[int, int]] = field(default_factory=dict)  # device -> (process, number of the memory)


@dataclass
class Linear:
    """What one cuMemAlloc or cudaMalloc gave."""

    process: int
    address: int
    device: int
    size: int


@dataclass
class Process:
    """A process that has used the simulated machine."""

    number: int
    pid: int
    reservations: dict[int, int] = field(default_factory=dict)  # address -> bytes
    cached: dict[int, int] = field(default_factory=dict)  # device -> bytes that torch's allocator holds unused


class Ledger:
    """The whole machine's memory.

    Args:
        capacities: bytes of each device.
    """

    def __init__(self, capacities: Sequence[int]) -> None:
        self.capacities = tuple(capacities)
        self.allocations: dict[int, Allocation] = {}
        self.linear: dict[tuple[int, int], Linear] = {}
        self.processes: dict[int, Process] = {}
        self.last_number = 0
        self.last_process = 0

    def apply(self, record: Record) -> None:
        """Change the state; `record` is [operation, arguments ...]."""
        getattr(self, f"_on_{record[0]}")(*record[1:])

    def used(self, device: int) -> int:
        """Bytes of `device` that are taken, by anybody."""
        total = sum(allocation.size for allocation in self.allocations.values() if allocation.device == device)
        total += sum(process.cached.get(device, 0) for process in self.processes.values())
        small: dict[int, int] = {}
        for linear in self.linear.values():
            if linear.device != device:
                continue
            if linear.size >= BLOCK:
                total += -(-linear.size // BLOCK) * BLOCK
            else:
                small[linear.process] = small.get(linear.process, 0) + linear.size
        return total + sum(-(-size // BLOCK) * BLOCK for size in small.values())

    def free(self, device: int) -> int:
        """Bytes of `device` that are left."""
        return self.capacities[device] - self.used(device)

    def unheld(self) -> list[Allocation]:
        """Exported allocations that only a descriptor can keep alive."""
        bound = self._bound()
        return [one for one in self.allocations.values() if one.exported and not one.holders and one.number not in bound]

    def _bound(self) -> set[int]:
        return {memory for allocation in self.allocations.values() for _, memory in allocation.bound.values()}

    def _drop_if_unused(self, allocation: Allocation) -> None:
        if not allocation.holders and not allocation.exported and allocation.number not in self._bound():
            self._on_gone(allocation.number)

    def _on_machine(self, *capacities: int) -> None:
        if capacities != self.capacities:
            raise ValueError(
                f"FI_SHIM_SIMULATE says {list(self.capacities)} bytes on its devices, but the processes that share"
                f" FI_SHIM_SIMULATE_STATE simulate {list(capacities)}: unset FI_SHIM_SIMULATE_STATE for a machine of its own"
            )

    def _on_enter(self, process: int, pid: int) -> None:
        self.processes[process] = Process(process, pid)
        self.last_process = max(self.last_process, process)

    def _on_died(self, process: int) -> None:
        self.processes.pop(process, None)
        self.linear = {key: linear for key, linear in self.linear.items() if linear.process != process}
        for allocation in list(self.allocations.values()):
            allocation.bound = {device: bound for device, bound in allocation.bound.items() if bound[0] != process}
            allocation.holders.pop(process, None)
        for allocation in list(self.allocations.values()):
            self._drop_if_unused(allocation)

    def _on_create(self, process: int, number: int, device: int, size: int, handle_types: int, rdma: int, team_size: int) -> None:
        self.allocations[number] = Allocation(number, device, size, handle_types, bool(rdma), team_size, holders={process: Holder(1)})
        self.last_number = max(self.last_number, number)

    def _on_hold(self, process: int, number: int, handles: int, mappings: int) -> None:
        allocation = self.allocations[number]
        holder = allocation.holders.setdefault(process, Holder())
        holder.handles += handles
        holder.mappings += mappings
        if not holder.handles and not holder.mappings:
            del allocation.holders[process]
            self._drop_if_unused(allocation)

    def _on_export(self, number: int) -> None:
        self.allocations[number].exported = True

    def _on_gone(self, number: int) -> None:
        gone = self.allocations.pop(number, None)
        for _, memory in gone.bound.values() if gone else ():
            if memory in self.allocations:
                self._drop_if_unused(self.allocations[memory])

    def _on_join(self, number: int, device: int) -> None:
        self.allocations[number].team.add(device)

    def _on_bind(self, process: int, number: int, device: int, memory: int) -> None:
        self.allocations[number].bound[device] = (process, memory)

    def _on_unbind(self, number: int, device: int) -> None:
        _, memory = self.allocations[number].bound.pop(device)
        if memory in self.allocations:
            self._drop_if_unused(self.allocations[memory])

    def _on_linear(self, process: int, address: int, device: int, size: int) -> None:
        self.linear[process, address] = Linear(process, address, device, size)

    def _on_unlinear(self, process: int, address: int) -> None:
        del self.linear[process, address]

    def _on_reserve(self, process: int, address: int, size: int) -> None:
        self.processes[process].reservations[address] = size

    def _on_unreserve(self, process: int, address: int) -> None:
        del self.processes[process].reservations[address]

    def _on_cached(self, process: int, device: int, size: int) -> None:
        self.processes[process].cached[device] = size
