"""How long it takes to recognise a FlashInfer: this thread's own CPU time, so that a busy machine does not count."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from drift import trees

from fi_shim.drift.identity import identify

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.flashinfer

TRIES = 3


def seconds(tree: Path) -> float:
    spent = []
    for _ in range(TRIES):
        began = time.thread_time()
        identify(tree)
        spent.append(time.thread_time() - began)
    return min(spent)


@pytest.mark.parametrize("release", ["0.6.0", "0.7.4"])
def test_fingerprints_take_less_than_200_ms(release: str, tmp_path: Path) -> None:
    tree = trees.copy(release, tmp_path)
    for path in tree.rglob("*.py"):
        path.write_text(path.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")  # so that no hash of a file is known
    assert identify(tree).how == "functions"
    assert seconds(tree) < 0.2


def test_hashes_take_a_few_milliseconds(tmp_path: Path) -> None:
    tree = trees.copy("0.7.4", tmp_path)
    assert identify(tree).how == "files"
    assert seconds(tree) < 0.02
