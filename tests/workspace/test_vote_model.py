"""The protocol in every order of events, and what the checker says if a rule is taken away."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from workspace.vote_checker import LIMITS, NO_LEASE, search, votes, wander, world

from fi_shim.workspace.ballot.cell import FACTS, Cell, attempt_of
from fi_shim.workspace.ballot.operations import Clock, Promise, Set, Sleep
from fi_shim.workspace.ballot.protocol import Voter, _stored
from fi_shim.workspace.vote import Record, Verdict

if TYPE_CHECKING:
    from fi_shim.workspace.ballot.cell import Cells
    from fi_shim.workspace.ballot.operations import Steps

YES = Record(rank=1, vote="yes")


def left_over(*nonces: str) -> dict[str, bytes]:
    """Rank 1's cell as it was when its process died in the middle of an earlier attempt (with these nonces), with time left."""
    attempt = attempt_of([Cell(nonce, "waiting", 0, 0) for nonce in nonces])
    return {"cell/1": Cell(nonces[1], "voted", 0, 10**6, attempt, FACTS, YES).to_bytes()}


@pytest.mark.parametrize(
    ("size", "options", "possible"),
    [
        pytest.param(2, {"stalls": 0}, {("yes", "yes"), ("no", "no"), ("freed", "no"), ("yes", "freed")}, id="store stops"),
        pytest.param(2, {"stalls": 1, "stops": 0}, {("yes", "yes"), ("no", "no")}, id="ranks stall"),
        pytest.param(
            2, {"stalls": 0, "stops": 0, "late": 1, "crashes": 1}, {("yes", "yes"), ("no", "alive"), ("no", "dead")}, id="late, crash"
        ),
        pytest.param(
            2, {"stalls": 0, "stops": 0, "initial": left_over("old0", "old1")}, {("yes", "yes"), ("no", "no")}, id="left-over cell"
        ),
        pytest.param(3, {"stalls": 0, "stops": 0, "horizon": 2}, {("yes", "yes", "yes"), ("no", "no", "no")}, id="three ranks"),
    ],
)
def test_all_orders_of_events(size: int, options: dict[str, Any], possible: set[Any]) -> None:
    found = search(world(size, votes(size), **options))

    assert found.fault == ""
    assert possible <= found.outcomes


@pytest.mark.parametrize("vote", ["yes", "no"])
def test_a_second_round_in_all_orders_of_events(vote: str) -> None:
    found = search(world(2, votes(2, rounds=1, vote=vote), stalls=0, stops=0))

    assert found.fault == ""
    assert found.outcomes == ({("no", "no"), ("yes", "yes")} if vote == "yes" else {("no", "no")})


@pytest.mark.parametrize("seed", range(2))
def test_three_ranks_and_every_fault_on_random_ways(seed: int) -> None:
    found = wander(world(3, votes(3, rounds=1), late=2, stops=1, stalls=2, crashes=1, horizon=6), Random(seed), walks=150)

    assert found.fault == ""
    assert ("yes", "yes", "yes") in found.outcomes


class Overwrites(Voter):
    """The verdict is a plain write."""

    def _settle(self, verdict: Verdict | None, spare: float = 0.0) -> Steps[Verdict | None]:
        yield Set(self._verdict_key, _stored(verdict, spare))
        return verdict


class LeavesQuietly(Voter):
    """Who gives up does not settle the attempt."""

    def _give_up(self, cells: Cells, missing: tuple[int, ...], seconds: float) -> Steps[Verdict]:
        attempt, self.attempt = self.attempt, ""
        verdict = yield from super()._give_up(cells, missing, seconds)
        self.attempt = attempt
        return verdict


class ComparesClocks(Voter):
    """Takes every rank's clock for its own."""

    def _count(self, cells: Cells) -> Steps[Verdict | None]:
        self.since = 0.0
        self.offset = dict.fromkeys(range(self.size), 0.0)
        return (yield from super()._count(cells))


class NeverGivesUp(Voter):
    """Waits for ever for a rank that does not come."""

    def _give_up(self, cells: Cells, missing: tuple[int, ...], seconds: float) -> Steps[Verdict]:
        self.until = (yield Clock()) + 1
        return None  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("program", "options", "fault"),
    [
        pytest.param(votes(2, limits=NO_LEASE), {"stalls": 0}, "decided after a rank had given up in doubt", id="no lease"),
        pytest.param(
            votes(2, voter=ComparesClocks, limits=replace(LIMITS, arrival=3)),
            {"stalls": 0, "late": 1, "earliest": 2, "horizon": 4},
            "decided after a",
            id="clocks compared",
        ),
        pytest.param(votes(2, voter=Overwrites), {"stops": 0}, "different verdicts", id="verdict overwritten"),
        pytest.param(votes(2, voter=LeavesQuietly), {"stops": 0}, "different verdicts", id="nothing settled"),
        pytest.param(
            votes(2, nonce="n0"), {"stops": 0, "stalls": 0, "late": 1, "initial": left_over("n0", "n0")}, "has never come", id="no nonces"
        ),
        pytest.param(votes(2, voter=NeverGivesUp), {"stops": 0, "stalls": 0, "crashes": 1}, "waits for ever", id="no limit"),
    ],
)
def test_the_checker_can_fail(program: Any, options: dict[str, Any], fault: str) -> None:
    assert fault in search(world(2, program, **options)).fault


def test_who_comes_late_to_a_yes_asks_its_caller_for_patience_while_it_looks_for_doubt() -> None:
    voter = Voter(0, 2, "n0", LIMITS, attempt="a", label=FACTS)
    steps = voter._act_on(_stored(Verdict("yes", "all 2 ranks agree"), 5.0))

    assert [next(steps), steps.send(100.0), next(steps)] == [Clock(), Promise(100.0 + 3 * LIMITS.grace), Sleep(LIMITS.grace)]
