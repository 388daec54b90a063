from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import fetch_engine
import pytest

pytest.importorskip("torch", reason="needs torch")
from creation.pool import Nursery, Team

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
FLASHINFER = {  # what each release pins
    "sglang-0.5.9": "0.6.3", "sglang-0.5.10": "0.6.7.post2", "sglang-0.5.11": "0.6.8.post1", "sglang-0.5.12": "0.6.11.post1",
    "sglang-0.5.13": "0.6.12", "sglang-0.5.14": "0.6.12", "sglang-0.5.15": "0.6.12", "sglang-0.5.16": "0.6.14",
    "sglang-0.5.17": "0.6.15.post1", "sglang-0.5.18": "0.6.17", "sglang-0.5.19": "0.6.18", "sglang-0.5.20": "0.6.18",
    "sglang-0.5.21": "0.6.18", "sglang-0.5.22": "0.7.1", "sglang-0.5.23": "0.7.2", "vllm-0.23.0": "0.6.12", "vllm-0.33.0": "0.7.2.post1",
}  # fmt: skip


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
            engine_nurseries[key] = Nursery(key[1], f"{name}_jobs", (HERE, fetch_engine.fetch(name, version)))
        folder = tmp_path / f"team-{len(started)}"
        folder.mkdir()
        started.append(Team(engine_nurseries[key], folder, size, **options))
        started[-1].all("enter", backend=backend)
        return started[-1]

    yield start
    for one in started:
        one.end()
