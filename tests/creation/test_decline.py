"""What a decline tells, and to whom."""

from __future__ import annotations

from concurrent.futures import wait
from typing import TYPE_CHECKING

import pytest
from creation.outcomes import all_built

if TYPE_CHECKING:
    from collections.abc import Callable

    from creation.pool import Team

pytestmark = pytest.mark.flashinfer

ONE_SHORT = "2x8GiB;1=4MiB"
HANG_SECONDS = 3.0  # that a peer is given to come back; it never does


def error_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if "event=declined" in line]


def test_one_error_line_for_the_group_and_a_table_in_the_exception(team: Callable[..., Team]) -> None:
    ranks = team(3, simulate="3x8GiB;1=4MiB")
    message = ranks.create()[0]["message"].splitlines()
    assert "rank 1" in message[0]
    assert "needs 8,388,608 bytes, free 4,194,304" in message[0]
    assert message[1].split() == ["rank", "host", "device", "needed", "free", "vote", "reason"]
    rows = [line.split(maxsplit=6) for line in message[2:]]
    assert [[row[0], *row[2:]] for row in rows] == [
        ["0", "0", "8,388,608", f"{8 << 30:,}", "yes"],
        ["1", "1", "8,388,608", "4,194,304", "no", "not enough free memory"],
        ["2", "2", "8,388,608", f"{8 << 30:,}", "yes"],
    ]
    assert [len(error_lines(rank.said())) for rank in ranks.ranks] == [1, 0, 0]


def test_in_a_subgroup_its_own_first_rank_speaks(team: Callable[..., Team]) -> None:
    ranks = team(3, simulate="3x8GiB;1=4MiB", begin=False)
    ranks.begin({"pair": [1, 2]})
    ranks.results(ranks.start("create", only=(1, 2), group="pair", via="both"))
    assert [len(error_lines(rank.said())) for rank in ranks.ranks] == [0, 1, 0]


def test_status_tells_the_declines_on_every_rank(team: Callable[..., Team]) -> None:
    ranks = team(2, simulate=ONE_SHORT)
    ranks.create()
    ranks.create(tokens=64, each={1: {"hidden_dim": 2048}})
    for status in ranks.all("status"):
        first, second = status["declines"]
        assert "trtllm workspace" in first["what"]
        assert [record["vote"] for record in first["records"]] == ["yes", "no"]
        assert "hidden_dim differs" in second["reason"]
        assert status["patches"]["creation"]["state"] == "applied"


def test_a_decline_can_be_copied_and_sent_to_another_process(team: Callable[..., Team]) -> None:
    for texts in team(2, simulate=ONE_SHORT).all("copies_of_a_decline"):
        assert texts[0] == texts[1] == texts[2]


def test_without_the_shim_a_short_rank_leaves_its_peer_waiting(team: Callable[..., Team]) -> None:
    ranks = team(2, simulate=ONE_SHORT, environ={"FI_SHIM": "0"})
    peer, short = ranks.start("create")
    raised = ranks.result(short)
    assert raised["outcome"] == "raised"
    assert "memory" in raised["message"].lower()
    assert not wait([peer], timeout=HANG_SECONDS).done


def test_without_the_shim_enough_memory_is_enough(team: Callable[..., Team]) -> None:
    all_built(team(2, environ={"FI_SHIM": "0"}).create())
