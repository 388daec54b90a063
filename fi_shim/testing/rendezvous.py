"""Torch's symmetric-memory rendezvous between real processes, over the store of their group, with that store's time limit."""

from __future__ import annotations

import contextlib
import importlib
import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from fi_shim.testing.symmetric_memory import Rendezvous, map_memory, unmap_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fi_shim.testing.driver import Driver
    from fi_shim.testing.symmetric_memory import DeviceTensor


class _PeerMappings(Rendezvous):
    """Keeps the peers' memory mapped as long as somebody keeps the object."""

    def __init__(self, driver: Driver, tensor: DeviceTensor, handles: list[int], addresses: list[int]) -> None:
        super().__init__(tensor, addresses)
        self._driver = driver
        self._tensor = tensor
        self._handles = handles

    def __del__(self) -> None:
        for handle, address in zip(self._handles, self.buffer_ptrs, strict=True):
            if address != self._tensor.data_ptr():
                _close(self._driver, handle, address, self._tensor.allocated)


def among_processes(driver: Driver) -> Callable[[DeviceTensor, str], Rendezvous]:
    """A rendezvous in which each rank of the named group maps the memory of all. A rank that does not come ends it by the store's time limit."""
    turns: dict[str, Iterator[int]] = defaultdict(itertools.count)

    def meet(tensor: DeviceTensor, group_name: str) -> Rendezvous:
        c10d = importlib.import_module("torch.distributed.distributed_c10d")
        group = c10d._resolve_process_group(group_name)  # noqa: SLF001  (torch has no public way from a name to a group)
        store, own = _store_of(c10d, group), driver.process.handle(tensor.handle).number
        turn = f"simulated symmetric memory/{group_name}/{next(turns[group_name])}"
        numbers = [int(text) for text in _exchanged(store, f"{turn}/numbers", group, str(own))]
        handles: list[int] = []
        addresses: list[int] = []
        with contextlib.ExitStack() as undo:
            for number in numbers:
                handles.append(int(tensor.handle) if number == own else _opened(driver, number))
                if number == own:
                    addresses.append(tensor.data_ptr())
                    continue
                undo.callback(driver.cuMemRelease, handles[-1])
                addresses.append(map_memory(driver, handles[-1], tensor.allocated))
                undo.callback(unmap_memory, driver, addresses[-1], tensor.allocated)
            _exchanged(store, f"{turn}/mapped", group, "yes")
            undo.pop_all()
        return _PeerMappings(driver, tensor, handles, addresses)

    return meet


def _exchanged(store: Any, name: str, group: Any, text: str) -> list[str]:
    """What each rank says, by rank."""
    store.set(f"{name}/{group.rank()}", text)
    return [bytes(store.get(f"{name}/{rank}")).decode() for rank in range(group.size())]


def _store_of(c10d: Any, group: Any) -> Any:
    return group.get_group_store() if hasattr(group, "get_group_store") else c10d._get_process_group_store(group)  # noqa: SLF001  (older torch)


def _opened(driver: Driver, number: int) -> int:
    machine = driver.process.machine
    with machine.transaction():
        machine.post("hold", machine.process, number, 1, 0)
    return driver.process.new_handle(number, imported=True)


def _close(driver: Driver, handle: int, address: int, size: int) -> None:
    unmap_memory(driver, address, size)
    driver.cuMemRelease(handle)
