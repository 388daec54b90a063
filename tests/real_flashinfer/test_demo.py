from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Host

pytestmark = pytest.mark.flashinfer


@pytest.mark.parametrize("version", ["0.6.5", "0.6.18"])
def test_the_flood_and_its_end(version: str, host_with: Callable[[str], Host]) -> None:
    seen = json.loads(host_with(version).run("-m", "fi_shim", "demo", "flood", "--json").stdout)
    assert seen["answers_equal"] is True
    assert (seen["without"]["log_lines"], seen["with"]["log_lines"]) == (36_864, 0)
    assert seen["without"]["calls"] == seen["with"]["calls"] == 28_032


def test_the_hang_and_its_end(host_with: Callable[[str], Host]) -> None:
    seen = json.loads(host_with("0.6.18").run("-m", "fi_shim", "demo", "hang", "--json").stdout)
    assert seen["devices"] == "simulated"
    assert [rank["outcome"] for rank in seen["without"]["ranks"]] == ["hangs", "hangs", "hangs", "RuntimeError"]
    assert [rank["outcome"] for rank in seen["with"]["ranks"]] == ["WorkspaceDeclined"] * 4
    assert len({rank["text"] for rank in seen["with"]["ranks"]}) == 1
    assert all(rank["seconds"] < 1 for rank in seen["with"]["ranks"])
