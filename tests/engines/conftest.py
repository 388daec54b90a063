from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import fetch_engine
import pytest

pytest.importorskip("torch", reason="needs torch")
from creation.pool import Nursery, Team
from engines.driven import FLASHINFER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
MOST_LOADED = 8  # engines kept in memory, half a gigabyte each


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests of one release follow each other, whatever the file, in one worker: an engine takes ten seconds to load."""
    places = [place for place, item in enumerate(items) if item.path.parent == HERE]
    for place, item in zip(places, sorted((items[place] for place in places), key=_release), strict=True):
        item.add_marker(pytest.mark.xdist_group(_release(item)))
        items[place] = item


def _release(item: pytest.Item) -> str:
    callspec = getattr(item, "callspec", None)
    return "" if callspec is None else str(callspec.params.get("release", ""))


@pytest.fixture(scope="session")
def engine_nurseries() -> Iterator[dict[tuple[str, str], Nursery]]:
    """Engines that are loaded already, each with one FlashInfer."""
    loaded: dict[tuple[str, str], Nursery] = {}
    yield loaded
    for nursery in loaded.values():
        nursery.close()


@pytest.fixture
def engine(engine_nurseries: dict[tuple[str, str], Nursery], tmp_path: Path) -> Iterator[Callable[..., Team]]:
    """Start two ranks of an engine, by default with the FlashInfer that it pins; they are killed at the end of the test."""
    started: list[Team] = []

    def start(release: str, *, flashinfer: str | None = None, backend: str = "trtllm", size: int = 2, **options: Any) -> Team:
        name, _, version = release.partition("-")
        key = (release, flashinfer or FLASHINFER[release])
        if key not in engine_nurseries:
            while len(engine_nurseries) >= MOST_LOADED:
                engine_nurseries.pop(next(iter(engine_nurseries))).close()
            engine_nurseries[key] = Nursery(key[1], f"{name}_jobs", (HERE, fetch_engine.fetch(name, version)))
        folder = tmp_path / f"team-{len(started)}"
        folder.mkdir()
        started.append(Team(engine_nurseries[key], folder, size, **options))
        started[-1].all("enter", backend=backend)
        return started[-1]

    yield start
    for one in started:
        one.end()
