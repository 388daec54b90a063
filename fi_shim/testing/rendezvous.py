"""Torch's symmetric-memory rendezvous between real processes, over whatever collectives their group has."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fi_shim.testing.symmetric_memory import Rendezvous, map_memory, unmap_memory

if TYPE_CHECKING:
    from collections.abc import Callable

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
                unmap_memory(self._driver, address, self._tensor.allocated)
                self._driver.cuMemRelease(handle)


def among_processes(driver: Driver) -> Callable[[DeviceTensor, str], Rendezvous]:
    """A rendezvous in which each rank of the named group maps the memory of all."""

    def meet(tensor: DeviceTensor, group_name: str) -> Rendezvous:
        c10d = importlib.import_module("torch.distributed.distributed_c10d")
        group = c10d._resolve_process_group(group_name)  # noqa: SLF001  (torch has no public way from a name to a group)
        numbers: list[int] = [0] * group.size()
        own = driver.process.handle(tensor.handle).number
        c10d.all_gather_object(numbers, own, group=group)
        handles, addresses = [], []
        for number in numbers:
            handle = int(tensor.handle) if number == own else _opened(driver, number)
            handles.append(handle)
            addresses.append(tensor.data_ptr() if number == own else map_memory(driver, handle, tensor.allocated))
        c10d.barrier(group=group)
        return _PeerMappings(driver, tensor, handles, addresses)

    return meet


def _opened(driver: Driver, number: int) -> int:
    machine = driver.process.machine
    with machine.transaction():
        machine.post("hold", machine.process, number, 1, 0)
    return driver.process.new_handle(number, imported=True)
