"""A rank is stopped or killed while all build, after the vote: the others end within the limits, whatever they wait in, and keep nothing."""

from __future__ import annotations

import signal
import time
from concurrent.futures import wait
from typing import TYPE_CHECKING

import pytest
from creation.outcomes import none_built
from creation.pool import LIMITS

if TYPE_CHECKING:
    from collections.abc import Callable

    from creation.pool import Team

pytestmark = pytest.mark.flashinfer

END_SECONDS = 12.0
"""The limit of silence, once in the collective and once in the last vote, or torch's rendezvous; and some for a busy machine."""
COLLECTIVES = {"0.6.9": 13, "0.7.4": 10}
LOSSES = [(2, "kill"), (0, "stop")]
"""Who is lost how: rank 0 is the store's host."""
POINTS = [
    *((release, "cuDeviceGet", 1, *loss) for release in COLLECTIVES for loss in ((2, "kill"), (2, "stop"), (0, "kill"), (0, "stop"))),
    *((release, "gather", number, *loss) for release, count in COLLECTIVES.items() for number in (1, count // 2, count) for loss in LOSSES),
    *((release, "recvmsg", 2, *loss) for release in COLLECTIVES for loss in ((2, "stop"), (0, "kill"))),
    *((release, "commit", 1, *loss) for release in COLLECTIVES for loss in LOSSES),
    *(("0.6.12", call, 1, *loss) for call in ("empty", "rendezvous") for loss in LOSSES),
]
EVERYWHERE = [
    (release, "gather", number, victim, how)
    for release, count in COLLECTIVES.items()
    for number in range(1, count + 1)
    for victim in (0, 2)
    for how in ("kill", "stop")
]


def check(team: Callable[..., Team], release: str, call: str, number: int, victim: int, how: str) -> None:
    ranks = team(3, release=release, limits=LIMITS, environ={"FI_SHIM_VOTE_TIMEOUT": "5"})
    ranks.all("watch_builds")
    ranks.all("fail_in_build", only=(victim,), name=call, n=number, how=how)
    began = time.monotonic()
    futures = ranks.start("create")
    lost = futures.pop(victim)
    assert not wait(futures, timeout=END_SECONDS).not_done, ranks.stacks()
    results = [future.result() for future in futures]
    none_built(results)
    if (call, how, victim) == ("cuDeviceGet", "kill", 2):  # the others wait for its sign of life once, and say what they missed
        assert len({result["message"] for result in results}) == 1
        assert "rank 2 (" in results[0]["message"]
        assert "gave no sign of life for 2 s in round 1.build" in results[0]["message"]  # not once more in the last vote
        assert "Is fi_shim active" not in results[0]["message"]
    assert time.monotonic() - began < END_SECONDS
    assert ranks.ranks[victim].is_stopped or not ranks.ranks[victim].is_alive  # it was lost where it was to be
    survivors = tuple(rank for rank in range(3) if rank != victim)
    if not (release == "0.6.12" and victim == 0 and how == "stop"):  # a rendezvous that the store's host keeps ends with it
        assert not any(left["own"] for left in ranks.all("left", only=survivors))
    if how == "stop":
        ranks.ranks[victim].send(signal.SIGCONT)
        none_built([ranks.result(lost)])
        assert not ranks.all("left", only=(victim,))[0]["own"]


@pytest.mark.parametrize(("release", "call", "number", "victim", "how"), POINTS)
def test_a_rank_is_lost_while_all_build(team: Callable[..., Team], release: str, call: str, number: int, victim: int, how: str) -> None:
    check(team, release, call, number, victim, how)


@pytest.mark.matrix
@pytest.mark.parametrize(("release", "call", "number", "victim", "how"), EVERYWHERE)
def test_a_rank_is_lost_in_any_collective(team: Callable[..., Team], release: str, call: str, number: int, victim: int, how: str) -> None:
    check(team, release, call, number, victim, how)


@pytest.mark.parametrize("release", ["0.6.9", "0.7.4"])
def test_without_the_shim_the_others_hang(team: Callable[..., Team], release: str) -> None:
    """So that the tests above can fail."""
    ranks = team(2, release=release, environ={"FI_SHIM": "0"}, faults="rank=1,call=cuMemMap,error=CUDA_ERROR_OUT_OF_MEMORY")
    first, second = ranks.start("create")
    assert ranks.result(second)["outcome"] == "raised"
    assert wait([first], timeout=5.0).not_done
