"""Address ranges: reserved, mapped to physical memory, made accessible."""
# ruff: noqa: N802  (names are CUDA's)

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from fi_shim.testing import bindings
from fi_shim.testing.addresses import Mapping
from fi_shim.testing.bindings import Refusal
from fi_shim.testing.driver.call import DriverPart, answers
from fi_shim.testing.specification import SMALLEST_GRANULARITY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fi_shim.testing.ledger import Allocation

TEAM_POLL: Final = 0.001  # seconds between two looks at a multicast object that still lacks devices


class VirtualMemory(DriverPart):
    """cuMemAddressReserve, cuMemMap, cuMemSetAccess and their opposites."""

    @answers(1)
    def cuMemAddressReserve(self, size: int, alignment: int, addr: object, flags: int) -> Any:  # noqa: ARG002  (an address is a hint)
        if flags:
            raise Refusal("CUDA_ERROR_INVALID_VALUE")
        machine = self.process.machine
        with machine.transaction():
            address = self.process.addresses.reserve(size, alignment, self.process.specification.granularity)
            machine.post("reserve", machine.process, address, size)
        return bindings.driver().CUdeviceptr(address)

    @answers(0)
    def cuMemAddressFree(self, ptr: Any, size: int) -> None:
        machine = self.process.machine
        with machine.transaction():
            self.process.addresses.unreserve(int(ptr), size)
            machine.post("unreserve", machine.process, int(ptr))

    @answers(0)
    def cuMemMap(self, ptr: Any, size: int, offset: int, handle: Any, flags: int) -> None:
        machine, address = self.process.machine, int(ptr)
        self.await_team(handle)
        with machine.transaction():
            allocation = self.process.held(handle)
            granularity = SMALLEST_GRANULARITY if allocation.team_size else self.process.specification.granularity
            if flags or size <= 0 or address % granularity:
                raise Refusal("CUDA_ERROR_INVALID_VALUE")
            if offset or size != allocation.size:
                raise Refusal("CUDA_ERROR_NOT_SUPPORTED")  # an allocation is mapped whole
            self.process.addresses.map(Mapping(address, size, int(handle), allocation.number))
            machine.post("hold", machine.process, allocation.number, 0, 1)

    @answers(0)
    def cuMemUnmap(self, ptr: Any, size: int) -> None:
        machine = self.process.machine
        with machine.transaction():
            for mapping in self.process.addresses.unmap(int(ptr), size):
                machine.post("hold", machine.process, mapping.number, 0, -1)

    @answers(0)
    def cuMemSetAccess(self, ptr: Any, size: int, desc: Sequence[Any], count: int) -> None:
        cuda = bindings.driver()
        if len(desc) != count or not count:
            raise Refusal("CUDA_ERROR_INVALID_VALUE")
        for one in desc:
            if one.location.type != cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE:
                raise Refusal("CUDA_ERROR_INVALID_VALUE")
            device = int(one.location.id)
            if not 0 <= device < len(self.process.specification.capacities):
                raise Refusal("CUDA_ERROR_INVALID_VALUE")
            allowed = one.flags == cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            self.process.addresses.allow(int(ptr), size, {device}, allowed=allowed)

    def await_team(self, handle: Any) -> None:
        """Block, as the driver does, until all devices of a multicast object have been added (by their own processes)."""
        while True:
            with self.process.machine.transaction():
                if not self.process.waits_for_peers or _complete(self.process.held(handle)):
                    return
            time.sleep(TEAM_POLL)


def _complete(allocation: Allocation) -> bool:
    return len(allocation.team) >= allocation.team_size
