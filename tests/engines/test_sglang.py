"""SGLang's real modules on real FlashInfer: pre-initialise, ask, grow, re-create, clean up; with one rank in trouble, and without the shim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from engines.driven import FLASHINFER, SGLANG_DAILY, driven, releases, version
from engines.endings import SHIM_OFF, both, fusion_is_off
from packaging.version import Version

if TYPE_CHECKING:
    from collections.abc import Callable

    from creation.pool import Team

pytestmark = pytest.mark.flashinfer

RELEASES = driven(releases("sglang", "0.5.11", fixes=True), daily=SGLANG_DAILY)
NEVER_SHRINKS_SINCE = Version("0.5.14")
FITS = {"unavailable": False, "moe": {"backend": "trtllm", "tokens": 2048, "fp32": False}}
OWN_PREFLIGHT = "cuMulticastGetGranularity"  # which FlashInfer's trtllm workspaces of these releases do not ask for
ASKS_LIKE_THE_COPY = ("0.6.8.post1",)


@pytest.mark.parametrize("release", RELEASES)
def test_all_is_well(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release)
    told = both(ranks, "pre_initialize")
    assert told == {**FITS, "attention": FITS["moe"]}
    calls = both(ranks, "calls")
    assert calls["cuMemCreate"] == 2 * (3 + 3)  # two workspaces, each probed once and allocated once
    assert OWN_PREFLIGHT not in calls or FLASHINFER[release] in ASKS_LIKE_THE_COPY
    assert both(ranks, "forward") == "fused"
    assert [both(ranks, "ask", tokens=tokens) for tokens in (2048, 2049)] == [True, False]
    assert both(ranks, "forward", tokens=4096) == "fused"
    assert both(ranks, "told")["attention"]["tokens"] == 4096
    both(ranks, "clean_up")
    assert both(ranks, "told") == {"unavailable": False, "moe": None, "attention": None}
    assert both(ranks, "pre_initialize")["attention"]["tokens"] == (4096 if version(release) >= NEVER_SHRINKS_SINCE else 2048)
    assert both(ranks, "all_reduce") == 2.0


@pytest.mark.parametrize("release", driven(releases("sglang"), daily=()))
def test_cleaning_up_leaves_no_more_than_without_the_shim(engine: Callable[..., Team], release: str) -> None:
    left = []
    for environ in ({}, SHIM_OFF):
        ranks = engine(release, environ=environ)
        for tokens in (16, 4096):
            assert both(ranks, "forward", tokens=tokens) == "fused"
        both(ranks, "clean_up")
        left.append(ranks.all("left"))
    assert left[0] == left[1]


@pytest.mark.parametrize("release", driven(releases("sglang", "0.5.11", fixes=True), daily=("sglang-0.5.11", *SGLANG_DAILY)))
def test_one_rank_is_short(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release, simulate="2x8GiB;1=4MiB")
    both(ranks, "pre_initialize")
    fusion_is_off(ranks)
    for status in ranks.all("status"):
        assert len(status["declines"]) == 1
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
    fusion_is_off(without)


@pytest.mark.parametrize("release", driven(releases("sglang", "0.5.12", "0.5.23"), daily=SGLANG_DAILY))
def test_what_earlier_ones_refuse(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release, simulate=TOO_LITTLE_FOR_THE_COPY)
    assert not both(ranks, "pre_initialize")["unavailable"]
    without = engine(release, simulate=TOO_LITTLE_FOR_THE_COPY, environ=SHIM_OFF)
    both(without, "pre_initialize")
    fusion_is_off(without)


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
    fusion_is_off(ranks)
    assert all(OWN_PREFLIGHT in calls for calls in ranks.all("calls"))


@pytest.mark.parametrize("release", ["sglang-0.5.23"])
def test_sglangs_own_stays_in_force_where_nothing_is_known_of_flashinfer(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release, simulate=TOO_LITTLE_FOR_THE_COPY)
    both(ranks, "break_function", name="fi_shim.drift.knowledge:Knowledge.required_release")
    both(ranks, "pre_initialize")
    fusion_is_off(ranks)
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
    fusion_is_off(ranks)
    assert OWN_PREFLIGHT not in ranks.result(ranks.ranks[1 - without].start("calls"))


@pytest.mark.parametrize("release", driven(releases("sglang", "0.5.14"), daily=SGLANG_DAILY))
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
