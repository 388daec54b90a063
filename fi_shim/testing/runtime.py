"""The double of the CUDA runtime, twice: as the ctypes functions that FlashInfer's CudaRTLibrary calls, and as cuda-python's module.

Only the table of C functions behind CudaRTLibrary is replaced, so its own checks and messages are the real ones.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any, Final

from fi_shim.testing import bindings
from fi_shim.testing.addresses import FIRST_ADDRESS, Range
from fi_shim.testing.bindings import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from fi_shim.testing.driver import Driver

IPC_HANDLE: Final = struct.Struct("<16sQQ")  # inside the 64 (FlashInfer: 128) bytes of a cudaIpcMemHandle_t
IPC_MARK: Final = b"fi_shim ipc"
ALIGNMENT: Final = 512  # bytes
FUNCTIONS: Final = (
    "cudaSetDevice",
    "cudaDeviceSynchronize",
    "cudaDeviceReset",
    "cudaMalloc",
    "cudaFree",
    "cudaMemset",
    "cudaMemcpy",
    "cudaIpcGetMemHandle",
    "cudaIpcOpenMemHandle",
    "cudaIpcCloseMemHandle",
)


class Runtime:
    """The runtime's functions on the same devices as the driver double."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._process = driver.process

    def functions(self) -> dict[str, Callable[..., Any]]:
        """For CudaRTLibrary.funcs: they answer with a number and write through pointers."""
        table = {name: self._as_c_function(name) for name in FUNCTIONS}
        return {**table, "cudaGetErrorString": _error_text}

    def set_device(self, device: int) -> tuple[Any]:
        """cuda-python's cudaSetDevice."""
        return (bindings.runtime().cudaError_t(self.functions()["cudaSetDevice"](device)),)

    def _as_c_function(self, name: str) -> Callable[..., int]:
        method = getattr(self, "_" + name)

        def call(*arguments: Any) -> int:
            try:
                self._process.begin(name)
                if not self._process.has_context and name != "cudaSetDevice":
                    self._process.use_device(self._process.device)  # the runtime makes the context that it needs
                method(*arguments)
            except Refusal as refusal:
                return bindings.error_number(refusal.code)
            return 0

        return call

    def _cudaSetDevice(self, device: int) -> None:  # noqa: N802
        self._process.use_device(int(device))

    def _cudaDeviceSynchronize(self) -> None:  # noqa: N802
        """Nothing runs."""

    def _cudaDeviceReset(self) -> None:  # noqa: N802
        raise NotImplementedError("cudaDeviceReset is not simulated (fi_shim.testing.runtime)")

    def _cudaMalloc(self, pointer: Any, size: int) -> None:  # noqa: N802
        pointer._obj.value = self._driver.allocate(_value(size))  # noqa: SLF001  (what byref() refers to)

    def _cudaFree(self, pointer: Any) -> None:  # noqa: N802
        if _value(pointer):
            self._driver.deallocate(_value(pointer))

    def _cudaMemset(self, pointer: Any, value: int, count: int) -> None:  # noqa: ARG002, N802
        self._driver.check(_value(pointer), _value(count))

    def _cudaMemcpy(self, target: Any, source: Any, count: int, kind: int) -> None:  # noqa: ARG002, N802
        for address in (_value(target), _value(source)):
            if address >= FIRST_ADDRESS:
                self._driver.check(address, _value(count))

    def _cudaIpcGetMemHandle(self, handle: Any, pointer: Any) -> None:  # noqa: N802
        found = self._process.addresses.ranges.get(_value(pointer))
        if found is None or found.opened:
            raise Refusal("CUDA_ERROR_INVALID_VALUE")
        with self._process.machine.transaction():
            data = IPC_HANDLE.pack(IPC_MARK, self._process.machine.process, found.address)
        ctypes.memmove(ctypes.addressof(handle._obj), data, len(data))  # noqa: SLF001  (what byref() refers to)

    def _cudaIpcOpenMemHandle(self, pointer: Any, handle: Any, flags: int) -> None:  # noqa: ARG002, N802
        mark, owner, address = IPC_HANDLE.unpack(bytes(handle)[: IPC_HANDLE.size])
        machine = self._process.machine
        with machine.transaction() as ledger:
            machine.reclaim()
            linear = ledger.linear.get((owner, address))
            if mark.rstrip(b"\0") != IPC_MARK or linear is None or owner == machine.process:
                raise Refusal("CUDA_ERROR_INVALID_CONTEXT" if linear else "CUDA_ERROR_INVALID_VALUE")
        opened = self._process.addresses.take(linear.size, ALIGNMENT)
        self._process.addresses.ranges[opened] = Range(opened, linear.size, linear.device, opened=True)
        pointer._obj.value = opened  # noqa: SLF001  (what byref() refers to)

    def _cudaIpcCloseMemHandle(self, pointer: Any) -> None:  # noqa: N802
        found = self._process.addresses.ranges.get(_value(pointer))
        if found is None or not found.opened:
            raise Refusal("CUDA_ERROR_INVALID_VALUE")
        del self._process.addresses.ranges[found.address]


def _value(number: Any) -> int:
    value = getattr(number, "value", number)
    return int(value or 0)


def _error_text(number: int) -> bytes:
    errors = bindings.runtime()
    return bytes(errors.cudaGetErrorString(errors.cudaError_t(number))[1])
