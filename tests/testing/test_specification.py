from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fi_shim.testing import faults, specification
from fi_shim.testing.faults import Fault
from fi_shim.testing.specification import Specification

GIB = 1 << 30
MIB = 1 << 20


@given(
    count=st.integers(1, 64),
    capacity=st.integers(1, 2000),
    short=st.integers(0, 63),
    multicast=st.sampled_from(["off", "2MiB", "32MiB", "512MiB"]),
    granularity=st.sampled_from(["2MiB", "4MiB"]),
    fabric=st.sampled_from(["off", "on", "denied"]),
    order=st.permutations(range(4)),
)
def test_what_is_written_is_what_is_read(
    *, count: int, capacity: int, short: int, multicast: str, granularity: str, fabric: str, order: list[int]
) -> None:
    device = short % count
    options = [f"{device}=600MiB", f"multicast={multicast}", f"granularity={granularity}", f"fabric={fabric}"]
    read = specification.parse(";".join([f"{count}x{capacity}MiB", *(options[place] for place in order)]))
    capacities = [capacity * MIB] * count
    capacities[device] = 600 * MIB
    size = 0 if multicast == "off" else int(multicast[:-3]) * MIB
    assert read == Specification(tuple(capacities), size, int(granularity[:-3]) * MIB, fabric)


def test_defaults() -> None:
    assert specification.parse("4x8GiB") == Specification((8 * GIB,) * 4, 512 * MIB, 2 * MIB, "off")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "''"),
        ("4", "'4'"),
        ("0x8GiB", "'0x8GiB'"),
        ("4x8", "'8'"),
        ("4x8GB", "'8GB'"),
        ("4x-1GiB", "'-1GiB'"),
        ("4x8GiB;4=1GiB", "no device 4"),
        ("4x8GiB;fabric=maybe", "fabric=maybe"),
        ("4x8GiB;multicast=3MiB", "multicast=3MiB"),
        ("4x8GiB;granularity=1MiB", "granularity=1MiB"),
        ("4x8GiB;colour=red", "colour=red"),
        ("4x8GiB;fabric", "'fabric'"),
    ],
)
def test_what_is_not_understood_is_named(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        specification.parse(text)


def test_faults() -> None:
    pytest.importorskip("cuda.bindings.driver")
    read = faults.parse(
        "rank=1,call=cuMemMap,n=2,error=CUDA_ERROR_OUT_OF_MEMORY; call=cudaMalloc,error=cudaErrorMemoryAllocation;"
        "rank=0,call=lamport_initialize,error=exception;call=cuMemCreate,action=sleep:0.5"
    )
    assert read == (
        Fault("cuMemMap", 2, 1, "CUDA_ERROR_OUT_OF_MEMORY"),
        Fault("cudaMalloc", 1, None, "cudaErrorMemoryAllocation"),
        Fault("lamport_initialize", 1, 0, "exception"),
        Fault("cuMemCreate", 1, None, "", "sleep:0.5"),
    )
    assert faults.parse("") == ()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("rank=1,call=cuMemMapp,error=exception", "cuMemMapp"),
        ("rank=1,error=exception", "not a call"),
        ("call=cuMemMap", "neither error= nor action="),
        ("call=cuMemMap,error=CUDA_ERROR_NONE", "CUDA_ERROR_NONE"),
        ("call=cuMemMap,error=exception,n=0", "'0'"),
        ("call=cuMemMap,error=exception,rank=one", "'one'"),
        ("call=cuMemMap,error=exception,when=now", "when=now"),
        ("call=cuMemMap,call=cuMemMap,error=exception", "call=cuMemMap"),
        ("call=cuMemMap,action=explode", "explode"),
        ("call=cuMemMap,action=sleep:long", "sleep:long"),
    ],
)
def test_a_fault_that_is_not_understood_is_named(text: str, named: str) -> None:
    pytest.importorskip("cuda.bindings.driver")
    with pytest.raises(ValueError, match=named):
        faults.parse(text)
