from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.driver", reason="needs cuda-python's types")
sys.path.insert(0, str(Path(__file__).parent))
from simulated import MIB, access, code, driver, properties, team, value

INVALID = "INVALID_VALUE"


@pytest.fixture
def cuda(machine_folder: Path) -> Any:
    return driver(machine_folder, "2x64MiB;multicast=4MiB")


def test_granularities(cuda: Any) -> None:
    flags = cuda.CUmulticastGranularity_flags
    # As two H200s answer (with 512 MiB in place of 4): up to 2 MiB the minimum is recommended.
    assert value(cuda.cuMulticastGetGranularity(team(4 * MIB, 2), flags.CU_MULTICAST_GRANULARITY_RECOMMENDED)) == 4 * MIB
    assert value(cuda.cuMulticastGetGranularity(team(2 * MIB, 2), flags.CU_MULTICAST_GRANULARITY_RECOMMENDED)) == 2 * MIB
    assert value(cuda.cuMulticastGetGranularity(team(2 * MIB, 2), flags.CU_MULTICAST_GRANULARITY_MINIMUM)) == 2 * MIB


def test_without_multicast(machine_folder: Path) -> None:
    cuda = driver(machine_folder, "2x64MiB;multicast=off")
    attribute = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED
    assert value(cuda.cuDeviceGetAttribute(attribute, 0)) == 0
    assert code(cuda.cuMulticastCreate(team(4 * MIB, 2))) == "NOT_SUPPORTED"


def test_objects_that_cannot_be(cuda: Any) -> None:
    for size, devices in ((0, 2), (MIB, 2), (4 * MIB, 0), (4 * MIB, 3)):
        assert code(cuda.cuMulticastCreate(team(size, devices))) == INVALID


def test_a_team_of_one_process(cuda: Any) -> None:
    multicast = value(cuda.cuMulticastCreate(team(4 * MIB, 2)))
    assert code(cuda.cuMulticastAddDevice(multicast, 2)) == "INVALID_DEVICE"
    for device in (0, 1):
        value(cuda.cuMulticastAddDevice(multicast, device))
        assert code(cuda.cuMulticastAddDevice(multicast, device)) == INVALID
    memory = value(cuda.cuMemCreate(4 * MIB, properties(), 0))
    assert code(cuda.cuMulticastAddDevice(memory, 0)) == INVALID
    for size, offset in ((8 * MIB, 0), (4 * MIB, 2 * MIB), (MIB, 0), (0, 0)):
        assert code(cuda.cuMulticastBindMem(multicast, offset, memory, 0, size, 0)) == INVALID
    assert code(cuda.cuMulticastBindMem(multicast, 0, multicast, 0, 4 * MIB, 0)) == INVALID
    value(cuda.cuMulticastBindMem(multicast, 0, memory, 0, 4 * MIB, 0))
    assert code(cuda.cuMulticastBindMem(multicast, 0, memory, 0, 4 * MIB, 0)) == INVALID
    address = int(value(cuda.cuMemAddressReserve(4 * MIB, 4 * MIB, 0, 0)))
    value(cuda.cuMemMap(address, 4 * MIB, 0, multicast, 0))
    value(cuda.cuMemSetAccess(address, 4 * MIB, [access()], 1))
    value(cuda.cuMemsetD8(address, 0, 16))
    assert code(cuda.cuMulticastUnbind(multicast, 1, 0, 4 * MIB)) == INVALID
    value(cuda.cuMulticastUnbind(multicast, 0, 0, 4 * MIB))


def test_bound_memory_lives_as_long_as_the_object(cuda: Any) -> None:
    multicast = value(cuda.cuMulticastCreate(team(4 * MIB, 1)))
    value(cuda.cuMulticastAddDevice(multicast, 0))
    memory = value(cuda.cuMemCreate(4 * MIB, properties(), 0))
    value(cuda.cuMulticastBindMem(multicast, 0, memory, 0, 4 * MIB, 0))
    value(cuda.cuMemRelease(memory))
    assert cuda.cuMemGetInfo()[1] == 60 * MIB
    value(cuda.cuMemRelease(multicast))
    assert cuda.cuMemGetInfo()[1] == 64 * MIB
