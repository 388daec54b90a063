"""SGLang's real modules on real FlashInfer: pre-initialise, ask, grow, re-create, clean up; with one rank in trouble, and without the shim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from engines.endings import SHIM_OFF, both, leaves_a_peer_waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from creation.pool import Team

pytestmark = pytest.mark.flashinfer

RELEASES = ("sglang-0.5.15", "sglang-0.5.20", "sglang-0.5.23")
BEFORE_THE_FIX = RELEASES[:2]
FITS = {"unavailable": False, "moe": {"backend": "trtllm", "tokens": 2048, "fp32": False}}
OWN_PREFLIGHT = "cuMulticastGetGranularity"  # which FlashInfer's trtllm workspaces of these releases do not ask for


def fell_back(ranks: Team) -> None:
    """Fusion is off on both ranks, and what remains works."""
    assert both(ranks, "told") == {"unavailable": True, "moe": None, "attention": None}
    assert both(ranks, "forward") == "fell back"
    assert both(ranks, "all_reduce") == 2.0


@pytest.mark.parametrize("release", RELEASES)
def test_all_is_well(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release)
    told = both(ranks, "pre_initialize")
    assert told == {**FITS, "attention": FITS["moe"]}
    calls = both(ranks, "calls")
    assert calls["cuMemCreate"] == 2 * (3 + 3)  # two workspaces, each probed once and allocated once
    assert OWN_PREFLIGHT not in calls
    assert both(ranks, "forward") == "fused"
    assert [both(ranks, "ask", tokens=tokens) for tokens in (2048, 2049)] == [True, False]
    assert both(ranks, "forward", tokens=4096) == "fused"
    assert both(ranks, "told")["attention"]["tokens"] == 4096
    both(ranks, "clean_up")
    assert both(ranks, "told") == {"unavailable": False, "moe": None, "attention": None}
    assert both(ranks, "pre_initialize")["attention"]["tokens"] == 4096
    assert both(ranks, "all_reduce") == 2.0


@pytest.mark.parametrize("release", RELEASES)
def test_one_rank_is_short(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release, simulate="2x8GiB;1=4MiB")
    both(ranks, "pre_initialize")
    fell_back(ranks)
    for status in ranks.all("status"):
        assert "rank 1" in status["declines"][0]["reason"]


TOO_LITTLE_FOR_THE_COPY = "2x8GiB;1=1300MiB"
FALSE_REFUSALS: dict[str, dict[str, Any]] = {
    "sized as FlashInfer 0.6.9 did": {"simulate": TOO_LITTLE_FOR_THE_COPY},
    "GPUs without multicast": {"simulate": "2x8GiB;multicast=off"},
    "mnnvl sized as trtllm": {"simulate": TOO_LITTLE_FOR_THE_COPY, "backend": "mnnvl"},
    "fabric handles denied": {"simulate": "2x8GiB;fabric=denied", "flashinfer": "0.7.4"},
}


@pytest.mark.parametrize("reason", FALSE_REFUSALS)
@pytest.mark.parametrize("release", ["sglang-0.5.23"])
def test_what_sglang_refuses_and_flashinfer_can(engine: Callable[..., Team], release: str, reason: str) -> None:
    how = FALSE_REFUSALS[reason]
    ranks = engine(release, **how)
    told = both(ranks, "pre_initialize")
    assert not told["unavailable"]
    assert told["moe"]["backend"] == told["attention"]["backend"] == how.get("backend", "trtllm")
    without = engine(release, **how, environ=SHIM_OFF)
    both(without, "pre_initialize")
    fell_back(without)


@pytest.mark.parametrize("release", BEFORE_THE_FIX)
def test_what_earlier_ones_refuse(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release, simulate=TOO_LITTLE_FOR_THE_COPY)
    assert not both(ranks, "pre_initialize")["unavailable"]
    without = engine(release, simulate=TOO_LITTLE_FOR_THE_COPY, environ=SHIM_OFF)
    both(without, "pre_initialize")
    fell_back(without)


NOT_IN_FORCE: dict[str, dict[str, str]] = {
    "switched off": {"FI_SHIM_DISABLE": "sglang_preflight"},
    "creation switched off": {"FI_SHIM_DISABLE": "creation"},
    "no probe": {"FI_SHIM_PREFLIGHT": "off"},
}


@pytest.mark.parametrize("reason", NOT_IN_FORCE)
@pytest.mark.parametrize("release", ["sglang-0.5.23"])
def test_sglangs_own_stays_in_force_where_ours_is_not(engine: Callable[..., Team], release: str, reason: str) -> None:
    ranks = engine(release, simulate=TOO_LITTLE_FOR_THE_COPY, environ=NOT_IN_FORCE[reason])
    both(ranks, "pre_initialize")
    fell_back(ranks)
    assert all(OWN_PREFLIGHT in calls for calls in ranks.all("calls"))


@pytest.mark.parametrize("release", ["sglang-0.5.23"])
def test_sglangs_own_stays_in_force_where_nothing_is_known_of_flashinfer(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release, simulate=TOO_LITTLE_FOR_THE_COPY)
    both(ranks, "break_function", name="fi_shim.drift.knowledge:Knowledge.required_release")
    both(ranks, "pre_initialize")
    fell_back(ranks)
    assert all(OWN_PREFLIGHT in calls for calls in ranks.all("calls"))


@pytest.mark.parametrize("release", ["sglang-0.5.23"])
def test_a_fault_of_ours_on_one_rank_does_not_keep_it_from_the_vote(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release)
    ranks.result(ranks.ranks[1].start("break_function", name="fi_shim.engines.sglang_preflight:_steps_aside"))
    assert not both(ranks, "pre_initialize")["unavailable"]
    assert OWN_PREFLIGHT in ranks.result(ranks.ranks[1].start("calls"))


@pytest.mark.parametrize("without", [0, 1])
@pytest.mark.parametrize("release", ["sglang-0.5.23"])
def test_a_rank_without_the_shim_meets_the_others_in_sglangs_vote(engine: Callable[..., Team], release: str, without: int) -> None:
    """Stepping aside must not skip the collective: the other rank is in it."""
    ranks = engine(release, simulate=f"2x8GiB;{without}=4MiB", each={without: SHIM_OFF})
    both(ranks, "pre_initialize")
    fell_back(ranks)
    assert OWN_PREFLIGHT not in ranks.result(ranks.ranks[1 - without].start("calls"))


@pytest.mark.parametrize("release", RELEASES)
def test_an_fp32_tensor(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release)
    both(ranks, "pre_initialize")
    assert both(ranks, "forward", dtype="float32") == "fused"
    workspace = both(ranks, "told")["attention"]
    assert workspace["fp32"] is True
    # The two-shot kernel writes more than two ranks' first buffer holds, up to FlashInfer 0.7.1.
    assert workspace["tokens"] == (2048 if release == "sglang-0.5.23" else 4096)
    assert both(ranks, "forward") == "fused"
    without = engine(release, environ=SHIM_OFF)
    both(without, "pre_initialize")
    assert both(without, "forward", dtype="float32") == "fell back"
    assert both(without, "told")["unavailable"] is True


@pytest.mark.parametrize("release", BEFORE_THE_FIX)
def test_no_decline_in_forward_where_that_would_be_wrong(engine: Callable[..., Team], release: str) -> None:
    """Growing in forward, with too little memory on one rank for our vote's taste: as without the shim, SGLang's own preflight decides."""
    ranks = engine(release, simulate="2x8GiB;1=1300MiB")
    assert not both(ranks, "pre_initialize", tokens=128)["unavailable"]
    assert both(ranks, "forward", tokens=4096) == "fell back"
    assert all(OWN_PREFLIGHT in calls for calls in ranks.all("calls"))
    for status, rank in zip(ranks.all("status"), ranks.ranks, strict=True):
        assert status["declines"] == []
        record = status["patches"]["sglang_forward"]
        assert record["state"] == "applied"
        assert record["reason"] == f"SGLang {release.partition('-')[2]}: a workspace is declined at pre-initialisation or not at all"
        assert rank.said().count("event=not_voted") <= 1


@pytest.mark.parametrize("release", BEFORE_THE_FIX)
def test_in_forward_flashinfer_builds_without_a_vote(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release)
    both(ranks, "pre_initialize", tokens=128)
    assert both(ranks, "forward", tokens=4096) == "fused"
    for rank in ranks.ranks:
        assert rank.said().count("event=not_voted") == 1


@pytest.mark.parametrize("release", ["sglang-0.5.20"])
def test_no_decline_at_all_where_nothing_tells_forward(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release, simulate="2x8GiB;1=4MiB", environ={"FI_SHIM_DISABLE": "sglang_forward"})
    both(ranks, "pre_initialize")
    fell_back(ranks)
    assert [status["declines"] for status in ranks.all("status")] == [[], []]


@pytest.mark.parametrize("release", ["sglang-0.5.23"])
def test_a_decline_in_forward_where_the_norm_falls_back(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release, simulate="2x8GiB;1=200MiB")
    assert not both(ranks, "pre_initialize", tokens=128)["unavailable"]
    assert both(ranks, "forward", tokens=16384) == "fell back"
    assert [len(status["declines"]) for status in ranks.all("status")] == [1, 1]
    assert both(ranks, "all_reduce") == 2.0


LATER: dict[str, str] = {
    "cuMemCreate after the probe": "call=cuMemCreate,n=4,error=CUDA_ERROR_OUT_OF_MEMORY",
    "cuMemMap": "call=cuMemMap,error=CUDA_ERROR_OUT_OF_MEMORY",
    "export": "call=cuMemExportToShareableHandle,error=CUDA_ERROR_UNKNOWN",
    "import": "call=cuMemImportFromShareableHandle,error=CUDA_ERROR_UNKNOWN",
    "pointer table": "call=cuMemAlloc,error=CUDA_ERROR_OUT_OF_MEMORY",
    "lamport kernel": "call=lamport_initialize,error=exception",
}
EVERY_DAY = "cuMemMap"
NOT_ON_SYMM_MEM = ("export", "import", "pointer table")  # 0.5.15's FlashInfer allocates through torch


def later_faults() -> list[Any]:
    return [
        pytest.param(release, fault, marks=() if fault == EVERY_DAY else pytest.mark.matrix)
        for release in RELEASES
        for fault in LATER
        if release != "sglang-0.5.15" or fault not in NOT_ON_SYMM_MEM
    ]


@pytest.mark.parametrize(("release", "fault"), later_faults())
def test_one_rank_fails_while_flashinfer_builds(engine: Callable[..., Team], release: str, fault: str) -> None:
    ranks = engine(release, faults=f"rank=1,{LATER[fault]}")
    both(ranks, "pre_initialize")
    fell_back(ranks)


@pytest.mark.parametrize(("release", "fault"), later_faults())
def test_without_the_shim_that_leaves_a_peer_waiting(engine: Callable[..., Team], release: str, fault: str) -> None:
    leaves_a_peer_waiting(engine(release, faults=f"rank=1,{LATER[fault]}", environ=SHIM_OFF), "pre_initialize")


@pytest.mark.parametrize("release", ["sglang-0.5.23"])
def test_fabric_on_one_rank_only(engine: Callable[..., Team], release: str) -> None:
    how: dict[str, Any] = {"simulate": "2x8GiB;fabric=on", "each": {1: {"FI_SHIM_SIMULATE": "2x8GiB;fabric=off"}}}
    ranks = engine(release, **how)
    both(ranks, "pre_initialize")
    fell_back(ranks)
    leaves_a_peer_waiting(engine(release, **how, environ=SHIM_OFF), "pre_initialize")
