from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 180.0  # for a whole child program; it is killed then


def _environ(**variables: str) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FI_SHIM") and name != "RANK"}
    path = os.pathsep.join([*(path for path in sys.path if path), str(ROOT)])
    return {**environ, "FI_SHIM": "0", "PYTHONPATH": path, **variables}


def _command(name: str, *arguments: object) -> list[str]:
    return [sys.executable, "-Werror", "-Wignore::DeprecationWarning", str(PROGRAMS / name), *map(str, arguments)]


@pytest.fixture
def machine_folder(tmp_path: Path) -> Path:
    return tmp_path / "machine"


@pytest.fixture
def simulated_environ(machine_folder: Path) -> Any:
    """Variables of a process on this test's simulated machine, without the patches."""

    def variables(simulate: str = "2x64MiB", faults: str = "") -> dict[str, str]:
        names = {"": simulate, "_STATE": str(machine_folder), "_FAULTS": faults}
        return _environ(**{f"FI_SHIM_SIMULATE{name}": value for name, value in names.items()})

    return variables


@pytest.fixture
def child(simulated_environ: Any) -> Any:
    """Start `programs/<name>` in a fresh process."""

    def start(name: str, *arguments: object, simulate: str = "2x64MiB", faults: str = "", **popen: Any) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        environ = simulated_environ(simulate, faults)
        return subprocess.Popen(_command(name, *arguments), env=environ, text=True, stdout=pipe, stderr=pipe, **popen)

    return start


@pytest.fixture
def outcome() -> Any:
    """A child's standard output; its failure is ours."""

    def of(process: subprocess.Popen[str]) -> str:
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"still running after {SECONDS:.0f} s:\n{out}\n{err}")
        assert process.returncode == 0, err
        return out

    return of


class Nursling:
    """A process that the nursery forked."""

    def __init__(self, nursery: socket.socket, command: list[str], environ: dict[str, str]) -> None:
        (input_end, self._input), (output, output_end) = os.pipe(), os.pipe()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed by kill)
        message = json.dumps({"command": command, "environ": environ}).encode()
        socket.send_fds(nursery, [message], [input_end, output_end, self._errors.fileno()])
        os.close(input_end)
        os.close(output_end)
        self.pid = int(nursery.recv(100))
        self.stdout = os.fdopen(output)

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.close(self._input)
        self.stdout.close()
        self._errors.close()


@pytest.fixture(scope="session")
def nursery() -> Any:
    """Processes with FlashInfer already imported start in milliseconds; it is imported before the simulation is switched on."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = _command("nursery.py", theirs.fileno())
    with subprocess.Popen(command, env=_environ(), pass_fds=(theirs.fileno(),)), ours:  # it ends when `ours` is closed
        theirs.close()
        assert ours.recv(100) == b"ready"
        yield ours
