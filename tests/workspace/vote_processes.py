"""Rank processes for the tests of the vote: warm, one fork each, told what to do over a socket."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conversation import Conversation

if TYPE_CHECKING:
    from concurrent.futures import Future

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("vote_rank_program.py")
SECONDS = 30.0  # for any single answer
SMALL = {
    "arrival": 1.2,
    "late": 0.4,
    "doubt": 0.3,
    "silence": 1.2,
    "beat": 0.1,
    "safety": 0.15,
    "grace": 0.3,
    "warn_first": 0.2,
    "warn_every": 0.2,
}
"""Limits of tests that wait for them, in seconds."""
LARGE = {"arrival": 25.0, "silence": 25.0}
"""Limits that are not to be reached."""


class Process:
    """One rank, or the host of a store."""

    def __init__(self, address: str) -> None:
        self._conversation = Conversation(address)
        self.pid = self._conversation.pid

    def start(self, call: str, **keywords: Any) -> Future[Any]:
        return self._conversation.start({"call": call, **keywords})

    def call(self, call: str, **keywords: Any) -> Any:
        return self.start(call, **keywords).result(SECONDS)

    def send(self, what: signal.Signals) -> None:
        os.kill(self.pid, what)

    def until_stopped(self, future: Future[Any]) -> bool:
        """Wait until the process is stopped (True), or the future is done."""
        while not future.done():
            try:
                if Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                    return True
            except OSError:
                return False
            time.sleep(0.002)
        return False

    def end(self) -> None:
        if self._conversation.is_over:  # its pid may be another's by now
            return
        for what in (signal.SIGCONT, signal.SIGKILL):
            try:
                os.kill(self.pid, what)
            except ProcessLookupError:
                break
        self._conversation.wait_for_end(SECONDS)


class Nursery:
    """Where processes come from. What they write to stderr is in `noise`."""

    def __init__(self) -> None:
        self._processes: list[Process] = []
        self._folder = tempfile.TemporaryDirectory()
        self._address = str(Path(self._folder.name) / "socket")
        self._noise = (Path(self._folder.name) / "noise").open("w+")
        # c10d looks up the name of whoever it connects to; a name server that does not answer is not what is tested
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:1 attempts:1"}
        command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", str(PROGRAM), self._address]
        self._program = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._noise, text=True, bufsize=1
        )
        assert self._program.stdout is not None
        assert self._program.stdout.readline() == "ready\n"

    def process(self) -> Process:
        self._processes.append(Process(self._address))
        return self._processes[-1]

    def noise(self) -> str:
        return (Path(self._folder.name) / "noise").read_text()

    def close(self) -> None:
        for process in self._processes:
            process.end()
        self._program.communicate()
        self._noise.close()
        self._folder.cleanup()


class Team:
    """The ranks of one group and the host of its store, all of them processes of their own."""

    def __init__(self, nursery: Nursery, size: int, *, name: str = "team", host_is_rank_0: bool = False, **host: Any) -> None:
        self.name = name
        self.ranks = [nursery.process() for _ in range(size)]
        self.host = self.ranks[0] if host_is_rank_0 else nursery.process()
        self.port = self.host.call("host", **host)
        for process in self.ranks:
            port = 0 if process is self.host else self.port
            process.call("group", name=self.name, port=port, ranks=list(range(size)))

    def plan(self, rank: int, when: str, number: int, victim: Process, what: signal.Signals) -> None:
        """Connect. Then: when this rank comes to its operation of this number, the victim gets the signal, before or after it."""
        assert {answer["outcome"] for answer in self.vote()} == {"yes"}
        self.ranks[rank].call("fault", name=self.name, plan=[when, number, victim.pid, what])

    def forget_plans(self) -> None:
        for process in self.ranks:
            process.call("fault", name=self.name, plan=None)

    def start(
        self, *which: int, limits: dict[str, float] | None = None, records: dict[int, Any] | None = None, **keywords: Any
    ) -> list[Future[Any]]:
        """Begin a vote on these ranks (none given: all)."""
        return [
            self.ranks[rank].start(
                "vote",
                name=self.name,
                rank=rank,
                size=len(self.ranks),
                limits=limits or LARGE,
                record=(records or {}).get(rank),
                **keywords,
            )
            for rank in which or range(len(self.ranks))
        ]

    def vote(self, *which: int, **keywords: Any) -> list[Any]:
        return [future.result(SECONDS) for future in self.start(*which, **keywords)]

    def end(self) -> None:
        for process in {*self.ranks, self.host}:
            process.end()
