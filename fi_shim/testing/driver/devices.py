"""Devices, contexts and error names."""
# ruff: noqa: N802, N803  (names are CUDA's)

from __future__ import annotations

from typing import Any

from fi_shim.testing import bindings
from fi_shim.testing.bindings import Refusal
from fi_shim.testing.driver.call import DriverPart, answers
from fi_shim.testing.process import CONTEXT


class Devices(DriverPart):
    """cuInit, cuDevice*, cuCtx*, cuGetError*."""

    @answers(0)
    def cuInit(self, Flags: int) -> None:
        """Nothing to do."""

    @answers(1)
    def cuDriverGetVersion(self) -> int:
        return 13000

    @answers(1)
    def cuDeviceGetCount(self) -> int:
        return len(self.process.specification.capacities)

    @answers(1)
    def cuDeviceGet(self, ordinal: int) -> Any:
        return bindings.driver().CUdevice(self._known(ordinal))

    @answers(1)
    def cuDeviceTotalMem(self, dev: object) -> int:
        return self.process.specification.capacities[self._known(dev)]

    @answers(1)
    def cuDeviceGetAttribute(self, attrib: object, dev: object) -> int:
        self._known(dev)
        attributes, specification = bindings.driver().CUdevice_attribute, self.process.specification
        values = {
            attributes.CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED: int(specification.multicast > 0),
            attributes.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED: int(specification.fabric != "off"),
            attributes.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: 1,
            attributes.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: 1,
            attributes.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: 1,
            attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: 9,
            attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: 0,
        }
        return values.get(attrib, 0)

    @answers(1)
    def cuDevicePrimaryCtxRetain(self, dev: object) -> Any:
        context = CONTEXT + self._known(dev)
        self.process.initialised = True
        return bindings.driver().CUcontext(context)

    @answers(0)
    def cuDevicePrimaryCtxRelease(self, dev: object) -> None:
        self._known(dev)

    @answers(0)
    def cuCtxSetCurrent(self, ctx: object) -> None:
        address = 0 if ctx is None else int(ctx)  # type: ignore[call-overload]
        if not address:
            self.process.drop_context()
            return
        if not 0 <= address - CONTEXT < len(self.process.specification.capacities):
            raise Refusal("CUDA_ERROR_INVALID_CONTEXT")
        self.process.use_device(address - CONTEXT)

    @answers(1)
    def cuCtxGetCurrent(self) -> Any:
        return bindings.driver().CUcontext(CONTEXT + self.process.device if self.process.has_context else 0)

    @answers(1)
    def cuCtxGetDevice(self) -> Any:
        self._need_context()
        return bindings.driver().CUdevice(self.process.device)

    @answers(0)
    def cuCtxSynchronize(self) -> None:
        self._need_context()

    def cuGetErrorName(self, error: Any) -> tuple[Any, bytes]:
        """Not counted: it asks nothing of a device."""
        return bindings.driver().CUresult.CUDA_SUCCESS, error.name.encode()

    def cuGetErrorString(self, error: Any) -> tuple[Any, bytes]:
        """Not counted: it asks nothing of a device."""
        return bindings.driver().CUresult.CUDA_SUCCESS, error.name.removeprefix("CUDA_ERROR_").replace("_", " ").lower().encode()

    def _known(self, device: Any) -> int:
        number = int(device)
        if not 0 <= number < len(self.process.specification.capacities):
            raise Refusal("CUDA_ERROR_INVALID_DEVICE")
        return number

    def _need_context(self) -> None:
        if not self.process.has_context:
            raise Refusal("CUDA_ERROR_INVALID_CONTEXT")
