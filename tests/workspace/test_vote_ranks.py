"""The vote between real processes, over real stores."""

from __future__ import annotations

import random
import statistics
from typing import TYPE_CHECKING, Any

import pytest
from workspace.vote_processes import LARGE, SECONDS, SMALL, Nursery, Team

from fi_shim.workspace.ballot.cell import FACTS, Cell, attempt_of
from fi_shim.workspace.vote import Record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Teams = Callable[..., Team]

MARGIN = 2.0  # seconds that a busy machine may add to a limit
LATENCY_MS = 100.0  # measured: 3 ms for 2 ranks, 8 ms for 4 on two cores; far more means that something waits that should not


def agreed(answers: list[Any]) -> str:
    """The outcome, which must be the same for all, with the same reason and records."""
    assert len({(a["outcome"], a["reason"], str(a["records"])) for a in answers}) == 1, answers
    return str(answers[0]["outcome"])


@pytest.mark.parametrize("size", [2, 4, 8])
def test_ranks_agree_on_two_rounds(team: Teams, size: int) -> None:
    answers = team(size).vote(rounds={"probe": {"phase": "probe"}})

    assert agreed(answers) == "yes"
    assert {answer["rounds"] for answer in answers} == {2}
    assert answers[0]["records"] == [[rank, "yes", f"host{rank}", "probe"] for rank in range(size)]


@pytest.mark.parametrize("kind", ["file", "tcp without libuv"])
def test_other_stores(team: Teams, tmp_path: Path, kind: str) -> None:
    ranks = team(2, libuv=kind == "file")
    for process in ranks.ranks if kind == "file" else []:
        process.call("group", name="team", port=0, ranks=[0, 1], kind="file", path=str(tmp_path / "store"))

    assert agreed(ranks.vote(rounds={"probe": {}})) == "yes"
    assert agreed(ranks.vote(rounds={"probe": {"vote": "abstain"}})) == "abstain"


def test_a_vote_is_fast(team: Teams) -> None:
    ranks = team(4).ranks
    futures = [process.start("times", name="team", rank=rank, size=4, limits=LARGE, votes=30) for rank, process in enumerate(ranks)]
    slowest = [1000 * max(seconds) for seconds in zip(*(future.result(SECONDS) for future in futures), strict=True)]

    print(f"two rounds, 4 ranks: median {statistics.median(slowest):.1f} ms")
    assert statistics.median(slowest) < LATENCY_MS


def test_a_late_rank_is_waited_for(team: Teams) -> None:
    ranks = team(3)
    early = ranks.start(0, 1, limits={**LARGE, "warn_first": 0.05, "warn_every": 0.05})
    for rank in (0, 1):
        assert ranks.ranks[rank].call("whoever_waits")
    late = ranks.start(2)
    answers = [future.result(SECONDS) for future in (*early, *late)]

    assert agreed(answers) == "yes"
    named = [missing for missing, _ in answers[0]["waited"]]
    assert [2] in named
    assert all(missing in ([1], [2], [1, 2]) for missing in named)  # a starved peer may be named as well, never this rank
    assert answers[2]["waited"] == []


def test_a_rank_that_never_comes_is_named_at_the_limit(team: Teams) -> None:
    answers = team(3).vote(0, 2, limits=SMALL)

    for answer in answers:
        assert (answer["outcome"], answer["missing"]) == ("no", [1])
        assert answer["reason"] == "rank 1 did not vote within 1 s"
        assert [row[1] for row in answer["records"]] == ["yes", "absent", "yes"]
        assert SMALL["arrival"] <= answer["seconds"] < SMALL["arrival"] + MARGIN


def test_who_comes_when_all_others_have_left_waits_for_less(team: Teams) -> None:
    ranks = team(2)
    ranks.vote(0, limits=SMALL)
    (late,) = ranks.vote(1, limits={**LARGE, "late": 0.2})

    assert (late["outcome"], late["missing"]) == ("no", [0])
    assert late["seconds"] < MARGIN


@pytest.mark.parametrize(
    "said", [{"flashinfer": "0.7.4"}, {"request": {"hidden_dim": 8192}}, {"settings": {"preflight": "off"}}, {"format": 2}]
)
def test_ranks_that_differ_decline_and_see_both_sides(team: Teams, said: dict[str, Any]) -> None:
    usual = {"flashinfer": "0.7.2", "request": {"hidden_dim": 4096}, "settings": {"preflight": "probe"}}
    answers = team(2).vote(records={0: usual, 1: {**usual, **said}})

    assert agreed(answers) == "no"
    assert "on rank 0" in answers[0]["reason"]
    assert "on rank 1" in answers[0]["reason"]


def test_overlapping_groups_and_two_threads_at_once(team: Teams) -> None:
    ranks = team(3)
    groups = {"left": [0, 1], "right": [1, 2]}
    for name, members in groups.items():
        for member in members:
            ranks.ranks[member].call("group", name=name, port=ranks.port, ranks=members)
    for number in range(5):
        futures = [
            ranks.ranks[member].start("vote", name=name, rank=rank, size=2, limits=LARGE, record=said, rounds={"probe": said})
            for name, members in groups.items()
            for rank, member in enumerate(members)
            for said in [{"phase": f"{name} {number}"}]
        ]
        answers = [future.result(SECONDS) for future in futures]
        assert [answer["outcome"] for answer in answers] == ["yes"] * 4
        assert [answer["records"][0][3] for answer in answers] == [f"left {number}"] * 2 + [f"right {number}"] * 2


def test_two_threads_on_one_group_vote_one_after_the_other(team: Teams) -> None:
    ranks = team(2)
    answers = [future.result(SECONDS) for future in (*ranks.start(), *ranks.start(), *ranks.start())]

    assert [answer["outcome"] for answer in answers] == ["yes"] * 6


def test_fifty_votes_with_ranks_that_skip_some(team: Teams) -> None:
    ranks, dice = team(3), random.Random(7)
    limits = {**SMALL, "arrival": 0.3, "late": 0.3, "safety": 0.05, "doubt": 0.1}
    for number in range(50):
        present = [rank for rank in range(3) if dice.random() < 0.93] or [0]
        answers = ranks.vote(*present, limits=LARGE if len(present) == 3 else limits, rounds={"probe": {}})

        if len(present) == 3:
            assert agreed(answers) == "yes", number
        for answer in answers if len(present) < 3 else []:
            assert (answer["outcome"], answer["missing"]) == ("no", [rank for rank in range(3) if rank not in present])


def test_cells_and_verdicts_of_earlier_lives_do_not_count(team: Teams) -> None:
    ranks = team(2)
    attempt = attempt_of([Cell("a", "waiting", 0, 0), Cell("b", "waiting", 0, 0)])
    stale = Cell("b", "voted", 0, 10**9, attempt, FACTS, Record(rank=1, vote="yes")).to_bytes().decode()
    for key, value in {"cell/1": stale, f"{attempt}/{FACTS}/verdict": "{}", "cell/0": "garbage"}.items():
        ranks.host.call("group", name="team", port=0, ranks=[0, 1])
        ranks.host.call("raw_set", name="team", key=key, value=value)

    (alone,) = ranks.vote(0, limits=SMALL)
    assert (alone["outcome"], alone["missing"]) == ("no", [1])
    assert agreed(ranks.vote()) == "yes"


def test_process_groups_on_one_store_one_after_the_other(vote_nursery: Nursery) -> None:
    host, *ranks = [vote_nursery.process() for _ in range(4)]
    port = host.call("host")
    for backend in ("gloo", "fake"):  # gloo itself trips over what its former incarnation left in the store
        group = {"world_size": 3, "subgroups": {"sub": [1, 2]}, "backend": backend}
        made = [p.start("init", port=port, rank=rank, **group) for rank, p in enumerate(ranks)]
        assert {future.result(SECONDS)[0] for future in made} == {f"the store on 127.0.0.1:{port}"}
        for name, members in (("world", [0, 1, 2]), ("sub", [1, 2])):
            started = [
                ranks[member].start("vote", name=name, rank=rank, size=len(members), limits=LARGE, rounds={"probe": {}})
                for rank, member in enumerate(members)
            ]
            assert agreed([future.result(SECONDS) for future in started]) == "yes"
        ranks[0].call("vote", name="world", rank=0, size=3, limits={**SMALL, "arrival": 0.3})  # leaves something behind
        for future in [p.start("destroy") for p in ranks]:
            future.result(SECONDS)
    for process in (host, *ranks):
        process.end()


def test_a_forked_child_has_a_connection_of_its_own(team: Teams) -> None:
    ranks = team(2)
    ranks.vote()
    rest = ranks.start(1, rounds={"probe": {}})
    child = ranks.ranks[0].call("fork_and_vote", name="team", rank=0, size=2, limits=LARGE, rounds={"probe": {}})

    assert (child["exit"], child["is_child"]) == (0, True)
    assert agreed([child, rest[0].result(SECONDS)]) == "yes"
    assert agreed(ranks.vote(rounds={"probe": {}})) == "yes"


def test_a_session_is_not_inherited(team: Teams) -> None:
    ranks = team(2)
    ranks.vote(keep=True)

    assert ranks.ranks[0].call("fork_in_session", name="team") == "this process was forked from the one that joined the vote"
    assert (
        agreed([f.result(SECONDS) for f in [p.start("round_in", name="team", label="x", rank=r) for r, p in enumerate(ranks.ranks)]])
        == "yes"
    )


@pytest.mark.parametrize("present", [True, False])
def test_without_a_store_the_ranks_use_allgather(vote_nursery: Nursery, present: bool) -> None:
    host, *ranks = [vote_nursery.process() for _ in range(3)]
    port = host.call("host")
    for future in [p.start("init", port=port, rank=rank, world_size=2) for rank, p in enumerate(ranks)]:
        future.result(SECONDS)
    for process in ranks:
        process.call("use_allgather", name="last resort")
    keywords = {"name": "last resort", "size": 2, "rounds": {"probe": {"phase": "probe"}}}
    if present:
        started = [p.start("vote", rank=rank, limits=LARGE, **keywords) for rank, p in enumerate(ranks)]
        assert agreed([future.result(SECONDS) for future in started]) == "yes"
        assert len(ranks[0].call("whoever_waits")) == 1
    else:
        alone = ranks[0].call("vote", rank=0, limits=SMALL, **keywords)
        assert (alone["outcome"], alone["reason"]) == ("no", "the communicator's allgather does not answer")
        again = ranks[0].call("vote", rank=0, limits=SMALL, **keywords)
        assert again["reason"] == "an earlier vote by the communicator's allgather still waits for its peers"
        late = ranks[1].call("vote", rank=1, limits=LARGE, **keywords)
        assert (late["outcome"], late["reason"]) == ("no", "rank 0 gave up before all had come")
    for process in (host, *ranks):
        process.end()
