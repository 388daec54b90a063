"""The double of `pynvml`: the fabric's state is what was specified; names that are not simulated are the real module's."""

from __future__ import annotations

import ctypes
import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fi_shim.testing.specification import Specification

CLUSTER: Final = bytes(range(1, 17))  # a cluster uuid; early releases look at the first byte only
LINKS: Final = 18  # NVLinks of an H200


class Nvml:
    """Answers for the simulated devices.

    Args:
        specification: the devices.
    """

    def __init__(self, specification: Specification) -> None:
        self._specification = specification

    def __getattr__(self, name: str) -> Any:
        real = getattr(importlib.import_module("pynvml"), name)
        if name.startswith("nvml"):
            raise NotImplementedError(f"{name} is not simulated (fi_shim.testing.nvml)")
        return real

    def nvmlInit(self) -> None:  # noqa: N802
        """Nothing to do."""

    nvmlShutdown = nvmlInit  # noqa: N815

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self._specification.capacities)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if not 0 <= index < len(self._specification.capacities):
            raise self.NVMLError_InvalidArgument
        return index

    def nvmlDeviceGetGpuFabricInfoV(self, handle: int, info: Any) -> int:  # noqa: ARG002, N802
        """Fill the struct that `info` (from ctypes.byref) refers to."""
        target = info._obj  # noqa: SLF001  (what byref() refers to)
        if self._specification.fabric == "off":
            target.state = self.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED
            return 0
        target.state = self.NVML_GPU_FABRIC_STATE_COMPLETED
        ctypes.memmove(ctypes.addressof(target) + type(target).clusterUuid.offset, CLUSTER, len(CLUSTER))
        return 0

    def nvmlDeviceGetNvLinkCapability(self, handle: int, link: int, capability: int) -> int:  # noqa: ARG002, N802
        if link >= LINKS:
            raise self.NVMLError_NotSupported
        return 1

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:  # noqa: ARG002, N802
        return 1
