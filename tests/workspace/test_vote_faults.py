"""Ranks and store hosts that are stopped, continued or killed in the middle of a vote, at every operation of one rank."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from workspace.vote_processes import LARGE, SECONDS, SMALL, Nursery, Team

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MARGIN = 3.0  # seconds that a busy machine may add to a limit
NAME_LOOKUP = 5.0  # seconds that c10d may take to put a host's name into its own warning
AT_ONCE = 6  # teams
LONGEST = SMALL["arrival"] + SMALL["doubt"] + SMALL["silence"] + 4 * SMALL["grace"]
TWO_ROUNDS: dict[str, Any] = {"rounds": {"probe": {"phase": "probe"}}}


def each(points: Iterable[Any], case: Callable[[Any], Any], at_once: int = AT_ONCE) -> list[Any]:
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(case, points))


def ends(answers: Iterable[Any]) -> None:
    for answer in answers:
        assert answer["seconds"] < LONGEST + MARGIN, answer


def agree(answers: list[Any]) -> None:
    """All ranks that tell of the same round tell the same of it; who got a yes was not left alone with it."""
    assert len({(answer["outcome"], answer["rounds"]) for answer in answers}) == 1, answers


def test_a_rank_is_stopped_and_continued_when_all_others_have_ended(vote_nursery: Nursery) -> None:
    def case(point: tuple[str, int]) -> str:
        team = Team(vote_nursery, 3)
        team.plan(1, *point, team.ranks[1], signal.SIGSTOP)
        others, (one,) = team.start(0, 2, limits=SMALL, **TWO_ROUNDS), team.start(1, limits=SMALL, **TWO_ROUNDS)
        stopped = team.ranks[1].until_stopped(one)
        answers = [future.result(SECONDS) for future in others]
        ends(answers)
        team.ranks[1].send(signal.SIGCONT)
        answers.append(one.result(SECONDS))
        agree(answers)
        team.forget_plans()
        assert [answer["outcome"] for answer in team.vote(**TWO_ROUNDS)] == ["yes"] * 3
        team.end()
        return str(answers[0]["outcome"]) if stopped else "not stopped"

    outcomes = each([(when, number) for number in range(1, 11) for when in ("before", "after")][::-2], case)
    assert {"no", "yes"} <= set(outcomes)


def test_a_rank_is_killed(vote_nursery: Nursery) -> None:
    def case(number: int) -> Any:
        team = Team(vote_nursery, 3)
        team.plan(1, "before", number, team.ranks[1], signal.SIGKILL)
        team.start(1, limits=SMALL, **TWO_ROUNDS)
        answers = team.vote(0, 2, limits=SMALL, **TWO_ROUNDS)
        team.end()
        ends(answers)
        agree(answers)
        return answers[0]

    answers = each((1, 2, 4, 6), case)
    assert {answer["outcome"] for answer in answers} == {"no"}
    assert all("rank 1" in answer["reason"] for answer in answers), answers


def test_the_stores_host_is_stopped(vote_nursery: Nursery) -> None:
    def case(number: int) -> list[str]:
        team = Team(vote_nursery, 3)
        team.plan(1, "before", number, team.host, signal.SIGSTOP)
        answers = team.vote(limits=SMALL, **TWO_ROUNDS)
        ends(answers)
        for answer in answers:
            assert answer["outcome"] == "yes" or answer["reason"] == f"the store on 127.0.0.1:{team.port} does not answer", answer
        team.host.send(signal.SIGCONT)
        team.forget_plans()
        assert [answer["outcome"] for answer in team.vote(**TWO_ROUNDS)] == ["yes"] * 3
        team.end()
        return [answer["outcome"] for answer in answers]

    outcomes = each((1, 2, 3, 4, 5, 6, 7, 8), case)
    assert outcomes[0] == ["no"] * 3


def test_the_host_goes_on_when_one_rank_still_waits_and_the_others_gave_up_in_doubt(vote_nursery: Nursery) -> None:
    def case(number: int) -> None:
        team = Team(vote_nursery, 3)
        team.plan(1, "before", number, team.host, signal.SIGSTOP)
        others, (one,) = team.start(0, 2, limits=SMALL), team.start(1, limits={**SMALL, "arrival": 3 * SMALL["arrival"]})
        answers = [future.result(SECONDS) for future in others]
        team.host.send(signal.SIGCONT)
        answers.append(one.result(SECONDS))
        doubtful = [answer for answer in answers[:2] if "does not answer" in answer["reason"]]
        if len(doubtful) == 2:
            assert answers[2]["outcome"] == "no", answers
        team.end()

    each((2, 3, 4, 5), case)


def test_rank_0_is_the_host_and_is_stopped_until_the_other_one_gave_up(vote_nursery: Nursery) -> None:
    def case(point: tuple[str, int]) -> str:
        team = Team(vote_nursery, 2, host_is_rank_0=True)
        team.plan(0, *point, team.ranks[0], signal.SIGSTOP)
        (zero,), (one,) = team.start(0, limits=SMALL, **TWO_ROUNDS), team.start(1, limits=SMALL, **TWO_ROUNDS)
        stopped = team.ranks[0].until_stopped(zero)
        answers = [one.result(SECONDS)]
        ends(answers)
        team.ranks[0].send(signal.SIGCONT)
        answers.append(zero.result(SECONDS))
        last = answers[1]["operations"]
        if point[1] <= last and point != ("after", last):  # else it had its verdict already, which the other one could not read any more
            assert len({answer["outcome"] for answer in answers}) == 1, (point, answers)
        team.end()
        return str(answers[0]["outcome"]) if stopped else "not stopped"

    outcomes = each([(when, number) for number in range(3, 11) for when in ("before", "after")], case, at_once=3)
    assert "no" in outcomes


def test_the_stores_host_is_killed(vote_nursery: Nursery) -> None:
    def case(number: int) -> None:
        team = Team(vote_nursery, 3)
        team.plan(1, "before", number, team.host, signal.SIGKILL)
        answers = team.vote(limits=LARGE, **TWO_ROUNDS)
        for answer in answers:
            assert answer["outcome"] == "yes" or answer["reason"].startswith(f"the store on 127.0.0.1:{team.port} is gone"), answer
            assert answer["seconds"] < NAME_LOOKUP + MARGIN, "nothing listens there any more, so nobody waits"
        again = team.vote(0, limits=LARGE)[0]
        assert again["reason"].startswith(f"the store on 127.0.0.1:{team.port} is gone")
        team.end()

    each((1, 3, 5, 7), case)


def test_a_process_ends_as_usual_after_it_lost_the_store(vote_nursery: Nursery, capfd: pytest.CaptureFixture[str]) -> None:
    team = Team(vote_nursery, 2)
    team.plan(0, "before", 2, team.host, signal.SIGSTOP)
    team.start(0, limits=SMALL)[0].result(SECONDS)
    before = vote_nursery.noise()
    gone = team.ranks[0].start("leave_process")
    with pytest.raises(EOFError):
        team.ranks[0].start("whoever_waits").result(SECONDS)
    assert gone.done()
    assert vote_nursery.noise() == before
    team.end()
