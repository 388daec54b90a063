"""`fi_shim.plan` against what this release's own creation code asks for, over shapes that nobody listed.

usage: plan_equals_real.py EXAMPLES
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

warnings.simplefilter("ignore")

import torch  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import fi_shim  # noqa: E402
from fi_shim.testing.recording import record  # noqa: E402
from fi_shim.workspace.planning import installed_flashinfer  # noqa: E402

MIB = 1 << 20
VERSION = installed_flashinfer()
SEEN = {"compared": 0, "refused": 0}

# Sizes just below, at and just above the pad's edge of a 2 MiB block, and anything else.
around_an_edge = st.builds(lambda blocks, bytes_off: (blocks * 2 * MIB - 2048) // 2 + bytes_off, st.integers(1, 300), st.integers(-9, 9))
shapes = st.fixed_dictionaries(
    {
        "world_size": st.integers(1, 16),
        "max_token_num": st.one_of(st.integers(1, 16384), st.just(1)),
        "hidden_dim": st.one_of(st.integers(1, 20000), around_an_edge, st.sampled_from([2880, 4096, 7168, 8192, 12288, 16384])),
        "dtype": st.sampled_from(["bfloat16", "float16", "float32", "float8_e4m3fn", "float64"]),
        "allocation_granularity": st.sampled_from([2 * MIB, 4 * MIB, 64 * MIB]),
        "multicast_granularity": st.sampled_from([2 * MIB, 32 * MIB, 512 * MIB, 1024 * MIB]),
        "signal_pad_size": st.sampled_from([2048, 9216, 4096]),
    }
)


def outcome(function: Any, **arguments: Any) -> Any:
    try:
        return function(**arguments)
    except ValueError:
        return "refused"


def check(backend: str, shape: dict[str, Any], *, confidential: bool = False, **options: Any) -> None:
    planned = outcome(fi_shim.plan, flashinfer_version=VERSION, backend=backend, confidential_computing=confidential, **shape, **options)
    real = outcome(record, backend=backend, **{**shape, "dtype": getattr(torch, shape["dtype"])}, **options)
    if planned == "refused" or real == "refused":
        assert planned == real, (planned, real)
        SEEN["refused"] += 1
        return
    assert [(a.allocator, a.requested, a.allocated) for a in planned.allocations] == [
        (a.allocator, a.requested, a.allocated) for a in real.allocations
    ]
    assert planned.total_bytes == sum(a.allocated for a in real.allocations)
    assert {key: value for key, value in planned.metadata.items() if real.metadata.get(key, value) != value} == {}
    if backend == "trtllm":
        assert set(real.metadata) - set(planned.metadata) <= {"tp_rank", "control_flag_ptr"}
    SEEN["compared"] += 1


def main() -> None:
    options: dict[str, Any] = {
        "max_examples": int(sys.argv[1]), "deadline": None, "database": None, "derandomize": True,
        "suppress_health_check": list(HealthCheck),
    }  # fmt: skip

    @settings(**options)
    @given(shapes)
    def trtllm(shape: dict[str, Any]) -> None:
        check("trtllm", shape)

    @settings(**options)
    @given(shapes, st.booleans())
    def mnnvl(shape: dict[str, Any], force: bool) -> None:
        check("mnnvl", shape, force_oneshot_support=force)

    @settings(**options)
    @given(shapes, st.sampled_from(["trtllm", "mnnvl"]))
    def confidential(shape: dict[str, Any], backend: str) -> None:
        check(backend, shape, confidential=True)

    trtllm()
    mnnvl()
    os.environ["FLASHINFER_CONFIDENTIAL_COMPUTE"] = "1"  # releases before 0.6.16 do not ask, and neither must the plan
    confidential()
    print(json.dumps(SEEN))


main()
