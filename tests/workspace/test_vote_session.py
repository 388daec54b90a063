"""Within an attempt that was agreed: more rounds, signs of life, shared keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from workspace.vote_processes import LARGE, SECONDS, SMALL, Team

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Teams = Callable[..., Team]

MARGIN = 2.0


def rounds(ranks: Team, label: str, *which: int) -> list[Any]:
    started = [ranks.ranks[rank].start("round_in", name="team", label=label, rank=rank) for rank in which]
    return [future.result(SECONDS) for future in started]


def test_a_rank_that_leaves_is_a_no_at_once(team: Teams) -> None:
    ranks = team(3)
    ranks.vote(keep=True)
    waiting = [ranks.ranks[rank].start("round_in", name="team", label="commit", rank=rank) for rank in (0, 1)]
    ranks.ranks[2].call("close", name="team", reason="MemoryError: out of memory")

    for future in waiting:
        answer = future.result(SECONDS)
        assert (answer["outcome"], answer["reason"], answer["missing"]) == ("no", "rank 2 left: MemoryError: out of memory", [2])
        assert answer["seconds"] < MARGIN


def test_a_rank_that_begins_anew_is_a_no_at_once(team: Teams) -> None:
    ranks = team(2)
    ranks.vote(keep=True)
    ranks.ranks[1].call("close", name="team", reason="never mind")
    anew = ranks.start(1, limits=SMALL)

    assert rounds(ranks, "commit", 0)[0]["outcome"] == "no"
    assert anew[0].result(SECONDS)["missing"] == [0]


def test_a_silent_rank_is_named(team: Teams) -> None:
    ranks = team(3)
    ranks.vote(keep=True, limits=SMALL)

    for answer in rounds(ranks, "commit", 0, 2):
        assert (answer["outcome"], answer["reason"]) == ("no", "rank 1 gave no sign of life for 1 s in round 1.commit")
        assert SMALL["silence"] <= answer["seconds"] < SMALL["silence"] + MARGIN


def test_a_rank_at_work_is_waited_for(team: Teams, tmp_path: Path) -> None:
    ranks = team(2)
    ranks.vote(keep=True, limits={**SMALL, "silence": 0.5, "safety": 0.1, "warn_first": 1.2})
    work = ranks.ranks[1].start("work", name="team", until=str(tmp_path / "built"))
    waiting = ranks.ranks[0].start("round_in", name="team", label="commit", rank=0)
    assert ranks.ranks[0].call("whoever_waits")[0][0] == [1]  # for longer than two silences
    (tmp_path / "built").touch()
    work.result(SECONDS)

    assert [rounds(ranks, "commit", 1)[0]["outcome"], waiting.result(SECONDS)["outcome"]] == ["yes", "yes"]


def test_a_rank_that_hangs_at_work_is_not_waited_for(team: Teams, tmp_path: Path) -> None:
    ranks = team(2)
    ranks.vote(keep=True, limits={**SMALL, "silence": 0.5, "work": 0.5})
    ranks.ranks[1].start("work", name="team", until=str(tmp_path / "never"))

    assert rounds(ranks, "commit", 0)[0]["reason"].startswith("rank 1 gave no sign of life")


def test_ranks_in_different_rounds_notice(team: Teams) -> None:
    ranks = team(2)
    ranks.vote(keep=True)
    started = [p.start("round_in", name="team", label=("commit", "probe")[rank], rank=rank) for rank, p in enumerate(ranks.ranks)]
    answers = [future.result(SECONDS) for future in started]

    assert [answer["outcome"] for answer in answers] == ["no", "no"]
    assert "1.commit" in answers[0]["reason"]
    assert "1.probe" in answers[0]["reason"]


def test_many_rounds(team: Teams) -> None:
    ranks = team(3)
    ranks.vote(keep=True)
    for number in range(10):
        answers = rounds(ranks, f"round {number}", 0, 1, 2)
        assert [answer["outcome"] for answer in answers] == ["yes"] * 3


def test_keys_belong_to_the_attempt(team: Teams, tmp_path: Path) -> None:
    ranks = team(2)
    for attempt in ("first", "second"):
        ranks.vote(keep=True)
        ranks.ranks[0].start("work", name="team", until=str(tmp_path / attempt))
        assert ranks.ranks[0].call("keys", name="team", write={"a": attempt}, read=["a", "b"], claim="0") == [{"a": attempt}, "0"]
        assert ranks.ranks[1].call("keys", name="team", write={}, read=["a", "b"], claim="1") == [{"a": attempt}, "0"]
        for process in ranks.ranks:
            process.call("close", name="team", reason="done")


def test_a_declined_attempt_has_no_rounds(team: Teams) -> None:
    ranks = team(2)
    ranks.vote(keep=True, records={1: {"vote": "no", "reason": "no driver"}})

    with pytest.raises(AssertionError, match=r"this attempt is over: rank 1 \(host1, device 1\) votes no: no driver"):
        rounds(ranks, "probe", 0)
    assert ranks.vote(0, 1, limits=LARGE)[0]["outcome"] == "yes"
