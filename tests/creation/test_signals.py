"""A rank is stopped or killed while the others vote: they end at their limit, and nobody builds while another was declined."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from creation.outcomes import all_built, back_after, none_built
from creation.pool import LIMITS

if TYPE_CHECKING:
    from collections.abc import Callable

    from creation.pool import Team

pytestmark = pytest.mark.flashinfer

LIMIT = 1.5  # seconds to wait for all to come
SLACK = 2.0
SOON = {"FI_SHIM_VOTE_TIMEOUT": str(LIMIT)}


@pytest.mark.parametrize("what", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
@pytest.mark.parametrize("victim", [0, 1], ids=["the store's host", "another rank"])
def test_a_rank_lost_while_all_wait_for_the_last(team: Callable[..., Team], victim: int, what: signal.Signals) -> None:
    ranks = team(3, environ=SOON, limits=LIMITS)
    futures = ranks.start("create", only=(0, 1))
    ranks.result(ranks.ranks[2].start("watch_arrivals", aside=True, ranks=[0, 1]))
    ranks.ranks[victim].send(what)
    if victim:  # else the last one could not even reach the store
        futures += ranks.start("create", only=(2,))
    lost = futures.pop(victim)
    results = ranks.results(futures)
    none_built(results)
    back_after(results, 0.0, LIMIT + SLACK)
    if what == signal.SIGSTOP:
        ranks.ranks[victim].send(signal.SIGCONT)
        none_built([ranks.result(lost)])


@pytest.mark.parametrize("victim", [0, 1], ids=["the store's host", "another rank"])
@pytest.mark.parametrize("call", ["cuDeviceGetAttribute", "cuMemCreate"], ids=["before its facts", "in the probe"])
@pytest.mark.parametrize("action", ["stop", "kill"])
def test_a_rank_lost_at_its_own_work(team: Callable[..., Team], victim: int, call: str, action: str) -> None:
    ranks = team(3, environ=SOON, limits=LIMITS, faults=f"rank={victim},call={call},action={action}")
    futures = ranks.start("create")
    lost = futures.pop(victim)
    results = ranks.results(futures)
    none_built(results)
    back_after(results, 0.0, LIMIT + SLACK)
    assert ranks.ranks[victim].is_stopped or not ranks.ranks[victim].is_alive
    if action == "stop":
        ranks.ranks[victim].send(signal.SIGCONT)
        none_built([ranks.result(lost)])


def test_a_rank_that_was_stopped_for_a_moment_loses_nothing(team: Callable[..., Team]) -> None:
    ranks = team(3)
    futures = ranks.start("create", only=(0, 1))
    ranks.result(ranks.ranks[2].start("watch_arrivals", aside=True, ranks=[0, 1]))
    ranks.ranks[1].send(signal.SIGSTOP)
    futures += ranks.start("create", only=(2,))
    ranks.result(ranks.ranks[0].start("watch_arrivals", aside=True, ranks=[0, 1, 2]))
    ranks.ranks[1].send(signal.SIGCONT)
    all_built(ranks.results(futures))


def test_the_group_votes_again_after_a_rank_was_stopped(team: Callable[..., Team]) -> None:
    ranks = team(3, environ=SOON, limits=LIMITS, faults="rank=2,call=cuMemCreate,action=stop")
    futures = ranks.start("create")
    none_built(ranks.results(futures[:2]))
    ranks.ranks[2].send(signal.SIGCONT)
    none_built(ranks.results(futures[2:]))
    ranks.all("reset")
    all_built(ranks.create())
