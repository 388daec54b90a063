"""Stand-ins for cuda-python, libcudart and NVML: a machine whose memory is without bounds and whose handles are fabric handles."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from fi_shim.drift.private.inert import StandIn
from fi_shim.drift.private.journal import CURRENT_DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable

    from fi_shim.drift.private.journal import Journal

_FABRIC_COMPLETED: Final = 3
_CLUSTER: Final = bytes(range(1, 17))


class Constant(int):
    """A member of a CUDA enum: a number of its own, with a name."""

    name: str

    def __new__(cls, name: str) -> Constant:  # noqa: PYI034
        member = super().__new__(cls, 0 if name.lower().endswith("success") else 1 + sum(name.encode()) + (len(name) << 16))
        member.name = name
        return member

    @property
    def value(self) -> int:
        return int(self)


class _Enum(type):
    """A class whose unknown attributes are its members."""

    def __getattr__(cls, name: str) -> Constant:
        if name.startswith("__"):
            raise AttributeError(name)
        return Constant(name)


class _Structure:
    """A CUDA struct: any field, made when first touched."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = self.__dict__[name] = _Structure()
        return value


def _enum(name: str) -> Any:
    return _Enum(name, (Constant,), {})


CUresult: Final = _enum("CUresult")
_SUCCESS: Final = Constant("CUDA_SUCCESS")
_ENUMS: Final = (
    "CUmemAllocationHandleType", "CUmemAllocationType", "CUmemLocationType", "CUmemAllocationGranularity_flags",
    "CUmulticastGranularity_flags", "CUmemAccess_flags", "CUdevice_attribute", "CUmemAttach_flags",
)  # fmt: skip
_STRUCTS: Final = ("CUmemAllocationProp", "CUmemLocation", "CUmulticastObjectProp", "CUmemAccessDesc")
_WITHOUT_RESULT: Final = (
    "cuInit", "cuCtxSetCurrent", "cuCtxSynchronize", "cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemAddressFree", "cuMemRelease",
    "cuMemFree", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemsetD8", "cuMemsetD16", "cuMemsetD32", "cuMulticastAddDevice", "cuMulticastBindMem",
    "cuMulticastUnbind", "cuStreamSynchronize",
)  # fmt: skip


def driver(journal: Journal) -> Any:
    """`cuda.bindings.driver`. A function that is not here is inert: what it gives cannot be computed with."""

    def create(size: int, prop: Any, flags: int) -> tuple[Any, ...]:  # noqa: ARG001
        return _SUCCESS, journal.allocate("cuMemCreate", size, requested=journal.requested, device=prop.location.id)

    def multicast_granularity(prop: Any, option: Any) -> tuple[Any, ...]:  # noqa: ARG001
        journal.multicast = "object" if journal.multicast == "object" else "granularity"
        return _SUCCESS, journal.multicast_granularity

    def multicast_create(prop: Any) -> tuple[Any, ...]:  # noqa: ARG001
        journal.multicast = "object"
        return _SUCCESS, journal.address()

    functions: dict[str, Callable[..., tuple[Any, ...]]] = {
        "cuMemCreate": create,
        "cuMulticastGetGranularity": multicast_granularity,
        "cuMulticastCreate": multicast_create,
        "cuMemGetAllocationGranularity": lambda *_: (_SUCCESS, journal.allocation_granularity),
        "cuMemAlloc": lambda size: (_SUCCESS, journal.allocate("cuMemAlloc", size)),
        "cuMemAddressReserve": lambda *_: (_SUCCESS, journal.address()),
        "cuMemExportToShareableHandle": lambda *_: (_SUCCESS, SimpleNamespace(data=bytes(64))),
        "cuMemImportFromShareableHandle": lambda *_: (_SUCCESS, journal.address()),
        "cuDeviceGet": lambda number: (_SUCCESS, int(number)),
        "cuDeviceGetCount": lambda: (_SUCCESS, max(journal.world_size, CURRENT_DEVICE + 1)),
        "cuDeviceGetAttribute": lambda *_: (_SUCCESS, 1),
        "cuDevicePrimaryCtxRetain": lambda *_: (_SUCCESS, 1),
        "cuCtxGetDevice": lambda: (_SUCCESS, CURRENT_DEVICE),
        "cuCtxGetCurrent": lambda: (_SUCCESS, 1),
        "cuGetErrorName": lambda error: (_SUCCESS, str(error).encode()),
        "cuGetErrorString": lambda error: (_SUCCESS, str(error).encode()),
    }
    for name in _WITHOUT_RESULT:
        functions[name] = lambda *_args, **_kwargs: (_SUCCESS,)
    enums = {name: _enum(name) for name in _ENUMS}
    structs = {name: type(name, (_Structure,), {}) for name in _STRUCTS}
    return StandIn("cuda.bindings.driver", CUresult=CUresult, CUdeviceptr=int, **functions, **enums, **structs)


def runtime() -> Any:
    """`cuda.bindings.runtime`: FlashInfer sets the device with it."""
    success = Constant("cudaSuccess")
    return StandIn("cuda.bindings.runtime", cudaError_t=_enum("cudaError_t"), cudaSetDevice=lambda _device: (success,))


def runtime_library(journal: Journal) -> Any:
    """The libcudart that `ctypes.CDLL` finds: C functions that write through the references they are given."""

    def malloc(pointer: Any, size: int) -> int:
        pointer._obj.value = journal.allocate("cudaMalloc", size)  # noqa: SLF001  # what byref() refers to
        return 0

    def open_handle(pointer: Any, *_: Any) -> int:
        pointer._obj.value = journal.address()  # noqa: SLF001
        return 0

    own = {"cudaMalloc": malloc, "cudaIpcOpenMemHandle": open_handle}
    names = (
        "cudaSetDevice", "cudaDeviceSynchronize", "cudaDeviceReset", "cudaGetErrorString", "cudaMalloc", "cudaFree", "cudaMemset",
        "cudaMemcpy", "cudaIpcGetMemHandle", "cudaIpcOpenMemHandle", "cudaIpcCloseMemHandle",
    )  # fmt: skip
    return StandIn("libcudart", **{name: _c_function(own.get(name, lambda *_: 0)) for name in names})


def _c_function(function: Callable[..., int]) -> Any:
    """A callable that takes `restype` and `argtypes`, as ctypes' do."""

    def called(*args: Any) -> int:
        return function(*args)

    return called


class _FabricInfo(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint), ("clusterUuid", ctypes.c_char * 16), ("status", ctypes.c_uint), ("state", ctypes.c_uint))


def nvml(journal: Journal) -> Any:
    """`pynvml`: every device is in one complete NVLink fabric."""

    def fabric_info(_handle: Any, info: Any) -> int:
        info._obj.state, info._obj.clusterUuid = _FABRIC_COMPLETED, _CLUSTER  # noqa: SLF001
        return 0

    return StandIn(
        "pynvml",
        NVMLError=type("NVMLError", (Exception,), {}),
        NVML_GPU_FABRIC_STATE_COMPLETED=_FABRIC_COMPLETED,
        c_nvmlGpuFabricInfoV_t=_FabricInfo,
        c_nvmlGpuFabricInfo_t=_FabricInfo,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: journal.world_size,
        nvmlDeviceGetHandleByIndex=int,
        nvmlDeviceGetGpuFabricInfoV=fabric_info,
        nvmlDeviceGetGpuFabricInfo=fabric_info,
        nvmlDeviceGetNvLinkCapability=lambda *_: 1,
        nvmlDeviceGetNvLinkState=lambda *_: 1,
    )
