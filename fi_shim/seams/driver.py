"""The CUDA driver bindings, whichever of their modules stands here, and the questions that fi_shim asks of a device."""

from __future__ import annotations

import importlib
import sys
from typing import Any


class DriverError(RuntimeError):
    """A CUDA driver call failed. `code` is the CUresult's name."""

    def __init__(self, call: str, code: str) -> None:
        super().__init__(f"{call} answers {code}")
        self.call = call
        self.code = code


def bindings() -> Any:
    """The driver module that FlashInfer uses, if it is loaded, else cuda-python's (13.x or 12.x). ImportError without either."""
    mnnvl = sys.modules.get("flashinfer.comm.mnnvl")
    if mnnvl is not None and hasattr(mnnvl, "cuda"):
        return mnnvl.cuda
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError:
        return importlib.import_module("cuda.cuda")


def checked(driver: Any, name: str, *args: Any) -> Any:
    """Call `driver.<name>(*args)` and give back its results without the code. DriverError if it is not CUDA_SUCCESS."""
    code, *results = getattr(driver, name)(*args)
    if int(code) != 0:
        raise DriverError(name, getattr(code, "name", str(code)))
    return results[0] if len(results) == 1 else results or None


def cuda_is_initialized() -> bool:
    """Whether this process has a CUDA context already. Asking does not make one."""
    torch = sys.modules.get("torch")
    return bool(torch is not None and torch.cuda.is_initialized())


def allocation_properties(driver: Any, device: int, handle_type: Any) -> Any:
    """CUmemAllocationProp as every FlashInfer release fills it in for shareable workspace memory on `device`."""
    properties = driver.CUmemAllocationProp()
    properties.requestedHandleTypes = handle_type
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location = driver.CUmemLocation()
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device
    properties.allocFlags.gpuDirectRDMACapable = 1
    return properties


def handle_type(driver: Any, name: str) -> Any:
    """CUmemAllocationHandleType by its short name: posix (a file descriptor) or fabric."""
    kinds = driver.CUmemAllocationHandleType
    return kinds.CU_MEM_HANDLE_TYPE_FABRIC if name == "fabric" else kinds.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def allocation_granularity(driver: Any, properties: Any) -> int:
    """Recommended allocation granularity in bytes. DriverError."""
    recommended = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
    return int(checked(driver, "cuMemGetAllocationGranularity", properties, recommended))


def multicast_granularity(driver: Any, device_count: int, size: int, handle_type: Any) -> int:
    """Recommended multicast granularity in bytes for an object over `device_count` devices. DriverError where there is no multicast."""
    properties = driver.CUmulticastObjectProp()
    properties.numDevices = device_count
    properties.size = size
    properties.handleTypes = handle_type
    recommended = driver.CUmulticastGranularity_flags.CU_MULTICAST_GRANULARITY_RECOMMENDED
    return int(checked(driver, "cuMulticastGetGranularity", properties, recommended))


def torch_signal_pad_size() -> int | None:
    """Bytes that torch appends to a symmetric-memory buffer, or None where torch is not loaded or does not say."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    try:
        symmetric_memory = importlib.import_module("torch.distributed._symmetric_memory")
        return int(symmetric_memory.get_signal_pad_size())
    except Exception:  # noqa: BLE001  # a torch without distributed, or one that has no such call: the caller's default holds
        return None
