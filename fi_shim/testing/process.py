"""The simulation as one process sees it: which devices, which addresses and handles are its own, what it called so far."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fi_shim.testing.addresses import AddressSpace
from fi_shim.testing.bindings import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fi_shim.testing.faults import Fault
    from fi_shim.testing.ledger import Allocation
    from fi_shim.testing.machine import Machine
    from fi_shim.testing.specification import Specification


@dataclass
class Handle:
    """One handle of this process: which allocation, how often it is held, and whether it came from another handle's export."""

    number: int
    references: int = 1
    imported: bool = False


CONTEXT: Final = 0x1000  # the context of device d has this address plus d


class SimulatedProcess:
    """What the doubles of one process share.

    Args:
        specification: the devices.
        machine: their memory.
        faults: calls that are to fail here.
        waits_for_peers: whether a multicast object must have all its devices before it can be used. Without (a recording is alone
            and stands for all ranks) it may be used at once.
    """

    def __init__(
        self, specification: Specification, machine: Machine, faults: Sequence[Fault] = (), *, waits_for_peers: bool = True
    ) -> None:
        self.specification = specification
        self.machine = machine
        self.faults = tuple(faults)
        self.waits_for_peers = waits_for_peers
        self.counts: Counter[str] = Counter()
        self.addresses = AddressSpace()
        self.handles: dict[int, Handle] = {}
        self.initialised = False  # some device has a context
        self._in_use = False  # something was called; cuInit has run
        self.spoilt_by_fork = False
        self._threads = threading.local()
        self._next_handle = os.getpid() << 24  # another process's handles mean nothing here

    @property
    def device(self) -> int:
        """The calling thread's current device."""
        return getattr(self._threads, "device", 0)

    @property
    def has_context(self) -> bool:
        """Whether the calling thread has a current context."""
        return getattr(self._threads, "context", False)

    def use_device(self, device: int) -> None:
        """Make `device` and its primary context current in the calling thread."""
        if not 0 <= device < len(self.specification.capacities):
            raise Refusal("CUDA_ERROR_INVALID_DEVICE")
        self._threads.device = device
        self._threads.context = True
        self.initialised = True

    def drop_context(self) -> None:
        """Leave the calling thread without a context."""
        self._threads.context = False

    def begin(self, call: str) -> None:
        """Count a call, and let it fail if it is to fail.

        Raises:
            Refusal: by a fault, or since CUDA was in use before this process was forked.
        """
        self.counts[call] += 1
        if self.spoilt_by_fork:
            raise Refusal("CUDA_ERROR_NOT_INITIALIZED")
        self._in_use = True
        for fault in self.faults:
            if fault.call == call and self.counts[call] == fault.n and fault.rank in (None, self.rank()):
                fault.strike()

    def rank(self) -> int:
        """RANK, else the rank in torch.distributed, else the current device."""
        given = os.environ.get("RANK", "")
        if given.isdecimal():
            return int(given)
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
        return self.device

    def new_handle(self, number: int, *, imported: bool = False) -> int:
        """A handle of this process for an allocation."""
        self._next_handle += 1
        self.handles[self._next_handle] = Handle(number, imported=imported)
        return self._next_handle

    def handle(self, value: Any) -> Handle:
        """What one of this process's handles stands for. Real drivers may crash where this refuses."""
        found = self.handles.get(int(value))
        if found is None:
            raise Refusal("CUDA_ERROR_INVALID_VALUE")
        return found

    def held(self, value: Any) -> Allocation:
        """The allocation behind one of this process's handles, inside a transaction."""
        return self.machine.ledger.allocations[self.handle(value).number]

    def after_fork(self) -> None:
        """In the child: it owns nothing, and as with real CUDA it cannot use what its parent had initialised."""
        self.spoilt_by_fork = self.spoilt_by_fork or self.initialised or self._in_use
        self.addresses = AddressSpace()
        self.handles = {}
        self.counts = Counter()
        self._threads = threading.local()
        self._next_handle = os.getpid() << 24
