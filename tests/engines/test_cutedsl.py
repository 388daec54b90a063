"""FlashInfer's CuTe DSL workspace, which is constructed directly: what fails on one rank fails on all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from creation.pool import Nursery, Team
from engines.conftest import HERE
from engines.endings import SHIM_OFF, both, leaves_a_peer_waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.flashinfer

RELEASE = "0.7.2.post1"
NO_MULTICAST = {1: {"FI_SHIM_SIMULATE": "2x8GiB;multicast=off"}}


@pytest.fixture
def ranks(engine_nurseries: dict[tuple[str, str], Nursery], tmp_path: Path) -> Iterator[Callable[..., Team]]:
    started: list[Team] = []

    def start(**options: Any) -> Team:
        key = ("cutedsl", RELEASE)
        if key not in engine_nurseries:
            engine_nurseries[key] = Nursery(RELEASE, "cutedsl_jobs", (HERE,))
        folder = tmp_path / f"team-{len(started)}"
        folder.mkdir()
        started.append(Team(engine_nurseries[key], folder, 2, **options))
        started[-1].all("enter")
        return started[-1]

    yield start
    for one in started:
        one.end()


def test_all_build(ranks: Callable[..., Team]) -> None:
    two = ranks()
    assert both(two, "build") == "mnnvl-cutedsl"
    assert two.all("status")[0]["patches"]["cutedsl"]["state"] == "applied"
    assert two.ranks[0].said().count("event=preflight_skipped") == 1


def test_flashinfers_own_checks_refuse_on_one_rank(ranks: Callable[..., Team]) -> None:
    said = both(ranks(each=NO_MULTICAST), "build")
    assert said.startswith("WorkspaceDeclined")
    assert "rank 1" in said
    assert "NVLink multicast is unavailable" in said
    leaves_a_peer_waiting(ranks(each=NO_MULTICAST, environ=SHIM_OFF), "build")


def test_a_kernel_does_not_compile_on_one_rank(ranks: Callable[..., Team]) -> None:
    two = ranks()
    two.result(two.ranks[1].start("break_kernel"))
    said = both(two, "build")
    assert said.startswith("WorkspaceDeclined")
    assert "rank 1" in said
    assert "no compiler" in said
    without = ranks(environ=SHIM_OFF)
    without.result(without.ranks[1].start("break_kernel"))
    leaves_a_peer_waiting(without, "build")


def test_what_no_rank_can_have_is_flashinfers_own_error(ranks: Callable[..., Team]) -> None:
    assert both(ranks(), "build", tokens=-1) == "ValueError: max_token_num must be positive"


def test_ranks_that_ask_for_different_things(ranks: Callable[..., Team]) -> None:
    for said in ranks().all("build", each={1: {"tokens": 65}}):
        assert "max_token_num differs" in said


def test_switched_off_on_one_rank(ranks: Callable[..., Team]) -> None:
    """It abstains, so that the other one does not wait."""
    two = ranks(each={1: {"FI_SHIM_DISABLE": "cutedsl"}})
    assert both(two, "build") == "mnnvl-cutedsl"
    assert "FI_SHIM_DISABLE names cutedsl on this rank" in two.ranks[0].said()
