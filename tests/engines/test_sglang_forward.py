"""SGLang in forward, after pre-initialisation: where a decline would be wrong, nothing is declined."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from engines.driven import SGLANG_DAILY, driven, releases
from engines.endings import both, fusion_is_off

if TYPE_CHECKING:
    from collections.abc import Callable

    from creation.pool import Team

pytestmark = pytest.mark.flashinfer

BEFORE_THE_FIX = driven(releases("sglang", "0.5.11", "0.5.21"), daily=SGLANG_DAILY)
OWN_PREFLIGHT = "cuMulticastGetGranularity"
TOO_LITTLE_TO_GROW = {"sglang-0.5.11": ("3300MiB", 65536)}  # its FlashInfer allocates in pieces of 512 MiB


@pytest.mark.parametrize("release", BEFORE_THE_FIX)
def test_no_decline_in_forward_where_that_would_be_wrong(engine: Callable[..., Team], release: str) -> None:
    """Growing in forward, with too little memory on one rank for our vote's taste: as without the shim, SGLang's own preflight decides."""
    memory, tokens = TOO_LITTLE_TO_GROW.get(release, ("1300MiB", 4096))
    ranks = engine(release, simulate=f"2x8GiB;1={memory}")
    assert not both(ranks, "pre_initialize", tokens=128)["unavailable"]
    assert both(ranks, "forward", tokens=tokens) == "fell back"
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


@pytest.mark.parametrize("release", driven(releases("sglang", "0.5.11", "0.5.21"), daily=SGLANG_DAILY[1:]))
def test_no_decline_at_all_where_nothing_tells_forward(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release, simulate="2x8GiB;1=4MiB", environ={"FI_SHIM_DISABLE": "sglang_forward"})
    both(ranks, "pre_initialize")
    fusion_is_off(ranks)
    assert [status["declines"] for status in ranks.all("status")] == [[], []]


@pytest.mark.parametrize("release", driven(releases("sglang", "0.5.21"), daily=SGLANG_DAILY))
def test_a_decline_in_forward_where_the_norm_falls_back(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release, simulate="2x8GiB;1=200MiB")
    assert not both(ranks, "pre_initialize", tokens=128)["unavailable"]
    assert both(ranks, "forward", tokens=16384) == "fell back"
    assert [len(status["declines"]) for status in ranks.all("status")] == [1, 1]
    assert both(ranks, "all_reduce") == 2.0
