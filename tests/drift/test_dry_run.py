from __future__ import annotations

import atexit
import gc
import logging
import os
import random
import socket
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import fetch_flashinfer
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import trees

from fi_shim.compatibility import load_release
from fi_shim.drift import dry_run as module
from fi_shim.drift.creation_run import ReleaseCode
from fi_shim.drift.dry_run import DryRunError, dry_run
from fi_shim.drift.shapes import confidential_requests, legacy_requests, witness_requests

pytestmark = pytest.mark.flashinfer

REQUEST: dict[str, Any] = {"world_size": 4, "max_token_num": 64, "hidden_dim": 4096, "dtype": "float32"}


def traces() -> dict[str, Any]:
    """What a process has that something could have left behind."""
    gc.collect()
    handlers = {name: list(getattr(logger, "handlers", [])) for name, logger in logging.root.manager.loggerDict.items()}
    return {
        "descriptors": sorted(f"{entry.name} {entry.readlink()}" for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()),
        "sockets": Path("/proc/self/net/unix").read_text(encoding="utf-8").count("dry-run"),
        "handlers": (handlers, list(logging.root.handlers), logging.root.level),
        "random": random.getstate(),
        "modules": dict(sys.modules),
        "path": (list(sys.path), list(sys.meta_path), list(sys.path_hooks)),
        "environment": dict(os.environ),
        "warnings": list(warnings.filters),
        "threads": threading.enumerate(),
        "temporary": sorted(Path(tempfile.gettempdir()).iterdir()),
        "timeout": socket.getdefaulttimeout(),
        "atexit": atexit._ncallbacks(),
        "hooks": (sys.excepthook, sys.unraisablehook, sys.stdout, sys.stderr, __builtins__),
    }


@pytest.fixture(autouse=True)
def own_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


def without_our_own(seen: dict[str, Any]) -> dict[str, Any]:
    """The folder of /proc that is being read has a descriptor of its own."""
    seen["descriptors"] = [line for line in seen["descriptors"] if "/proc/" not in line]
    return seen


@pytest.mark.parametrize("release", ["0.6.0", "0.6.12", "0.6.16", "0.7.4"])
def test_it_leaves_no_trace_in_a_process_that_imports_it(release: str, capfd: pytest.CaptureFixture[str]) -> None:
    root = fetch_flashinfer.fetch(release)
    before = without_our_own(traces())
    code = ReleaseCode(root)
    for backend in ("trtllm", "mnnvl"):
        for request in [*witness_requests(backend), *confidential_requests(backend)]:
            assert not code.create(backend, request).failed
    for request in legacy_requests():
        assert not code.create("legacy", request).failed
    del code
    assert without_our_own(traces()) == before
    assert capfd.readouterr() == ("", "")


HALF_WAY = "raise RuntimeError('half-way')"
TRACES = (
    "    import os, socket, logging, random, warnings, sys, tempfile, threading, atexit, subprocess\n"
    "    os.environ['TRACE'] = '1'; random.seed(1); random.random(); warnings.simplefilter('ignore'); logging.basicConfig()\n"
    "    logging.getLogger('trace').addHandler(logging.StreamHandler()); sys.path.append('trace'); sys.modules['trace'] = 1\n"
    "    socket.socket(); os.open('/tmp/dry-run-trace', os.O_CREAT); tempfile.mkdtemp(); threading.Thread(target=input).start()\n"
    "    atexit.register(print); os.close(1); subprocess.run(['true']); open('/tmp/dry-run-trace', 'w')"
)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("comm/trtllm_ar.py", r"^    # initialize workspace$", f"    {HALF_WAY}"),  # all buffers are there
        ("comm/mnnvl.py", r"^        self._map_unicast_buffers\(\)$", f"        {HALF_WAY}"),  # between handle and mapping
        ("comm/mnnvl.py", r"^SIGNAL_PAD_SIZE = 2048", HALF_WAY),  # while it is imported
        (
            "comm/trtllm_ar.py", r"^    # initialize workspace$",
            TRACES,
        ),
    ],
)  # fmt: skip
def test_nor_does_code_that_fails_half_way(file: str, old: str, new: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trees.edit(trees.copy("0.7.4", tmp_path), file, old, new)
    before = without_our_own(traces())
    try:
        code = ReleaseCode(tmp_path)
    except RuntimeError as error:
        assert str(error) == "half-way"  # noqa: PT017
        error.__traceback__ = None
    else:
        failed = code.create("trtllm", REQUEST).failed
        assert "half-way" in failed or "a dry run opens no files" in failed
        del code
    assert without_our_own(traces()) == before
    assert capfd.readouterr() == ("", "")


def test_outcomes_from_the_child_are_the_tables_witnesses() -> None:
    rows = load_release("0.7.4").witnesses["trtllm"]
    requests = [("trtllm", {key: value for key, value in row.items() if key not in {"requested", "allocated"}}) for row in rows]
    outcomes = dry_run(fetch_flashinfer.fetch("0.7.4"), requests)
    assert [[allocated for *_, allocated in outcome.allocations] for outcome in outcomes] == [row["allocated"] for row in rows]


def test_code_that_does_not_end_is_ended(tmp_path: Path) -> None:
    trees.edit(trees.copy("0.7.4", tmp_path), "comm/trtllm_ar.py", r"^    # initialize workspace$", "    while True: pass")
    started = time.monotonic()
    with pytest.raises(DryRunError, match="did not end within 2 s"):
        dry_run(tmp_path, [("trtllm", REQUEST)], time_limit_s=2)
    assert time.monotonic() - started < 10
    assert module.TIME_LIMIT_S == 60


def test_code_that_cannot_be_imported_is_an_error_that_says_so(tmp_path: Path) -> None:
    trees.edit(trees.copy("0.7.4", tmp_path), "comm/mnnvl.py", r"^SIGNAL_PAD_SIZE = 2048", HALF_WAY)
    with pytest.raises(DryRunError, match="half-way"):
        dry_run(tmp_path, [("trtllm", REQUEST)])


def test_the_child_sees_no_device_and_none_of_our_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    real = module.subprocess.Popen

    def noting(command: Any, **options: Any) -> Any:
        seen.update(options["env"])
        return real(command, **options)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("FI_SHIM_SIMULATE", "2x1GiB")
    monkeypatch.setattr(module.subprocess, "Popen", noting)
    dry_run(fetch_flashinfer.fetch("0.7.4"), [("trtllm", REQUEST)])
    assert seen["CUDA_VISIBLE_DEVICES"] == ""
    assert {key: value for key, value in seen.items() if key.startswith("FI_SHIM")} == {"FI_SHIM": "0"}
