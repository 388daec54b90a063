"""Real FlashInfer is patched in child processes of every kind."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from conftest import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Host

pytestmark = pytest.mark.flashinfer
PROGRAM = str(REPOSITORY / "tests" / "real_flashinfer" / "programs" / "children.py")
LATER = pytest.mark.matrix


@pytest.mark.parametrize("version", ["0.6.0", pytest.param("0.7.4", marks=LATER)])
def test_an_import_under_the_guard_with_settings_of_its_own(version: str, host_with: Callable[[str], Host]) -> None:
    seen = host_with(version).program("children", "guarded", FI_SHIM_VOTE_TIMEOUT="9")
    assert seen["spawn"] == seen["forkserver"] == ["validator", True, "multiprocessing", 7.0]
    assert seen["fork"] == ["validator", True, "import", 7.0]


@pytest.mark.parametrize("version", [pytest.param("0.6.0", marks=LATER), "0.7.4"])
def test_run(version: str, host_with: Callable[[str], Host]) -> None:
    done = host_with(version).run("-m", "fi_shim", "run", "--", sys.executable, PROGRAM, FI_SHIM_VOTE_TIMEOUT="9")
    seen = json.loads(done.stdout.splitlines()[-1])
    assert set(seen) == {"spawn", "forkserver", "subprocess"}
    assert all(answer == ["validator", True, "run", 9.0] for answer in seen.values()), seen
    assert done.stderr.count("event=active") == 2  # the plain subprocess's is captured


@pytest.mark.matrix
def test_without_the_shim_nothing_is_patched(host_with: Callable[[str], Host]) -> None:
    done = host_with("0.7.4").run("-m", "fi_shim", "run", "--", sys.executable, PROGRAM, FI_SHIM="0")
    assert list(json.loads(done.stdout.splitlines()[-1]).values()) == [[None]] * 3
