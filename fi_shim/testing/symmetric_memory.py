"""The double of `torch.distributed._symmetric_memory`: allocations of torch's sizes on simulated devices, exchanged over any group."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any, Final

from fi_shim.testing import bindings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fi_shim.testing.driver import Driver

ALIGNMENT: Final = 16  # bytes; torch puts its signal pad behind the buffer at a multiple of this


def allocated_bytes(requested: int, signal_pad_size: int, granularity: int) -> int:
    """What torch takes for `requested` bytes (CUDASymmetricMemory.cu: round up to 16, add the signal pad, round up)."""
    padded = -(-requested // ALIGNMENT) * ALIGNMENT + signal_pad_size
    return -(-padded // granularity) * granularity


class DeviceTensor:
    """A tensor on a simulated device: an address and a length. The memory lives as long as the object."""

    def __init__(self, driver: Driver, shape: Sequence[int], dtype: Any, allocated: int) -> None:
        self.dtype = dtype
        self.nbytes = math.prod(shape) * dtype.itemsize
        self.allocated = allocated
        self._driver = driver
        self._address = 0
        self.has_multicast = bool(driver.process.specification.multicast)
        self.handle = _checked(driver, driver.cuMemCreate(allocated, _properties(driver), 0))
        try:
            self._address = map_memory(driver, self.handle, allocated)
        except RuntimeError:
            driver.cuMemRelease(self.handle)
            raise

    def data_ptr(self) -> int:
        return self._address

    def fill_(self, value: float) -> DeviceTensor:  # noqa: ARG002
        """Checked only: contents are not kept."""
        _checked(self._driver, self._driver.cuMemsetD8(self._address, 0, self.nbytes))
        return self

    def __del__(self) -> None:
        if getattr(self, "_address", 0):
            unmap_memory(self._driver, self._address, self.allocated)
            self._driver.cuMemRelease(self.handle)


class SymmetricMemory:
    """Stands for the module: `empty` and `rendezvous`.

    Args:
        driver: where the memory is.
        signal_pad_size: bytes that torch adds to each allocation.
        rendezvous: (tensor, group name) -> what torch's rendezvous returns.
    """

    def __init__(self, driver: Driver, signal_pad_size: int, rendezvous: Callable[[DeviceTensor, str], Any]) -> None:
        self.requested: list[int] = []
        self._driver = driver
        self._signal_pad_size = signal_pad_size
        self._rendezvous = rendezvous

    def empty(self, *size: Any, dtype: Any, device: Any) -> DeviceTensor:
        context = _checked(self._driver, self._driver.cuDevicePrimaryCtxRetain(device.index or 0))
        _checked(self._driver, self._driver.cuCtxSetCurrent(context))
        shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
        requested = math.prod(shape) * dtype.itemsize
        self.requested.append(requested)
        granularity = self._driver.process.specification.granularity
        return DeviceTensor(self._driver, shape, dtype, allocated_bytes(requested, self._signal_pad_size, granularity))

    def rendezvous(self, tensor: DeviceTensor, group: str) -> Any:
        return self._rendezvous(tensor, group)


class Rendezvous:
    """What torch's rendezvous returns: where each rank's buffer is for us."""

    def __init__(self, tensor: DeviceTensor, addresses: Sequence[int]) -> None:
        self.buffer_size = tensor.nbytes
        self.buffer_ptrs = list(addresses)
        self.buffer_ptrs_dev = addresses[0]
        self.multicast_ptr = addresses[0] if tensor.has_multicast else 0

    def get_buffer(self, rank: int, sizes: Sequence[int], dtype: Any, storage_offset: int = 0) -> _Buffer:  # noqa: ARG002
        return _Buffer(self.buffer_ptrs[rank] + storage_offset * dtype.itemsize)


class _Buffer:
    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        return self._address


def alone(world_size: int) -> Callable[[DeviceTensor, str], Rendezvous]:
    """A rendezvous for one process that stands for all ranks."""
    return lambda tensor, _group: Rendezvous(tensor, [tensor.data_ptr()] * world_size)


def map_memory(driver: Driver, handle: Any, size: int) -> int:
    """Map an allocation for the current device.

    Raises:
        RuntimeError: the driver refuses; nothing stays mapped.
    """
    with contextlib.ExitStack() as undo:
        address = _checked(driver, driver.cuMemAddressReserve(size, driver.process.specification.granularity, 0, 0))
        undo.callback(driver.cuMemAddressFree, address, size)
        _checked(driver, driver.cuMemMap(address, size, 0, handle, 0))
        undo.callback(driver.cuMemUnmap, address, size)
        _checked(driver, driver.cuMemSetAccess(address, size, [_access(driver)], 1))
        undo.pop_all()
    return int(address)


def unmap_memory(driver: Driver, address: int, size: int) -> None:
    """The opposite of `map_memory`."""
    driver.cuMemUnmap(address, size)
    driver.cuMemAddressFree(address, size)


def _checked(driver: Driver, answer: tuple[Any, ...]) -> Any:
    if int(answer[0]):
        text = driver.cuGetErrorString(answer[0])[1].decode()
        raise RuntimeError(f"CUDA driver error: {text}")
    return answer[1] if len(answer) > 1 else None


def _location(driver: Driver) -> Any:
    location = bindings.driver().CUmemLocation()
    location.type = bindings.driver().CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = driver.process.device
    return location


def _properties(driver: Driver) -> Any:
    cuda = bindings.driver()
    properties = cuda.CUmemAllocationProp()
    properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location = _location(driver)
    properties.requestedHandleTypes = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    return properties


def _access(driver: Driver) -> Any:
    cuda = bindings.driver()
    access = cuda.CUmemAccessDesc()
    access.location = _location(driver)
    access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return access
