from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 120

# What a test script starts with: whether the shim is active in a process that looks for FlashInfer, and how it came there.
LOOK = """
import json, os, subprocess, sys

def look():
    import importlib.util
    importlib.util.find_spec("flashinfer")
    package = sys.modules.get("fi_shim")
    if package is None or not package.status()["active"]:
        return None
    return [package.status()["route"], package.status()["settings"]["vote_timeout"]["value"]]
"""


class Python:
    """Fresh interpreters with this package (and no FlashInfer) on the path."""

    def environment(self, *path: object, **variables: str) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("FI_SHIM", "PYTHON"))}
        return {**inherited, "PYTHONPATH": os.pathsep.join([*map(str, path), str(REPOSITORY)]), **variables}

    def run(self, *arguments: str, path: tuple[object, ...] = (), **variables: str) -> Any:
        return subprocess.run(
            [sys.executable, *arguments],
            env=self.environment(*path, **variables),
            cwd="/",  # which `python -c` puts first on its path
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )


@pytest.fixture
def python() -> Python:
    return Python()


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """A script on disk, as multiprocessing needs one: LOOK and what the test adds."""

    def write(source: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(LOOK + source)
        return str(path)

    return write


@pytest.fixture
def flashinfer_alone(tmp_path: Path) -> Path:
    """A folder with a package that has FlashInfer's name, and nothing in it."""
    package = tmp_path / "alone" / "flashinfer"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("imported = True\n")
    return package.parent
