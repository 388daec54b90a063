"""Multicast objects: one address that reaches the memory of a team of devices."""
# ruff: noqa: N802, N803  (names are CUDA's)

from __future__ import annotations

from typing import Any

from fi_shim.testing import bindings
from fi_shim.testing.bindings import Refusal
from fi_shim.testing.driver.call import answers
from fi_shim.testing.driver.virtual import VirtualMemory
from fi_shim.testing.specification import SMALLEST_GRANULARITY


class Multicast(VirtualMemory):
    """cuMulticast*."""

    @answers(1)
    def cuMulticastGetGranularity(self, prop: Any, option: object) -> int:
        self._check_properties(prop)
        recommended = bindings.driver().CUmulticastGranularity_flags.CU_MULTICAST_GRANULARITY_RECOMMENDED
        return self._recommended(int(prop.size)) if option == recommended else SMALLEST_GRANULARITY

    def _recommended(self, size: int) -> int:
        specification = self.process.specification
        if size <= SMALLEST_GRANULARITY and not specification.multicast_for_any_size:  # as an H200 answers
            return SMALLEST_GRANULARITY
        return specification.multicast

    @answers(1)
    def cuMulticastCreate(self, prop: Any) -> Any:
        self._check_properties(prop)
        if prop.size % SMALLEST_GRANULARITY:
            raise Refusal("CUDA_ERROR_INVALID_VALUE")
        machine, granularity = self.process.machine, self._recommended(int(prop.size))
        size = -(-int(prop.size) // granularity) * granularity  # callers rely on it: FlashInfer maps more than it asked for
        with machine.transaction() as ledger:
            number = ledger.last_number + 1
            machine.post("create", machine.process, number, -1, size, int(prop.handleTypes), 0, int(prop.numDevices))
        return bindings.driver().CUmemGenericAllocationHandle(self.process.new_handle(number))

    @answers(0)
    def cuMulticastAddDevice(self, mcHandle: Any, dev: Any) -> None:
        machine, device = self.process.machine, int(dev)
        if not 0 <= device < len(self.process.specification.capacities):
            raise Refusal("CUDA_ERROR_INVALID_DEVICE")
        with machine.transaction():
            team = self.process.held(mcHandle)
            if not team.team_size or device in team.team or len(team.team) == team.team_size:
                raise Refusal("CUDA_ERROR_INVALID_VALUE")
            machine.post("join", team.number, device)

    @answers(0)
    def cuMulticastBindMem(self, mcHandle: Any, mcOffset: int, memHandle: Any, memOffset: int, size: int, flags: int) -> None:
        machine = self.process.machine
        self.await_team(mcHandle)
        with machine.transaction():
            team, memory = self.process.held(mcHandle), self.process.held(memHandle)
            unaligned = any(value % SMALLEST_GRANULARITY for value in (mcOffset, memOffset, size))
            too_long = mcOffset + size > team.size or memOffset + size > memory.size
            if flags or not team.team_size or memory.team_size or size <= 0 or unaligned or too_long:
                raise Refusal("CUDA_ERROR_INVALID_VALUE")
            if memory.device not in team.team or memory.device in team.bound:
                raise Refusal("CUDA_ERROR_INVALID_VALUE")
            machine.post("bind", machine.process, team.number, memory.device, memory.number)

    @answers(0)
    def cuMulticastUnbind(self, mcHandle: Any, dev: Any, mcOffset: int, size: int) -> None:
        machine = self.process.machine
        with machine.transaction():
            team = self.process.held(mcHandle)
            if int(dev) not in team.bound or mcOffset or not 0 < size <= team.size:
                raise Refusal("CUDA_ERROR_INVALID_VALUE")
            machine.post("unbind", team.number, int(dev))

    def _check_properties(self, prop: Any) -> None:
        if not self.process.specification.multicast:
            raise Refusal("CUDA_ERROR_NOT_SUPPORTED")
        if prop.size <= 0 or not 0 < prop.numDevices <= len(self.process.specification.capacities) or prop.flags:
            raise Refusal("CUDA_ERROR_INVALID_VALUE")
