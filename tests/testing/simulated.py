"""A driver double on a machine of this test's own, and the few structs that every call needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fi_shim.testing import bindings, specification
from fi_shim.testing.driver import Driver
from fi_shim.testing.process import SimulatedProcess
from fi_shim.testing.shared_machine import SharedMachine

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
POSIX, FABRIC = 1, 8


def driver(folder: Path, simulate: str = "2x64MiB;multicast=4MiB") -> Driver:
    devices = specification.parse(simulate)
    made = Driver(SimulatedProcess(devices, SharedMachine(folder, devices.capacities)))
    made.process.use_device(0)
    return made


def code(answer: tuple[Any, ...]) -> str:
    return str(answer[0].name.removeprefix("CUDA_ERROR_"))


def value(answer: tuple[Any, ...]) -> Any:
    assert code(answer) == "CUDA_SUCCESS"
    return answer[1] if len(answer) == 2 else None


def properties(device: int = 0, handle_types: int = POSIX) -> Any:
    cuda = bindings.driver()
    made = cuda.CUmemAllocationProp()
    made.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    made.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    made.location.id = device
    made.requestedHandleTypes = cuda.CUmemAllocationHandleType(handle_types)
    return made


def access(device: int = 0, flags: int = 3) -> Any:
    cuda = bindings.driver()
    made = cuda.CUmemAccessDesc()
    made.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    made.location.id = device
    made.flags = cuda.CUmemAccess_flags(flags)
    return made


def team(size: int, devices: int) -> Any:
    made = bindings.driver().CUmulticastObjectProp()
    made.numDevices, made.size = devices, size
    made.handleTypes = bindings.driver().CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    return made


def posix() -> Any:
    return bindings.driver().CUmemAllocationHandleType(POSIX)


def fabric() -> Any:
    return bindings.driver().CUmemAllocationHandleType(FABRIC)
