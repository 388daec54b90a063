"""A thread that does something every few seconds, and is gone while the process forks.

Python warns of a fork in a process with threads (from 3.12 on), and a thread that is at work at that moment leaves its locks to the child as
they were. Some releases of 3.13 and 3.14 (cpython issue 137109) count the threads when ours is back, and warn all the same.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

PERIOD_S: Final = 10.0
FORK_WAITS_S: Final = 1.0
"""How long a fork waits for the thread's end; one that hangs in a write then stays, and the fork happens beside it."""


class Heartbeat:
    """Calls `beat` every PERIOD_S seconds; what that raises is forgotten. `pause`, `resume` and `begin_anew` are for os.register_at_fork."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat
        self.wanted = False
        """Whether it beats, but for the moment of a fork."""
        self._thread: threading.Thread | None = None
        self._over = threading.Event()

    def start(self) -> None:
        """Begin, if it does not beat already. A system that gives no thread is not an error."""
        if self._thread is not None and self._thread.is_alive():
            return
        with contextlib.suppress(RuntimeError):
            thread = threading.Thread(target=self._run, args=(self._over,), name="fi_shim-state", daemon=True)
            thread.start()
            self._thread, self.wanted = thread, True  # one that a fork has ended meanwhile is not alive, and the next call begins anew

    def stop(self) -> None:
        """End, without waiting for it."""
        self.wanted = False
        self._end_thread()

    def pause(self) -> None:
        """Before a fork: wait until the thread is gone."""
        with contextlib.suppress(Exception):
            thread = self._end_thread()
            if thread is not None and thread is not threading.current_thread():
                _wait_for(thread)

    def resume(self) -> None:
        """In the parent, after a fork."""
        if self.wanted:
            self.start()

    def begin_anew(self) -> None:
        """In the child, after a fork: no thread, and none wanted."""
        self._thread, self._over, self.wanted = None, threading.Event(), False

    def _end_thread(self) -> threading.Thread | None:
        thread, self._thread = self._thread, None
        self._over.set()
        self._over = threading.Event()
        return thread

    def _run(self, over: threading.Event) -> None:
        while not over.wait(PERIOD_S):
            with contextlib.suppress(Exception):
                self._beat()


def _wait_for(thread: threading.Thread) -> None:
    """Until the system does not count it any more: before Python 3.13, `join` returns a moment earlier."""
    end = time.monotonic() + FORK_WAITS_S
    thread.join(FORK_WAITS_S)
    task = Path(f"/proc/self/task/{thread.native_id}")
    while task.exists() and time.monotonic() < end:
        time.sleep(0.0001)
