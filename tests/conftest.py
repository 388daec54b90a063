"""Options and fixtures for all tests."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fetch_flashinfer
import hypothesis
import pytest
import releases

from fi_shim import cli
from fi_shim.compatibility import known_releases

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).parent.parent
PROGRAM_TIME_LIMIT_S = 300

hypothesis.settings.register_profile("busy machine", deadline=None)
hypothesis.settings.load_profile("busy machine")

ONLY_WHEN_NAMED = {"creation", "engines"}
"""Folders whose tests for the matrix do not run by default."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--releases", help="'all', or FlashInfer releases separated by commas; default: those of `make test`")
    parser.addoption("--thorough", action="store_true", help="2,000 examples a regime, as in `make matrix`")
    parser.addoption("--record-calls", action="store_true", help="write down what calls builds make, instead of comparing")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes many minutes runs where a marker expression names it."""
    if "matrix" in config.getoption("markexpr"):
        return
    long = [item for item in items if item.path.parent.name in ONLY_WHEN_NAMED and item.get_closest_marker("matrix")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `release` runs once for each."""
    own = any("release" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "release" in metafunc.fixturenames and not own:
        chosen = metafunc.config.getoption("releases")
        versions = releases.TESTED if not chosen else known_releases() if chosen == "all" else tuple(chosen.split(","))
        metafunc.parametrize("release", versions)


class Host:
    """A Python with (or without) one FlashInfer release on its path, for programs in fresh processes."""

    def __init__(self, release: str | None) -> None:
        self.release = release

    def environment(self, **variables: str) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("FI_SHIM", "PYTHON", "FLASHINFER"))}
        path = [*([str(fetch_flashinfer.fetch(self.release))] if self.release else []), str(REPOSITORY)]
        return {**inherited, "PYTHONPATH": os.pathsep.join(path), "FLASHINFER_DISABLE_VERSION_CHECK": "1", **variables}

    def run(self, *arguments: str, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `python *arguments`; with `check` it must succeed."""
        done = subprocess.run(
            [sys.executable, *arguments],
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            timeout=PROGRAM_TIME_LIMIT_S,
            check=False,
        )
        if check and done.returncode:
            pytest.fail(f"{arguments}: exit {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}")
        return done

    def program(self, name: str, *arguments: str, **variables: str) -> Any:
        """Run tests/real_flashinfer/programs/<name>.py; the last line it prints is its result as JSON."""
        path = REPOSITORY / "tests" / "real_flashinfer" / "programs" / f"{name}.py"
        return json.loads(self.run(str(path), *arguments, **variables).stdout.strip().splitlines()[-1])

    def code(self, source: str, **variables: str) -> Any:
        """Run source text; the last line it prints is its result as JSON."""
        return json.loads(self.run("-c", source, **variables).stdout.strip().splitlines()[-1])


@pytest.fixture
def host(request: pytest.FixtureRequest) -> Host:
    """The release of the test, if it has one."""
    return Host(request.getfixturevalue("release") if "release" in request.fixturenames else None)


@pytest.fixture
def host_with() -> Callable[[str | None], Host]:
    return Host


@pytest.fixture(scope="session")
def plugin_installed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Host], str]:
    """A host's PYTHONPATH behind metadata with the entry points of pyproject.toml, as an installation has them."""
    folder = tmp_path_factory.mktemp("installed")
    metadata = folder / "fi_shim-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: fi-shim\nVersion: 0\n")
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [
        line for group, points in declared.items() for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return lambda host: os.pathsep.join([str(folder), host.environment()["PYTHONPATH"]])


@pytest.fixture
def fi_shim(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command line in this process: arguments -> exit code, standard output, standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["fi-shim", *arguments])
        code = cli.run()
        output = capsys.readouterr()
        return code, output.out, output.err

    return run
