"""The ledger in a folder that all processes of a simulation share, as they share a real machine's memory.

One file, `journal`: every change is a line of JSON at its end, and each process replays what the others wrote. Locks on bytes far
behind its end order the writers and tell who is alive: a process locks a byte of its own, and the kernel lets go of it when the
process ends, however it ends; a forked child does not inherit it. An exported allocation is a file `memory-<number>`, and a
descriptor of it holds a shared flock that lasts, across dup, fork and SCM_RIGHTS, until the last copy of it is closed.

A process must have one instance only, and must not open the journal otherwise: closing it would give up the process's byte.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import weakref
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fi_shim.testing.bindings import Refusal
from fi_shim.testing.ledger import Ledger
from fi_shim.testing.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fi_shim.testing.ledger import Allocation

WRITERS: Final = 1 << 40  # the byte whose lock is the right to write
LIVES: Final = WRITERS + 1  # process n's own byte is this plus n
CHUNK: Final = 1 << 16  # bytes read at a time


class SharedMachine(Machine):
    """A machine whose memory all processes with the same folder see.

    Args:
        folder: made if it does not exist.
        capacities: bytes of each device; the folder's first process decides.

    Raises:
        ValueError: the folder belongs to a machine with other devices.
    """

    def __init__(self, folder: Path, capacities: Sequence[int]) -> None:
        super().__init__(capacities)
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._open()
        with self.transaction():
            pass  # enter now: the folder's maker is known, and other devices are reported at once
        itself = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forget(itself))

    def _open(self) -> None:
        self._threads = threading.RLock()
        self._depth = 0
        self._file = os.open(self.folder / "journal", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._read = 0
        self._partial = b""
        self.ledger = Ledger(self.ledger.capacities)
        self.process = 0

    def forget(self) -> None:
        """In a forked child: another process, with no memory of its own."""
        os.close(self._file)  # drops this process's locks, of which it has none
        self._open()

    @contextmanager
    def transaction(self) -> Iterator[Ledger]:
        with self._threads:
            if self._depth:
                yield self.ledger
                return
            fcntl.lockf(self._file, fcntl.LOCK_EX, 1, WRITERS)
            self._depth = 1
            try:
                self._catch_up()
                if not self.process:
                    self._enter()
                yield self.ledger
            finally:
                self._depth = 0
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, WRITERS)

    def post(self, *record: Any) -> None:
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        self.ledger.apply(record)
        os.write(self._file, line)
        self._read += len(line)

    def reclaim(self) -> None:
        for process in list(self.ledger.processes):
            if process != self.process and not self._lives(process):
                self.post("died", process)
        while gone := [one for one in self.ledger.unheld() if not self._has_descriptors(one)]:
            for allocation in gone:  # a multicast object that goes lets go of the memory bound to it: look again
                self.post("gone", allocation.number)
                self._memory_file(allocation.number).unlink(missing_ok=True)

    def export(self, number: int) -> int:
        descriptor = os.open(self._memory_file(number), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if not self.ledger.allocations[number].exported:
            self.post("export", number)
        return descriptor

    def imported(self, descriptor: int) -> int:
        try:
            target = Path(f"/proc/self/fd/{descriptor}").readlink()
        except OSError:
            raise Refusal("CUDA_ERROR_UNKNOWN") from None
        prefix, _, number = target.name.partition("-")
        if target.parent != self.folder or prefix != "memory" or not number.isdecimal():
            raise Refusal("CUDA_ERROR_UNKNOWN")
        return int(number)

    def descriptors(self, pid: int) -> dict[int, int]:
        """Open descriptors of exported memory in a process: descriptor -> number of the allocation."""
        found: dict[int, int] = {}
        with contextlib.suppress(OSError):  # it may just have ended
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    target = entry.readlink()
                    if target.parent == self.folder and target.name.startswith("memory-"):
                        found[int(entry.name)] = int(target.name.partition("-")[2])
        return found

    def alone(self) -> bool:
        """Whether no other process of this machine lives, inside a transaction."""
        self.reclaim()
        return set(self.ledger.processes) <= {self.process}

    def _memory_file(self, number: int) -> Path:
        return self.folder / f"memory-{number}"

    def _catch_up(self) -> None:
        while data := os.pread(self._file, CHUNK, self._read):
            self._read += len(data)
            *lines, self._partial = (self._partial + data).split(b"\n")
            for line in lines:
                self.ledger.apply(json.loads(line))
        if self._partial:  # its writer was killed in the middle; it never happened
            os.ftruncate(self._file, self._read - len(self._partial))
            self._read, self._partial = self._read - len(self._partial), b""

    def _enter(self) -> None:
        if not self._read:
            self.post("machine", *self.ledger.capacities)
        self.process = self.ledger.last_process + 1
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, LIVES + self.process)
        self.post("enter", self.process, os.getpid())

    def _lives(self, process: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, LIVES + process)
        except OSError:
            return True
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, LIVES + process)
        return False

    def _has_descriptors(self, allocation: Allocation) -> bool:
        try:
            descriptor = os.open(self._memory_file(allocation.number), os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False


def _forget(machine: weakref.ref[SharedMachine]) -> None:
    living = machine()
    if living is not None:
        living.forget()
