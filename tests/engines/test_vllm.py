"""vLLM's real module on real FlashInfer: choose a backend, fall back, ask, clean up; with one rank in trouble, and without the shim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from engines.driven import VLLM_DAILY, driven, releases, shares_through_torch, version
from engines.endings import SHIM_OFF, both, leaves_a_peer_waiting
from packaging.version import Version

if TYPE_CHECKING:
    from collections.abc import Callable

    from creation.pool import Team

pytestmark = pytest.mark.flashinfer

RELEASES = driven(releases("vllm", fixes=True), daily=VLLM_DAILY)
PREFERS_MNNVL_SINCE = "0.25"
PREFERRING_MNNVL = releases("vllm", PREFERS_MNNVL_SINCE)
QUANTISED_ON_MNNVL_SINCE = "0.26"
ASKS_THE_VALIDATOR_SINCE = "0.29"
VALIDATOR_SAYS = "Workspace is insufficient"
MULTICAST_HERE_ONLY: dict[str, Any] = {"each": {1: {"FI_SHIM_SIMULATE": "2x8GiB;multicast=off"}}}


def fell_back_to(backend: str | None, ranks: Team) -> None:
    """Both ranks have this workspace or none, and an all-reduce works either way."""
    assert both(ranks, "workspace") == backend
    assert both(ranks, "all_reduce") == ("fused" if backend else "plain")


def on_one_node(release: str, since: str = PREFERS_MNNVL_SINCE) -> str:
    """What vLLM chooses by itself."""
    return "mnnvl" if version(release) >= Version(since) else "trtllm"


@pytest.mark.parametrize("release", RELEASES)
def test_all_is_well(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release, backend="auto")
    fell_back_to(on_one_node(release), ranks)
    assert both(ranks, "workspace", quantised=True) == on_one_node(release, QUANTISED_ON_MNNVL_SINCE)
    patches = ranks.all("status")[0]["patches"]
    assert {patches[name]["state"] for name in ("creation", "validator")} == {"applied"}
    assert ranks.ranks[0].said().count("event=active") == 1
    both(ranks, "clean_up")
    fell_back_to(on_one_node(release), ranks)


@pytest.mark.parametrize("release", driven(releases("vllm"), daily=()))
def test_cleaning_up_leaves_no_more_than_without_the_shim(engine: Callable[..., Team], release: str) -> None:
    left = []
    for environ in ({}, SHIM_OFF):
        ranks = engine(release, backend="auto", environ=environ)
        fell_back_to(on_one_node(release), ranks)
        both(ranks, "workspace", quantised=True)
        both(ranks, "clean_up")
        both(ranks, "all_reduce")
        both(ranks, "clean_up")
        left.append(ranks.all("left"))
    assert left[0] == left[1]


@pytest.mark.parametrize("release", RELEASES)
def test_one_rank_is_short_of_either(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release, backend="auto", simulate="2x8GiB;1=4MiB")
    fell_back_to(None, ranks)
    for status in ranks.all("status"):
        assert [decline["what"].split()[0] for decline in status["declines"]] == [*dict.fromkeys((on_one_node(release), "trtllm"))]


MNNVL_ON_ONE_RANK_ONLY: dict[str, dict[str, Any]] = {
    "no multicast": MULTICAST_HERE_ONLY,
    "too little for a multicast object": {"simulate": "2x8GiB;1=300MiB"},
    "binding fails": {"faults": "rank=1,call=cuMulticastBindMem,error=CUDA_ERROR_OUT_OF_MEMORY"},
    "the object cannot be made": {"faults": "rank=0,call=cuMulticastCreate,error=CUDA_ERROR_OUT_OF_MEMORY"},
}


def only_on_one_rank() -> list[Any]:
    """What torch does by itself with multicast objects is not simulated."""
    return [
        parameters
        for reason in MNNVL_ON_ONE_RANK_ONLY
        for parameters in driven((one for one in PREFERRING_MNNVL if not shares_through_torch(one)), reason, daily=VLLM_DAILY)
    ]


@pytest.mark.parametrize(("release", "reason"), only_on_one_rank())
def test_mnnvl_fails_on_one_rank_and_all_take_trtllm(engine: Callable[..., Team], release: str, reason: str) -> None:
    fell_back_to("trtllm", engine(release, backend="auto", **MNNVL_ON_ONE_RANK_ONLY[reason]))


@pytest.mark.parametrize(("release", "reason"), only_on_one_rank())
def test_without_the_shim_that_hangs(engine: Callable[..., Team], release: str, reason: str) -> None:
    leaves_a_peer_waiting(engine(release, backend="auto", **MNNVL_ON_ONE_RANK_ONLY[reason], environ=SHIM_OFF), "workspace")


@pytest.mark.parametrize("environ", [{}, SHIM_OFF])
@pytest.mark.parametrize("release", driven((one for one in PREFERRING_MNNVL if not shares_through_torch(one)), daily=VLLM_DAILY))
def test_no_multicast_anywhere(engine: Callable[..., Team], release: str, environ: dict[str, str]) -> None:
    fell_back_to("trtllm", engine(release, backend="auto", simulate="2x8GiB;multicast=off", environ=environ))


NO_MULTICAST = {"on one rank": MULTICAST_HERE_ONLY, "anywhere": {"simulate": "2x8GiB;multicast=off"}}


@pytest.mark.parametrize("where", NO_MULTICAST)
@pytest.mark.parametrize("release", driven(filter(shares_through_torch, PREFERRING_MNNVL), daily=()))
def test_no_multicast_where_flashinfer_shares_through_torch(engine: Callable[..., Team], release: str, where: str) -> None:
    """Without the shim vLLM takes a workspace for multicast that has no multicast address."""
    fell_back_to("trtllm", engine(release, backend="auto", **NO_MULTICAST[where]))
    without = engine(release, backend="auto", **NO_MULTICAST[where], environ=SHIM_OFF)
    assert both(without, "workspace") == "mnnvl"
    assert 0 in without.all("multicast_address")


@pytest.mark.parametrize("release", driven(releases("vllm", before="0.24"), daily=()))
def test_data_parallel_ranks_where_vllm_passes_no_group(engine: Callable[..., Team], release: str) -> None:
    """FlashInfer falls back to WORLD, whose other ranks may be busy with other requests."""
    ranks = engine(release, backend="trtllm", size=4, simulate="4x8GiB;3=4MiB")
    assert ranks.results(ranks.start("workspace", only=(0, 1))) == ["trtllm"] * 2
    assert ranks.results(ranks.start("workspace", only=(2, 3))) == [None] * 2
    assert ranks.all("all_reduce") == ["fused", "fused", "plain", "plain"]
    without = engine(release, backend="trtllm", size=4, environ=SHIM_OFF)
    leaves_a_peer_waiting(without, "workspace", only=(0, 1))


@pytest.mark.parametrize("environ", [{}, SHIM_OFF])
@pytest.mark.parametrize("release", driven(releases("vllm"), daily=()))
def test_trtllm_fails_on_one_rank(engine: Callable[..., Team], release: str, environ: dict[str, str]) -> None:
    ranks = engine(release, backend="trtllm", faults="rank=1,call=cuMemMap,error=CUDA_ERROR_OUT_OF_MEMORY", environ=environ)
    if environ:
        leaves_a_peer_waiting(ranks, "workspace")
    else:
        fell_back_to(None, ranks)


@pytest.mark.parametrize(("environ", "lines"), [({}, 0), (SHIM_OFF, 20)])
@pytest.mark.parametrize("release", driven(releases("vllm", ASKS_THE_VALIDATOR_SINCE), daily=VLLM_DAILY))
def test_the_flood(engine: Callable[..., Team], release: str, environ: dict[str, str], lines: int) -> None:
    ranks = engine(release, backend="trtllm", environ=environ)
    assert both(ranks, "workspace", tokens=128) == "trtllm"
    for _ in range(10):
        assert both(ranks, "all_reduce", dtype="float32") == "plain"
        assert both(ranks, "all_reduce", tokens=129) == "plain"
    assert ranks.ranks[0].said().count(VALIDATOR_SAYS) == lines


@pytest.mark.parametrize("release", driven(releases("vllm"), daily=VLLM_DAILY))
def test_a_retry_meets_the_remembered_decline(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release, backend="trtllm", simulate="2x8GiB;1=4MiB")
    fell_back_to(None, ranks)
    before = ranks.all("calls")
    both(ranks, "clean_up")  # vLLM forgets that it failed
    fell_back_to(None, ranks)
    assert ranks.all("calls") == before
