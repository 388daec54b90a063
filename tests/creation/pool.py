"""Ranks for the tests of creation: warm processes per FlashInfer release, a fork for each rank, told what to do over a socket.

Every team has a process group and a simulated machine of its own. A job that takes too long fails its test with the stacks of all ranks, and
the team is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fetch_flashinfer
import pytest
from conversation import Conversation

if TYPE_CHECKING:
    from concurrent.futures import Future

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("nursery_program.py")
JOB_SECONDS = 40.0  # for any single job, unless the test says less
START_SECONDS = 120.0  # for the imports of a nursery
DUMP_SECONDS = 3.0  # for a rank to write its stacks
VOTE_SECONDS = "20"  # FI_SHIM_VOTE_TIMEOUT where it is not to be reached
LIMITS = {"doubt": 0.4, "late": 0.5, "silence": 1.5, "beat": 0.1, "safety": 0.2, "grace": 0.4}
"""The vote's other limits in tests that wait for them, in seconds."""
LEGACY_WARNING = "use the unified API"  # FlashInfer's own, about its legacy creator


class Rank:
    """One process. `number` is its global rank."""

    def __init__(self, address: str, number: int, order: dict[str, Any]) -> None:
        self.number = number
        self.log = Path(order["log"])
        try:
            self._conversation = Conversation(address, order)
        except EOFError:
            pytest.fail(f"rank {number} did not start:\n{self.log.read_text() if self.log.exists() else ''}")
        self.pid = self._conversation.pid

    def start(self, call: str, *, aside: bool = False, **keywords: Any) -> Future[Any]:
        """Begin a function of `rank_jobs`, after the jobs before it, or at once in a thread of its own."""
        return self._conversation.start({"call": call, "aside": aside, "keywords": keywords})

    def send(self, what: signal.Signals) -> None:
        os.kill(self.pid, what)

    def said(self) -> str:
        """What the process wrote to its standard streams."""
        return self.log.read_text()

    @property
    def is_stopped(self) -> bool:
        return self._state() == "T"

    @property
    def is_alive(self) -> bool:
        return self._state() not in ("", "Z")

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._conversation.end()

    def _state(self) -> str:
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return ""


class Nursery:
    """A process with one FlashInfer release loaded, from which ranks are forked.

    Args:
        release: of FlashInfer.
        jobs: the module of what its ranks can be told to do.
        path: further folders for it to import from.
    """

    def __init__(self, release: str, jobs: str = "rank_jobs", path: tuple[Path, ...] = ()) -> None:
        self.release = release
        self._folder = tempfile.TemporaryDirectory(prefix="nursery-")
        self.address = str(Path(self._folder.name) / "socket")
        self._noise = Path(self._folder.name) / "noise"
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("FI_SHIM", "PYTHON", "FLASHINFER", "RANK"))}
        folders = os.pathsep.join(map(str, (ROOT, fetch_flashinfer.fetch(release), PROGRAM.parent, *path)))
        environ |= {
            "PYTHONPATH": folders,
            "FI_SHIM": "0",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "-1",
            "FLASHINFER_DISABLE_VERSION_CHECK": "1",
        }
        environ["FLASHINFER_WORKSPACE_BASE"] = self._folder.name
        environ["RES_OPTIONS"] = "timeout:1 attempts:1"  # torch asks the name service for ::ffff:127.0.0.1 when it connects
        self.environ = {name: value for name, value in environ.items() if name != "FI_SHIM"}
        command = [sys.executable, "-W", "error", "-W", f"ignore:{LEGACY_WARNING}:DeprecationWarning", str(PROGRAM), self.address, jobs]
        with self._noise.open("w") as noise:
            self._program = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=noise, text=True
            )
        assert self._program.stdout is not None
        if self._program.stdout.readline() != "ready\n":
            pytest.fail(f"no ranks with FlashInfer {release}:\n{self._noise.read_text()}")

    def close(self) -> None:
        self._program.kill()
        self._program.communicate()
        self._folder.cleanup()


class Team:
    """The ranks of one world, each a process.

    Args:
        nursery: where they come from.
        folder: for their output and their simulated machine.
        size: how many.
        simulate: the simulated devices; default: 8 GiB each.
        faults: calls that fail.
        environ: variables of all ranks.
        each: rank -> further variables of that rank.
        active: whether fi_shim is activated, where FI_SHIM does not say otherwise.
        limits: the vote's limits besides FI_SHIM_VOTE_TIMEOUT; None: the defaults.
        begin: whether to make the process group.
    """

    def __init__(
        self,
        nursery: Nursery,
        folder: Path,
        size: int,
        *,
        simulate: str | None = None,
        faults: str = "",
        environ: dict[str, str] | None = None,
        each: dict[int, dict[str, str]] | None = None,
        active: bool = True,
        limits: dict[str, float] | None = None,
        begin: bool = True,
    ) -> None:
        self.release = nursery.release
        self.size = size
        self.ranks: list[Rank] = []
        self.port = 0
        self.hurried = "FI_SHIM_VOTE_TIMEOUT" in (environ or {})
        shared = {
            **nursery.environ, "FI_SHIM_VOTE_TIMEOUT": VOTE_SECONDS, "FI_SHIM_SIMULATE": simulate or f"{size}x8GiB", "FI_SHIM_SIMULATE_FAULTS": faults,
            "FI_SHIM_SIMULATE_STATE": str(folder / "machine"), **(environ or {}),
        }  # fmt: skip
        for rank in range(size):
            own = {**shared, "RANK": str(rank), **(each or {}).get(rank, {})}
            order: dict[str, Any] = {"environ": own, "log": str(folder / f"rank-{rank}.log")}
            order["active"] = active and own.get("FI_SHIM") != "0"
            self.ranks.append(Rank(nursery.address, rank, order))
        if limits is not None:
            self.all("scale_limits", limits=limits)
        if begin:
            self.begin()

    def begin(self, subgroups: dict[str, list[int]] | None = None) -> None:
        """Make the process group over a store that rank 0 hosts, and further groups by name."""
        self.port = self.port or self.result(self.ranks[0].start("host_store"))
        self.all("join_group", port=self.port, size=self.size, subgroups=subgroups or {})
        if self.hurried:
            self.all("connect")

    def begin_again(self) -> None:
        """Destroy the process group and make another one on the same store, where what the votes left behind still is."""
        self.all("leave_group")
        self.result(self.ranks[0].start("delete_keys_of_torch"))
        self.begin()

    def start(
        self, call: str, *, only: tuple[int, ...] | None = None, each: dict[int, dict[str, Any]] | None = None, **keywords: Any
    ) -> list[Future[Any]]:
        """Begin a job on all ranks (or only on some); `each` has further arguments for single ranks."""
        ranks = range(self.size) if only is None else only
        return [self.ranks[rank].start(call, **{**keywords, **(each or {}).get(rank, {})}) for rank in ranks]

    def all(self, call: str, *, limit: float = JOB_SECONDS, **keywords: Any) -> list[Any]:
        """The same, and wait for the answers."""
        return self.results(self.start(call, **keywords), limit=limit)

    def create(self, *, limit: float = JOB_SECONDS, **keywords: Any) -> list[Any]:
        """Let all ranks build a workspace."""
        return self.all("create", limit=limit, **keywords)

    def results(self, futures: list[Future[Any]], *, limit: float = JOB_SECONDS) -> list[Any]:
        """The answers within `limit` seconds in all; otherwise the test fails with the stacks of all ranks."""
        ends = time.monotonic() + limit
        return [self.result(future, limit=max(0.0, ends - time.monotonic())) for future in futures]

    def result(self, future: Future[Any], *, limit: float = JOB_SECONDS) -> Any:
        try:
            return future.result(limit)
        except FutureTimeoutError:
            pytest.fail(f"no answer within {limit:.0f} s\n{self.stacks()}")

    def stacks(self) -> str:
        """What all ranks are doing and what they wrote."""
        for rank in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                rank.send(signal.SIGUSR1)
        threading.Event().wait(DUMP_SECONDS)
        return "\n".join(f"--- rank {rank.number}\n{rank.said()[-6000:]}" for rank in self.ranks)

    def end(self) -> None:
        for rank in self.ranks:
            rank.end()
