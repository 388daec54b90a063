from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from workspace.vote_processes import Nursery, Team

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def vote_nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def team(vote_nursery: Nursery) -> Iterator[Callable[..., Team]]:
    """Makes teams of rank processes, which end with the test."""
    teams: list[Team] = []

    def make(size: int, **options: object) -> Team:
        teams.append(Team(vote_nursery, size, **options))  # type: ignore[arg-type]
        return teams[-1]

    yield make
    for made in teams:
        made.end()
