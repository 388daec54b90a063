"""The answers to misuse are those of an H200's driver (580), asked directly."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.driver", reason="needs cuda-python's types")
sys.path.insert(0, str(Path(__file__).parent))
from simulated import FABRIC, MIB, access, code, driver, fabric, posix, properties, value

INVALID = "INVALID_VALUE"


@pytest.fixture
def cuda(machine_folder: Path) -> Any:
    return driver(machine_folder)


@pytest.fixture
def base(cuda: Any) -> int:
    """16 MiB of reserved addresses."""
    return int(value(cuda.cuMemAddressReserve(16 * MIB, 0, 0, 0)))


def free(cuda: Any) -> int:
    answer = cuda.cuMemGetInfo()
    assert code(answer) == "CUDA_SUCCESS"
    return int(answer[1])


@pytest.mark.parametrize("size", [0, 1, MIB, 2 * MIB + 4096])
def test_sizes_that_no_allocation_can_have(cuda: Any, size: int) -> None:
    assert code(cuda.cuMemCreate(size, properties(), 0)) == INVALID


def test_capacity_is_per_device_and_comes_back(cuda: Any) -> None:
    first = value(cuda.cuMemCreate(62 * MIB, properties(), 0))
    assert free(cuda) == 2 * MIB
    assert code(cuda.cuMemCreate(4 * MIB, properties(), 0)) == "OUT_OF_MEMORY"
    assert code(cuda.cuMemAlloc(4 * MIB)) == "OUT_OF_MEMORY"
    value(cuda.cuMemCreate(64 * MIB, properties(device=1), 0))
    value(cuda.cuMemRelease(first))
    assert free(cuda) == 64 * MIB


def test_devices_that_are_not_there(cuda: Any) -> None:
    assert code(cuda.cuMemCreate(2 * MIB, properties(device=2), 0)) == "INVALID_DEVICE"
    assert code(cuda.cuDeviceGet(2)) == "INVALID_DEVICE"


def test_handles_that_are_none(cuda: Any, base: int) -> None:
    handle = value(cuda.cuMemCreate(2 * MIB, properties(), 0))
    value(cuda.cuMemRelease(handle))
    for unknown in (handle, 0, 12345):
        assert code(cuda.cuMemRelease(unknown)) == INVALID
        assert code(cuda.cuMemMap(base, 2 * MIB, 0, unknown, 0)) == INVALID
        assert code(cuda.cuMemExportToShareableHandle(unknown, posix(), 0)) == INVALID


@pytest.mark.parametrize(("size", "alignment"), [(0, 0), (1, 0), (4096, 0), (65536, 0), (2 * MIB, 3)])
def test_reservations_that_cannot_be(cuda: Any, size: int, alignment: int) -> None:
    assert code(cuda.cuMemAddressReserve(size, alignment, 0, 0)) == INVALID


def test_a_reservation_is_aligned_and_freed_whole(cuda: Any) -> None:
    address = int(value(cuda.cuMemAddressReserve(4 * MIB, 512 * MIB, 0, 0)))
    assert address % (512 * MIB) == 0
    assert code(cuda.cuMemAddressFree(address, 2 * MIB)) == INVALID
    assert code(cuda.cuMemAddressFree(address + 2 * MIB, 2 * MIB)) == INVALID
    value(cuda.cuMemAddressFree(address, 4 * MIB))
    assert code(cuda.cuMemAddressFree(address, 4 * MIB)) == INVALID


def test_an_allocation_is_mapped_whole_where_nothing_is(cuda: Any, base: int) -> None:
    handle = value(cuda.cuMemCreate(4 * MIB, properties(), 0))
    assert code(cuda.cuMemMap(base - (1 << 40), 4 * MIB, 0, handle, 0)) == INVALID
    assert code(cuda.cuMemMap(base + 14 * MIB, 4 * MIB, 0, handle, 0)) == INVALID
    assert code(cuda.cuMemMap(base + 4096, 4 * MIB, 0, handle, 0)) == INVALID
    assert code(cuda.cuMemMap(base, 0, 0, handle, 0)) == INVALID
    for size, offset in ((2 * MIB, 0), (2 * MIB, 2 * MIB), (8 * MIB, 0), (2 * MIB + 4096, 0)):
        assert code(cuda.cuMemMap(base, size, offset, handle, 0)) == "NOT_SUPPORTED"
    value(cuda.cuMemMap(base, 4 * MIB, 0, handle, 0))
    assert code(cuda.cuMemMap(base, 4 * MIB, 0, handle, 0)) == INVALID
    assert code(cuda.cuMemMap(base + 2 * MIB, 4 * MIB, 0, handle, 0)) == INVALID
    value(cuda.cuMemMap(base + 4 * MIB, 4 * MIB, 0, handle, 0))


def test_memory_is_used_where_it_is_mapped_and_allowed(cuda: Any, base: int) -> None:
    handle = value(cuda.cuMemCreate(4 * MIB, properties(), 0))
    assert code(cuda.cuMemsetD8(base, 0, 16)) == INVALID
    value(cuda.cuMemMap(base, 4 * MIB, 0, handle, 0))
    assert code(cuda.cuMemsetD8(base, 0, 16)) == INVALID  # no access yet
    for size, device in ((2 * MIB, 0), (8 * MIB, 0), (4096, 0), (4 * MIB, 99)):
        assert code(cuda.cuMemSetAccess(base, size, [access(device)], 1)) == INVALID
    assert code(cuda.cuMemSetAccess(base, 4 * MIB, [], 0)) == INVALID
    value(cuda.cuMemSetAccess(base, 4 * MIB, [access()], 1))
    value(cuda.cuMemsetD8(base, 0, 4 * MIB))
    value(cuda.cuMemsetD32(base, 0, MIB))
    assert code(cuda.cuMemsetD32(base, 0, MIB + 1)) == INVALID
    assert code(cuda.cuMemsetD16(base + 1, 0, 4)) == INVALID
    assert code(cuda.cuMemsetD32(base + 2, 0, 4)) == INVALID
    buffer = bytearray(b"x" * 8)
    value(cuda.cuMemcpyDtoH(buffer, base, 8))
    assert buffer == bytes(8)
    cuda.process.use_device(1)
    assert code(cuda.cuMemsetD8(base, 0, 16)) == INVALID  # device 1 has no access


def test_neighbouring_mappings_are_one_range(cuda: Any, base: int) -> None:
    for place in (0, 2):
        value(cuda.cuMemMap(base + place * MIB, 2 * MIB, 0, value(cuda.cuMemCreate(2 * MIB, properties(), 0)), 0))
    value(cuda.cuMemSetAccess(base, 2 * MIB, [access()], 1))
    assert code(cuda.cuMemsetD8(base + 2 * MIB - 8, 0, 16)) == INVALID
    value(cuda.cuMemSetAccess(base, 4 * MIB, [access()], 1))
    value(cuda.cuMemsetD8(base + 2 * MIB - 8, 0, 16))
    value(cuda.cuMemUnmap(base, 4 * MIB))
    assert code(cuda.cuMemsetD8(base, 0, 16)) == INVALID


def test_unmapping(cuda: Any, base: int) -> None:
    handle = value(cuda.cuMemCreate(4 * MIB, properties(), 0))
    value(cuda.cuMemMap(base, 4 * MIB, 0, handle, 0))
    assert code(cuda.cuMemUnmap(base, 2 * MIB)) == INVALID
    assert code(cuda.cuMemAddressFree(base, 16 * MIB)) == INVALID
    value(cuda.cuMemUnmap(base, 8 * MIB))
    value(cuda.cuMemUnmap(base, 4 * MIB))  # a real driver does not mind
    assert code(cuda.cuMemUnmap(base - (1 << 40), 4 * MIB)) == INVALID
    value(cuda.cuMemAddressFree(base, 16 * MIB))


def test_a_released_allocation_lives_as_long_as_it_is_mapped(cuda: Any, base: int) -> None:
    handle = value(cuda.cuMemCreate(4 * MIB, properties(), 0))
    value(cuda.cuMemMap(base, 4 * MIB, 0, handle, 0))
    value(cuda.cuMemSetAccess(base, 4 * MIB, [access()], 1))
    value(cuda.cuMemRelease(handle))
    assert free(cuda) == 60 * MIB
    value(cuda.cuMemsetD8(base, 0, 16))
    assert int(value(cuda.cuMemRetainAllocationHandle(base + 5))) == int(handle)
    value(cuda.cuMemUnmap(base, 4 * MIB))
    assert free(cuda) == 60 * MIB
    value(cuda.cuMemRelease(handle))
    assert free(cuda) == 64 * MIB
    assert code(cuda.cuMemRetainAllocationHandle(base)) == INVALID


def test_linear_memory(cuda: Any) -> None:
    assert code(cuda.cuMemAlloc(0)) == INVALID
    small = [int(value(cuda.cuMemAlloc(16))) for _ in range(3)]
    assert all(address % 512 == 0 for address in small)
    assert free(cuda) == 62 * MIB
    large = int(value(cuda.cuMemAlloc(3 * MIB)))
    assert free(cuda) == 58 * MIB
    value(cuda.cuMemsetD8(large, 0, 3 * MIB))
    assert code(cuda.cuMemsetD8(large + 3 * MIB - 8, 0, 16)) == INVALID
    assert code(cuda.cuMemFree(large + 8)) == INVALID
    for address in (*small, large):
        value(cuda.cuMemFree(address))
    assert code(cuda.cuMemFree(large)) == INVALID
    value(cuda.cuMemFree(0))
    assert free(cuda) == 64 * MIB


def test_without_a_context(cuda: Any) -> None:
    value(cuda.cuCtxSetCurrent(0))
    for answer in (cuda.cuMemAlloc(16), cuda.cuCtxGetDevice(), cuda.cuCtxSynchronize()):
        assert code(answer) == "INVALID_CONTEXT"
    value(cuda.cuMemCreate(2 * MIB, properties(), 0))
    assert int(value(cuda.cuCtxGetCurrent())) == 0
    value(cuda.cuCtxSetCurrent(value(cuda.cuDevicePrimaryCtxRetain(1))))
    assert int(value(cuda.cuCtxGetDevice())) == 1


def test_only_what_was_requested_is_exported(cuda: Any) -> None:
    silent = value(cuda.cuMemCreate(2 * MIB, properties(handle_types=0), 0))
    assert code(cuda.cuMemExportToShareableHandle(silent, posix(), 0)) == INVALID
    handle = value(cuda.cuMemCreate(2 * MIB, properties(), 0))
    assert code(cuda.cuMemExportToShareableHandle(handle, fabric(), 0)) == INVALID
    descriptor = value(cuda.cuMemExportToShareableHandle(handle, posix(), 0))
    imported = value(cuda.cuMemImportFromShareableHandle(descriptor, posix()))
    assert code(cuda.cuMemExportToShareableHandle(imported, posix(), 0)) == INVALID
    assert int(value(cuda.cuMemGetAllocationPropertiesFromHandle(imported)).requestedHandleTypes) == 0
    assert int(value(cuda.cuMemGetAllocationPropertiesFromHandle(handle)).requestedHandleTypes) == 1
    os.close(descriptor)


def test_a_descriptor_keeps_memory_until_its_last_copy_is_closed(cuda: Any) -> None:
    handle = value(cuda.cuMemCreate(4 * MIB, properties(), 0))
    descriptor = value(cuda.cuMemExportToShareableHandle(handle, posix(), 0))
    copy = os.dup(descriptor)
    value(cuda.cuMemRelease(handle))
    os.close(descriptor)
    assert free(cuda) == 60 * MIB
    imported = value(cuda.cuMemImportFromShareableHandle(copy, posix()))
    os.close(copy)
    assert free(cuda) == 60 * MIB
    value(cuda.cuMemRelease(imported))
    assert free(cuda) == 64 * MIB


def test_descriptors_that_are_none(cuda: Any, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        for descriptor in (file.fileno(), -1, 9999):
            assert code(cuda.cuMemImportFromShareableHandle(descriptor, posix())) == "UNKNOWN"


def test_fabric(machine_folder: Path) -> None:
    cuda = driver(machine_folder, "2x64MiB;fabric=on")
    handle = value(cuda.cuMemCreate(2 * MIB, properties(handle_types=FABRIC), 0))
    exported = value(cuda.cuMemExportToShareableHandle(handle, fabric(), 0))
    assert len(exported.data) == 64
    for form in (exported, exported.data):
        value(cuda.cuMemRelease(value(cuda.cuMemImportFromShareableHandle(form, fabric()))))
    assert code(cuda.cuMemImportFromShareableHandle(bytes(64), fabric())) == INVALID
    assert code(cuda.cuMemImportFromShareableHandle(b"short", fabric())) == INVALID


@pytest.mark.parametrize(("setting", "attribute", "answer"), [("off", 0, "NOT_SUPPORTED"), ("denied", 1, "NOT_PERMITTED")])
def test_fabric_that_does_not_work(machine_folder: Path, setting: str, attribute: int, answer: str) -> None:
    cuda = driver(machine_folder, f"2x64MiB;fabric={setting}")
    name = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED
    assert value(cuda.cuDeviceGetAttribute(name, 0)) == attribute
    assert code(cuda.cuMemCreate(2 * MIB, properties(handle_types=FABRIC), 0)) == answer


def test_what_is_not_simulated_says_so(cuda: Any) -> None:
    with pytest.raises(NotImplementedError, match="cuLaunchKernel"):
        cuda.cuLaunchKernel()
    assert cuda.CUresult.CUDA_SUCCESS.value == 0
