"""What the probe asks of a device, and what it makes of the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from creation.outcomes import all_built, all_declined, nothing_left, prompt

if TYPE_CHECKING:
    from collections.abc import Callable

    from creation.pool import Team

pytestmark = pytest.mark.flashinfer

MIB = 1 << 20
POSIX, FABRIC = 1, 8
NEEDED = 6 * MIB  # of the default request, in 0.7.2


def test_cached_memory_counts_and_is_given_back_before_a_decline(team: Callable[..., Team]) -> None:
    ranks = team(2, simulate="2x64MiB")
    ranks.all("reserve_cached", size=60 * MIB, only=(1,))
    all_built(ranks.create())
    assert ranks.all("cached") == [0, 0]


def test_cached_memory_is_left_alone_where_there_is_enough(team: Callable[..., Team]) -> None:
    ranks = team(2, simulate="2x64MiB")
    ranks.all("reserve_cached", size=40 * MIB)
    all_built(ranks.create())
    assert ranks.all("cached") == [40 * MIB, 40 * MIB]


def test_cached_memory_that_does_not_help_counts_as_free_and_stays(team: Callable[..., Team]) -> None:
    ranks = team(2, simulate="2x64MiB;1=5MiB")
    ranks.all("reserve_cached", size=4 * MIB, only=(1,))
    verdict = all_declined(ranks.create(), f"free {5 * MIB:,}")
    assert verdict["records"][1]["bytes_free"] == 5 * MIB
    assert ranks.all("cached") == [0, 4 * MIB]


def test_a_cache_that_others_need_too(team: Callable[..., Team]) -> None:
    """Enough for the probe's estimate, given back, and taken by another meanwhile: found by trying again."""
    ranks = team(2, simulate="2x64MiB", faults="rank=1,call=cuMemCreate,n=4,error=CUDA_ERROR_OUT_OF_MEMORY")
    ranks.all("reserve_cached", size=59 * MIB, only=(1,))  # the third buffer fails, then the first of the second try
    all_declined(ranks.create(), "rank 1", "cuMemCreate answers CUDA_ERROR_OUT_OF_MEMORY")
    assert ranks.all("cached") == [0, 0]
    nothing_left(ranks)


@pytest.mark.parametrize("backend", ["trtllm", "mnnvl"])
@pytest.mark.parametrize("release", ["0.6.9", "0.7.2"])
def test_denied_fabric_declines_where_the_release_does_not_fall_back(team: Callable[..., Team], release: str, backend: str) -> None:
    ranks = team(2, release=release, simulate="2x8GiB;fabric=denied")
    results = ranks.create(backend=backend)
    verdict = all_declined(results, "CUDA_ERROR_NOT_PERMITTED")
    prompt(results)
    assert [record["vote"] for record in verdict["records"]] == ["no", "no"]
    nothing_left(ranks)


@pytest.mark.parametrize("backend", ["trtllm", "mnnvl"])
def test_denied_fabric_builds_with_posix_on_074(team: Callable[..., Team], backend: str) -> None:
    ranks = team(2, release="0.7.4", simulate="2x8GiB;fabric=denied")
    results = ranks.create(backend=backend)
    all_built(results)
    prompt(results)


@pytest.mark.parametrize("release", ["0.6.9", "0.7.2"])
def test_fabric_on_one_rank_only_declines_and_shows_both_sides(team: Callable[..., Team], release: str) -> None:
    ranks = team(2, release=release, each={1: {"FI_SHIM_SIMULATE": "2x8GiB;fabric=on"}})
    results = ranks.create()
    all_declined(results, "posix on rank 0, fabric on rank 1")
    prompt(results)
    nothing_left(ranks)


def test_fabric_on_one_rank_only_builds_on_074(team: Callable[..., Team]) -> None:
    ranks = team(2, release="0.7.4", each={1: {"FI_SHIM_SIMULATE": "2x8GiB;fabric=on"}})
    all_built(ranks.create())


def test_a_fabric_check_that_an_engine_replaced_is_the_one_that_counts(team: Callable[..., Team]) -> None:
    ranks = team(2, simulate="2x8GiB;fabric=denied")
    ranks.all("fake_fabric", supported=False)
    ranks.all("record_properties")
    all_built(ranks.create())
    for lines in ranks.all("recorded"):
        assert lines
        assert all(f"handle type {POSIX}" in line for line in lines)


@pytest.mark.parametrize(("release", "backend"), [("0.6.9", "trtllm"), ("0.6.9", "mnnvl"), ("0.7.2", "mnnvl"), ("0.7.4", "mnnvl")])
def test_without_multicast_what_needs_it_declines(team: Callable[..., Team], release: str, backend: str) -> None:
    ranks = team(2, release=release, simulate="2x8GiB;multicast=off")
    results = ranks.create(backend=backend)
    verdict = all_declined(results, "multicast")
    prompt(results)
    assert [record["vote"] for record in verdict["records"]] == ["no", "no"]
    nothing_left(ranks)


@pytest.mark.parametrize("release", ["0.6.17", "0.7.2", "0.7.4"])
@pytest.mark.parametrize("multicast", ["off", "512MiB"])
def test_trtllm_builds_without_multicast_and_never_asks_for_it(team: Callable[..., Team], release: str, multicast: str) -> None:
    ranks = team(2, release=release, simulate=f"2x8GiB;multicast={multicast}")
    all_built(ranks.create())
    for calls in ranks.all("calls"):
        assert calls["cuMemCreate"] == 6  # three probed, three built
        assert not [name for name in calls if "Multicast" in name]


def test_a_probe_that_cannot_run_abstains_and_says_so_once(team: Callable[..., Team]) -> None:
    faults = ";".join(f"rank=1,call=cuMemGetAllocationGranularity,n={n},error=CUDA_ERROR_UNKNOWN" for n in (1, 5))
    ranks = team(2, faults=faults)
    all_built(ranks.create())
    asked = ranks.all("calls")[1]["cuMemGetAllocationGranularity"]
    assert asked == 4  # the probe's, then FlashInfer's three: the next one is a probe's again
    all_built(ranks.create())
    for rank in ranks.ranks:
        lines = [line for line in rank.said().splitlines() if "event=preflight_skipped" in line]
        assert len(lines) == 1
        assert "rank 1" in lines[0]
        assert "cuMemGetAllocationGranularity answers CUDA_ERROR_UNKNOWN" in lines[0]


@pytest.mark.parametrize("fault", ["cuDeviceGetAttribute", "cuMemCreate", "cuMemRelease"])
def test_a_driver_that_raises_is_an_abstention(team: Callable[..., Team], fault: str) -> None:
    ranks = team(2, faults=f"rank=0,call={fault},error=exception")
    all_built(ranks.create())


def test_the_probe_asks_for_what_flashinfer_asks_for(team: Callable[..., Team]) -> None:
    ranks = team(2, simulate="2x8GiB;fabric=on")
    for backend, buffers in (("trtllm", 3), ("mnnvl", 1)):
        ranks.all("record_properties")
        all_built(ranks.create(backend=backend))
        for rank, lines in enumerate(ranks.all("recorded")):
            probed, built = lines[:buffers], lines[-buffers:]
            assert probed == built
            assert all(f"on device {rank}, handle type {FABRIC}, rdma 1" in line for line in lines)


@pytest.mark.parametrize("release", ["0.6.9", "0.7.2"])
@pytest.mark.parametrize("backend", ["trtllm", "mnnvl"])
def test_the_device_is_the_one_flashinfer_uses(team: Callable[..., Team], release: str, backend: str) -> None:
    ranks = team(2, release=release, simulate="4x8GiB")
    ranks.all("use_device", each={0: {"device": 3}, 1: {"device": 2}})
    ranks.all("record_properties")
    all_built(ranks.create(backend=backend))
    for rank, lines in enumerate(ranks.all("recorded")):
        assert lines
        assert all(f"on device {(3, 2)[rank]}," in line for line in lines)


@pytest.mark.parametrize("backend", ["trtllm", "mnnvl"])
def test_a_release_that_numbers_devices_by_rank_declines_on_another_device(team: Callable[..., Team], backend: str) -> None:
    ranks = team(2, release="0.6.6", simulate="4x8GiB")
    ranks.all("use_device", each={0: {"device": 0}, 1: {"device": 2}})
    verdict = all_declined(ranks.create(backend=backend), "rank 1", "allocates on device 1", "current device is 2")
    assert [record["vote"] for record in verdict["records"]] == ["yes", "no"]
    ranks.all("use_device", each={1: {"device": 1}, 0: {"device": 0}})
    ranks.all("reset")
    all_built(ranks.create(backend=backend))


def test_the_device_that_is_short_is_the_one_that_is_used(team: Callable[..., Team]) -> None:
    ranks = team(2, simulate="4x8GiB;2=4MiB")
    ranks.all("use_device", each={0: {"device": 3}, 1: {"device": 2}})
    verdict = all_declined(ranks.create(), "device 2")
    assert [(record["device"], record["vote"]) for record in verdict["records"]] == [(3, "yes"), (2, "no")]


def test_probing_leaves_nothing_behind_when_a_later_buffer_fails(team: Callable[..., Team]) -> None:
    ranks = team(2, simulate="2x64MiB", faults="rank=0,call=cuMemCreate,n=2,error=CUDA_ERROR_UNKNOWN")
    all_declined(ranks.create(), "rank 0", "cuMemCreate answers CUDA_ERROR_UNKNOWN")
    nothing_left(ranks)


def test_exactly_enough_is_enough(team: Callable[..., Team]) -> None:
    small = 2 * MIB  # pointer tables and flags
    all_built(team(2, simulate=f"2x{(NEEDED + small) // MIB}MiB").create())
    all_declined(team(2, simulate=f"2x{NEEDED // MIB - 1}MiB").create(), f"needs {NEEDED:,} bytes")
