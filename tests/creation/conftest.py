from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch", reason="needs torch")
from creation.pool import Nursery, Team

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DEFAULT_RELEASE = "0.7.2"


@pytest.fixture(scope="session")
def nurseries() -> Iterator[dict[str, Nursery]]:
    """Releases that are loaded already."""
    loaded: dict[str, Nursery] = {}
    yield loaded
    for nursery in loaded.values():
        nursery.close()


@pytest.fixture
def team(nurseries: dict[str, Nursery], tmp_path: Path) -> Iterator[Callable[..., Team]]:
    """Start a team of ranks, by default of release 0.7.2; it is killed at the end of the test."""
    started: list[Team] = []

    def start(size: int = 2, *, release: str = DEFAULT_RELEASE, **options: Any) -> Team:
        if release not in nurseries:
            nurseries[release] = Nursery(release)
        folder = tmp_path / f"team-{len(started)}"
        folder.mkdir()
        started.append(Team(nurseries[release], folder, size, **options))
        return started[-1]

    yield start
    for one in started:
        one.end()
