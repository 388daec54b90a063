"""Linear memory (cuMemAlloc), and reading and writing of any memory: checked, but no contents are kept."""
# ruff: noqa: N802, N803  (names are CUDA's)

from __future__ import annotations

import ctypes
from typing import Any, Final

from fi_shim.testing import bindings
from fi_shim.testing.addresses import Range
from fi_shim.testing.bindings import Refusal
from fi_shim.testing.driver.call import DriverPart, answers

ALIGNMENT: Final = 512  # bytes


class LinearMemory(DriverPart):
    """cuMemAlloc, cuMemFree, cuMemGetInfo, cuMemset*, cuMemcpy*."""

    @answers(1)
    def cuMemAlloc(self, bytesize: int) -> Any:
        return bindings.driver().CUdeviceptr(self.allocate(bytesize))

    @answers(0)
    def cuMemFree(self, dptr: Any) -> None:
        if int(dptr):
            self.deallocate(int(dptr))

    @answers(2)
    def cuMemGetInfo(self) -> tuple[int, int]:
        self._need_context()
        return self.free_and_total(self.process.device)

    @answers(0)
    def cuMemsetD8(self, dstDevice: Any, uc: int, N: int) -> None:  # noqa: ARG002
        self.check(int(dstDevice), N)

    @answers(0)
    def cuMemsetD16(self, dstDevice: Any, us: int, N: int) -> None:  # noqa: ARG002
        self.check(int(dstDevice), 2 * N, alignment=2)

    @answers(0)
    def cuMemsetD32(self, dstDevice: Any, ui: int, N: int) -> None:  # noqa: ARG002
        self.check(int(dstDevice), 4 * N, alignment=4)

    @answers(0)
    def cuMemcpyHtoD(self, dstDevice: Any, srcHost: object, ByteCount: int) -> None:  # noqa: ARG002
        self.check(int(dstDevice), ByteCount)

    @answers(0)
    def cuMemcpyDtoH(self, dstHost: Any, srcDevice: Any, ByteCount: int) -> None:
        self.check(int(srcDevice), ByteCount)
        if isinstance(dstHost, bytearray):
            dstHost[:ByteCount] = bytes(ByteCount)
        else:
            ctypes.memset(int(dstHost), 0, ByteCount)

    def allocate(self, size: int) -> int:
        """Linear memory on the current device.

        Raises:
            Refusal: there is no context, no size or no memory.
        """
        self._need_context()
        process, device = self.process, self.process.device
        if size <= 0:
            raise Refusal("CUDA_ERROR_INVALID_VALUE")
        with process.machine.transaction() as ledger:
            process.machine.reclaim()
            address = process.addresses.take(size, ALIGNMENT)
            process.machine.post("linear", process.machine.process, address, device, size)
            if ledger.free(device) < 0:
                process.machine.post("unlinear", process.machine.process, address)
                raise Refusal("CUDA_ERROR_OUT_OF_MEMORY")
            process.addresses.ranges[address] = Range(address, size, device)
        return address

    def deallocate(self, address: int) -> None:
        """Give linear memory back that this process allocated."""
        process = self.process
        with process.machine.transaction():
            found = process.addresses.ranges.get(address)
            if found is None or found.opened:
                raise Refusal("CUDA_ERROR_INVALID_VALUE")
            del process.addresses.ranges[address]
            process.machine.post("unlinear", process.machine.process, address)

    def free_and_total(self, device: int) -> tuple[int, int]:
        """Bytes left and bytes in all."""
        machine = self.process.machine
        with machine.transaction() as ledger:
            machine.reclaim()
            return max(0, ledger.free(device)), ledger.capacities[device]

    def check(self, address: int, size: int, alignment: int = 1) -> None:
        """Refuse unless the current device may use the range."""
        self._need_context()
        if address % alignment or size < 0:
            raise Refusal("CUDA_ERROR_INVALID_VALUE")
        self.process.addresses.check(address, size, self.process.device)

    def _need_context(self) -> None:
        if not self.process.has_context:
            raise Refusal("CUDA_ERROR_INVALID_CONTEXT")
