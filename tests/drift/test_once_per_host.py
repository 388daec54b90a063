from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from typing import TYPE_CHECKING

import pytest

from fi_shim.drift import once_per_host as module
from fi_shim.drift.once_per_host import once_per_host

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import sys, pathlib, time
from fi_shim.drift.once_per_host import once_per_host
def work():
    with open(sys.argv[2], "a") as file:
        file.write("worked\\n")
    time.sleep(0.5)
    return "answer " * 50000
print(len(once_per_host(sys.argv[1], work, limit_s=30)), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


def test_one_process_works_for_all(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, name, str(tmp_path / "work")]
    environment = {**os.environ, "FI_SHIM": "0"}
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(4)]
    try:
        assert [process.stdout.readline() for process in processes if process.stdout] == ["350000\n"] * 4
    finally:
        for process in processes:
            process.communicate("end\n")
    assert (tmp_path / "work").read_text(encoding="utf-8") == "worked\n"


def test_a_failure_is_its_own_and_the_next_one_works(name: str) -> None:
    def fail() -> str:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        once_per_host(name, fail, limit_s=5)
    assert once_per_host(name, lambda: "yes", limit_s=5) == "yes"
    assert once_per_host(name, fail, limit_s=5) == "yes"


def test_who_waits_for_a_process_that_fails_works_itself(name: str) -> None:
    begun, end = threading.Event(), threading.Event()

    def fail() -> str:
        begun.set()
        end.wait(10)
        raise ValueError("no")

    def first() -> None:
        with pytest.raises(ValueError, match="no"):
            once_per_host(name, fail, limit_s=5)

    thread = threading.Thread(target=first)
    thread.start()
    begun.wait(10)
    threading.Timer(0.2, end.set).start()
    assert once_per_host(name, lambda: "own", limit_s=10) == "own"
    thread.join()


def test_nobody_waits_beyond_the_limit(name: str) -> None:
    end = threading.Event()
    thread = threading.Thread(target=once_per_host, args=(name, lambda: str(end.wait(20))), kwargs={"limit_s": 5})
    thread.start()
    started = time.monotonic()
    while module._ask("\0no such name", time.monotonic() + 1):
        pass
    assert once_per_host(name, lambda: "own", limit_s=0.5) == "own"
    assert time.monotonic() - started < 5
    end.set()
    thread.join()
