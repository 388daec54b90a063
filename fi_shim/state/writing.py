"""This process's state file: status() as JSON in FI_SHIM_STATE_DIR, replaced in one step at each change that matters.

Who changes something writes, in its own thread: that is rare. Rejections are not: a heartbeat looks at them every few seconds and says by the
file's time that the process lives, for readers that cannot see its pid. It starts with the first patch, so that what never imports FlashInfer
has none; it takes no lock but the file's, so that a fork that could not wait for it harms nobody; a forked child begins its own.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import fi_shim
from fi_shim import log
from fi_shim.registry import APPLIED
from fi_shim.state.counts import COUNTS
from fi_shim.state.heartbeat import Heartbeat
from fi_shim.state.processes import this_process

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK_LIMIT_S: Final = 1.0
FORMAT: Final = 1


class StateFile:
    """Writes one process's file. Nothing here raises: a folder that cannot be written is told once."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._warned = False
        self._hooked = False
        self._heartbeat = Heartbeat(self._show_life)
        self._begin_anew()

    def _begin_anew(self) -> None:
        """What a process must have of its own."""
        self._lock = threading.Lock()  # of the file, and of what was written last
        self._process = this_process()
        self._next, self._written = 0, 0
        self._last: dict[str, Any] = {}
        self._heartbeat.begin_anew()

    def open(self, folder: str) -> None:
        """Write to `folder` from now on. The command line is no engine: it leaves no file."""
        if _is_command_line():
            return
        self._folder = Path(folder)
        if not self._hooked:
            self._hooked = True
            atexit.register(self.publish)
            os.register_at_fork(before=self._heartbeat.pause, after_in_parent=self._heartbeat.resume, after_in_child=self._after_fork)
        COUNTS.publish = self.publish
        self.publish()

    def close(self) -> None:
        """Write a last time and stop."""
        self.publish()
        self._folder = None
        COUNTS.publish = lambda: None
        self._heartbeat.stop()

    def publish(self) -> None:
        """Write what `status()` says now."""
        if self._folder is None:
            return
        with contextlib.suppress(Exception):
            from fi_shim.report import status

            with self._locked():
                self._next += 1
                number = self._next
            state = status()  # takes locks of its own: not under ours
            with self._locked():
                if number > self._written:  # else a later look has been written already
                    self._written, self._last = number, state
                    self._write()
            if any(patch["state"] == APPLIED for patch in state["patches"].values()):
                self.keep_alive()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Not for long: where a write hangs, as on a network folder whose host is gone, an engine goes on without its file."""
        if not self._lock.acquire(timeout=LOCK_LIMIT_S):
            raise TimeoutError
        try:
            yield
        finally:
            self._lock.release()

    def keep_alive(self) -> None:
        """Start the heartbeat, if there is none."""
        if self._folder is not None:
            self._heartbeat.start()

    def _show_life(self) -> None:
        with self._locked():
            if self._folder is not None:
                self._refresh()

    def _refresh(self) -> None:
        """A rejection or a remembered decline more, or only a sign of life. With our lock held."""
        assert self._folder is not None
        counts = COUNTS.as_dict()
        if counts != self._last["counts"] or not self._path(self._folder).exists():
            self._last = {**self._last, "counts": counts, "suppressed": {"rejections": counts["rejections"]}}
            self._write()
        else:
            os.utime(self._path(self._folder))

    def _path(self, folder: Path) -> Path:
        host = self._process["host"].replace("/", "_")
        return folder / f"{host}-{self._process['pid']}.json"

    def _write(self) -> None:
        """With our lock held."""
        if self._folder is None:
            return
        path = self._path(self._folder)
        try:
            process = {**self._process, "rank": self._last["process"]["rank"], "heartbeat": self._heartbeat.wanted}
            text = json.dumps(
                {"format": FORMAT, "version": fi_shim.__version__, "written": round(time.time(), 3), **self._last, "process": process},
                default=str,
            )
            self._folder.mkdir(parents=True, exist_ok=True)
            _replace(path, text)
        except Exception as error:  # noqa: BLE001  # an engine does not stop because nobody can watch it
            if not self._warned:
                self._warned = True
                log.event("warning", "state_not_written", path=path, error=repr(error))

    def _after_fork(self) -> None:
        """In the child, with one thread and the parent's locks as they were: write what the parent last wrote, as ours."""
        with contextlib.suppress(Exception):
            last, beating = self._last, self._heartbeat.wanted
            COUNTS.begin_anew()
            self._begin_anew()
            if self._folder is None or not last:
                return
            self._last = {**last, "process": self._process, "counts": COUNTS.as_dict(), "declines": [], "suppressed": {"rejections": 0}}
            if beating:
                self.keep_alive()
            with self._locked():
                self._write()


def _replace(path: Path, text: str) -> None:
    """Put a whole file in place, so that a reader never sees half of one."""
    new = path.with_name(f"{path.name}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(new, flags, 0o644), "w", encoding="utf-8") as stream:
        stream.write(text)
    new.replace(path)


def _is_command_line() -> bool:
    """Whether this is `fi-shim` or `python -m fi_shim`, by how the interpreter was started: sys.argv is not ready yet."""
    started = iter(sys.orig_argv[1:])
    for argument in started:
        if argument == "-m":
            return next(started, "") == "fi_shim"
        if argument in {"-X", "-W"}:
            next(started, "")
        elif not argument.startswith("-"):
            return Path(argument).name == "fi-shim"
    return False


STATE_FILE: Final = StateFile()
