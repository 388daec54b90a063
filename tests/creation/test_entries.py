"""One rank short, all short, none short: whoever builds and however, all ranks end alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from creation.outcomes import all_built, all_declined, nothing_left, prompt

import fi_shim

if TYPE_CHECKING:
    from collections.abc import Callable

    from creation.pool import Team

pytestmark = pytest.mark.flashinfer

HIDDEN = 16384
SMALL = {"tokens": 128, "hidden_dim": 1024}
LARGE = {"trtllm": 400_000_000, "mnnvl": 200_000_000}  # elements (of all ranks, of one) that need from 2 to 4 GB in every release
HUGE = {"trtllm": 1_200_000_000, "mnnvl": 900_000_000}  # that need more than 8 GiB
RELEASES = ("0.6.9", "0.6.17", "0.7.2", "0.7.4")
SHORT = "2000MiB"
GRANULARITIES: dict[str, Any] = {"allocation_granularity": 2 << 20, "multicast_granularity": 512 << 20, "signal_pad_size": 9216}


def request(elements: dict[str, int], backend: str, world_size: int) -> dict[str, int]:
    ranks = world_size if backend == "trtllm" else 1
    return {"tokens": elements[backend] // ranks // HIDDEN, "hidden_dim": HIDDEN}


def needed(release: str, backend: str, world_size: int, tokens: int, hidden_dim: int) -> int:
    shape: dict[str, Any] = {
        "backend": backend,
        "world_size": world_size,
        "max_token_num": tokens,
        "hidden_dim": hidden_dim,
        "dtype": "bfloat16",
    }
    return fi_shim.plan(release, **shape, **GRANULARITIES).total_bytes


@pytest.mark.parametrize("backend", ["trtllm", "mnnvl"])
@pytest.mark.parametrize(
    ("release", "world_size"),
    [*((release, size) for release in RELEASES for size in (2, 4)), ("0.7.2", 8)],
)
def test_all_ranks_build_or_none_does(team: Callable[..., Team], release: str, world_size: int, backend: str) -> None:
    short = world_size - 1
    ranks = team(world_size, release=release, simulate=f"{world_size}x8GiB;{short}={SHORT}")

    asked = request(HUGE, backend, world_size)
    results = ranks.create(backend=backend, **asked)
    verdict = all_declined(results)
    prompt(results)
    assert [record["vote"] for record in verdict["records"]] == ["no"] * world_size

    asked = request(LARGE, backend, world_size)
    results = ranks.create(backend=backend, **asked)
    size = needed(release, backend, world_size, **asked)
    verdict = all_declined(results, f"rank {short}", f"{size:,}", f"{2000 << 20:,}")
    prompt(results)
    assert [record["vote"] for record in verdict["records"]] == [*["yes"] * short, "no"]
    assert {record["bytes_needed"] for record in verdict["records"]} == {size}
    assert [record["bytes_free"] for record in verdict["records"]] == [*[8 << 30] * short, 2000 << 20]
    assert [record["device"] for record in verdict["records"]] == list(range(world_size))
    nothing_left(ranks)

    results = ranks.create(backend=backend, **SMALL, keep=True)
    all_built(results)
    prompt(results)
    assert all(one["own"] for one in ranks.all("left"))


def test_a_short_rank_0_is_no_different(team: Callable[..., Team]) -> None:
    ranks = team(3, simulate="3x8GiB;0=4MiB")
    results = ranks.create()
    verdict = all_declined(results, "rank 0", "free 4,194,304")
    prompt(results)
    assert [record["vote"] for record in verdict["records"]] == ["no", "yes", "yes"]
    nothing_left(ranks)


ENTRIES: dict[str, dict[str, Any]] = {
    "factory by keyword": {},
    "factory by position": {"positional": True, "via": "both"},
    "factory by position, mnnvl": {"positional": True, "backend": "mnnvl"},
    "class by keyword": {"entry": "class", "via": "_group"},
    "class by position": {"entry": "class", "positional": True},
    "class by keyword, mnnvl": {"entry": "class", "backend": "mnnvl"},
    "class by position, mnnvl": {"entry": "class", "backend": "mnnvl", "positional": True},
    "legacy, symmetric": {"entry": "legacy symmetric"},
    "legacy, symmetric, by position": {"entry": "legacy symmetric", "positional": True, "via": "group"},
    "legacy": {"entry": "legacy"},
    "legacy by position": {"entry": "legacy", "positional": True, "via": "group"},
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("release", ["0.6.9", "0.7.2"])
def test_every_entry_declines_on_all_ranks_and_builds_on_all(team: Callable[..., Team], release: str, entry: str) -> None:
    how = dict(ENTRIES[entry])
    if release == "0.6.9" and how.get("via") == "both":
        how["via"] = "_group"  # there is no `group` yet
    backend = how.get("backend", "trtllm")
    ranks = team(2, release=release, simulate=f"2x8GiB;1={SHORT}")
    results = ranks.create(**how, **request(LARGE, backend, 2))
    verdict = all_declined(results, "rank 1")
    prompt(results)
    assert [record["vote"] for record in verdict["records"]] == ["yes", "no"]
    nothing_left(ranks)
    all_built(ranks.create(**how, **SMALL))


def test_the_class_of_mnnvl_with_a_size_of_its_own(team: Callable[..., Team]) -> None:
    ranks = team(2, simulate="2x8GiB;1=1500MiB")
    how: dict[str, Any] = {"entry": "class", "backend": "mnnvl", **SMALL}
    all_built(ranks.create(**how, extra={"buffer_size_in_bytes": 10 << 20}))
    verdict = all_declined(ranks.create(**how, extra={"buffer_size_in_bytes": 1 << 30}), "buffer_size_in_bytes=1073741824")
    assert verdict["records"][1]["bytes_needed"] == (3 << 30) + (512 << 20)


def test_bytes_that_are_free_but_cannot_be_had(team: Callable[..., Team]) -> None:
    """The driver refuses although enough seems free: found by trying."""
    ranks = team(2, faults="rank=1,call=cuMemCreate,n=3,error=CUDA_ERROR_OUT_OF_MEMORY")
    all_declined(ranks.create(), "rank 1", "cuMemCreate answers CUDA_ERROR_OUT_OF_MEMORY")
    nothing_left(ranks)
    ranks.all("reset")
    all_built(ranks.create())


@pytest.mark.parametrize("via", ["group", "_group", "_cpu_group", "both"])
def test_a_subgroup_without_global_rank_0(team: Callable[..., Team], via: str) -> None:
    ranks = team(3, simulate="3x8GiB;2=4MiB", begin=False)
    ranks.begin({"pair": [1, 2]})
    verdict = all_declined(ranks.results(ranks.start("create", only=(1, 2), via=via, group="pair")), "rank 1 (", "device 2) votes no")
    assert [(record["rank"], record["device"], record["vote"]) for record in verdict["records"]] == [(0, 1, "yes"), (1, 2, "no")]
    nothing_left(ranks)


@pytest.mark.parametrize(
    ("release", "backend", "via"), [("0.6.9", "trtllm", "_cpu_group"), ("0.7.2", "mnnvl", "_group"), ("0.7.4", "trtllm", "both")]
)
def test_a_subgroup_without_global_rank_0_builds(team: Callable[..., Team], release: str, backend: str, via: str) -> None:
    ranks = team(3, release=release, begin=False)
    ranks.begin({"pair": [1, 2]})
    all_built(ranks.results(ranks.start("create", only=(1, 2), via=via, group="pair", backend=backend)))


def test_a_backend_without_a_store_votes_by_its_own_allgather(team: Callable[..., Team]) -> None:
    ranks = team(2, simulate=f"2x8GiB;1={SHORT}")
    results = ranks.create(via="own allgather", **request(LARGE, "trtllm", 2))
    all_declined(results, "rank 1")
    prompt(results)
    all_built(ranks.create(via="own allgather", **SMALL))
    for rank in ranks.ranks:
        assert rank.said().count("event=vote_without_store") == 1


def test_backend_auto(team: Callable[..., Team]) -> None:
    ranks = team(2, simulate=f"2x8GiB;1={SHORT}")
    results = ranks.create(backend="auto", via="_group", **request(LARGE, "trtllm", 2))
    all_declined(results, "rank 1")
    prompt(results)
    all_built(ranks.create(backend="auto", via="_group", **SMALL))
