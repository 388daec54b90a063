from __future__ import annotations

import gc
import logging
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("flashinfer", reason="no FlashInfer is importable")

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fi_shim.testing import import_aids
from fi_shim.testing.recording import Recorded, record

sys.path.insert(0, str(Path(__file__).parent))
import sizes

pytestmark = pytest.mark.flashinfer

DTYPES = {torch.bfloat16: 2, torch.float16: 2, torch.float32: 4}
CONFIDENTIAL = "FLASHINFER_CONFIDENTIAL_COMPUTE"


@pytest.fixture(scope="module")
def version() -> str:
    import_aids.install()
    import flashinfer

    return flashinfer.__version__


def open_descriptors() -> list[str]:
    return sorted(
        str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink() and "/fd" not in str(entry.readlink())
    )


def as_tuples(recorded: Recorded) -> list[tuple[str, int, int]]:
    return [(one.allocator, one.requested, one.allocated) for one in recorded.allocations]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    world_size=st.integers(1, 16),
    tokens=st.integers(1, 9000),
    hidden=st.integers(1, 1024).map(lambda x: 16 * x),
    dtype=st.sampled_from(list(DTYPES)),
    g=st.sampled_from([2 << 20, 4 << 20]),
    m=st.sampled_from([2 << 20, 32 << 20, 512 << 20]),
    pad=st.sampled_from([2048, 9216]),
)
def test_trtllm_is_as_the_table_says(
    version: str, world_size: int, tokens: int, hidden: int, dtype: torch.dtype, g: int, m: int, pad: int
) -> None:
    recorded = record(
        backend="trtllm",
        world_size=world_size,
        max_token_num=tokens,
        hidden_dim=hidden,
        dtype=dtype,
        allocation_granularity=g,
        multicast_granularity=m,
        signal_pad_size=pad,
    )
    expected = sizes.trtllm(version, world_size, tokens, hidden, DTYPES[dtype], g=g, m=max(g, m), pad=pad, confidential=False)
    assert as_tuples(recorded) == expected
    assert recorded.metadata["tp_size"] == world_size
    assert recorded.metadata["hidden_dim"] == hidden


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    world_size=st.integers(1, 16),
    tokens=st.integers(1, 9000),
    hidden=st.integers(1, 1024).map(lambda x: 16 * x),
    dtype=st.sampled_from(list(DTYPES)),
    oneshot=st.booleans(),
    m=st.sampled_from([2 << 20, 512 << 20]),
)
def test_mnnvl_is_as_the_table_says(
    version: str,
    world_size: int,
    tokens: int,
    hidden: int,
    dtype: torch.dtype,
    oneshot: bool,
    m: int,
) -> None:
    element = DTYPES[dtype]
    expected = sizes.mnnvl(version, world_size, tokens, hidden, element, g=2 << 20, m=m, pad=2048, oneshot=oneshot)
    request = {"backend": "mnnvl", "world_size": world_size, "max_token_num": tokens, "hidden_dim": hidden, "dtype": dtype}
    if expected[0][1] // 3 > 2**32 - 1:
        with pytest.raises(ValueError, match="UINT32_MAX"):
            record(**request, force_oneshot_support=oneshot, multicast_granularity=m)
        return
    recorded = record(**request, force_oneshot_support=oneshot, multicast_granularity=m)
    assert as_tuples(recorded) == expected
    assert recorded.metadata["workspace_size_bytes"] == 3 * recorded.metadata["buffer_size_bytes"]


def test_confidential_computing_is_asked_each_time(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request = {"backend": "trtllm", "world_size": 2, "max_token_num": 2048, "hidden_dim": 4096, "dtype": torch.bfloat16}
    for setting in ("1", "0"):
        monkeypatch.setenv(CONFIDENTIAL, setting)
        expected = sizes.trtllm(version, 2, 2048, 4096, 2, g=2 << 20, m=512 << 20, pad=2048, confidential=setting == "1")
        assert as_tuples(record(**request)) == expected


def test_a_recording_is_quick_and_takes_no_memory() -> None:
    request = {"backend": "trtllm", "world_size": 16, "max_token_num": 8192, "hidden_dim": 16384, "dtype": torch.bfloat16}
    record(**request)
    started = time.perf_counter()
    for _ in range(20):
        record(**request)
    assert (time.perf_counter() - started) / 20 < 0.05  # 3 to 9 ms on an idle machine


def test_flashinfer_is_left_as_it_was() -> None:
    from flashinfer.comm import mnnvl, trtllm_ar, trtllm_mnnvl_ar

    modules = [mnnvl, trtllm_ar, trtllm_mnnvl_ar, sys.modules["flashinfer.comm.allreduce"], sys.modules["flashinfer.cuda_utils"]]
    symmetric = sys.modules.get("flashinfer.comm.torch_symmetric_memory")
    modules += [symmetric] if symmetric else []
    owners = [*modules, mnnvl.SymmDeviceMemory, sys.modules["flashinfer.comm.workspace_base"].AllReduceFusionWorkspace]
    before = [dict(vars(owner)) for owner in owners]
    handlers, descriptors = list(logging.getLogger().handlers), open_descriptors()
    request = {"world_size": 4, "hidden_dim": 4096, "dtype": torch.float32}
    for backend in ("trtllm", "mnnvl"):
        record(backend=backend, max_token_num=64, **request)
    with pytest.raises(ValueError, match="UINT32_MAX"):
        record(backend="mnnvl", max_token_num=1 << 20, **request)
    with pytest.raises(RuntimeError, match="Unknown backend"):
        record(backend="none", max_token_num=64, **request)
    gc.collect()
    assert [dict(vars(owner)) for owner in owners] == before
    assert list(logging.getLogger().handlers) == handlers
    assert open_descriptors() == descriptors
    assert not getattr(trtllm_ar, "_symm_workspace_refs", {})
