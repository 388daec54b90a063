"""Performs steps in a daemon thread, while the caller waits outside and leaves when its limit has passed."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, Generic

from fi_shim.workspace.ballot.operations import Clock, GaveUpError, Promise, Sleep, T, Waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from fi_shim.workspace.ballot.operations import Operation, Steps

_SLICES: Final = 10  # of the grace; a process that is stopped and continued loses one of them, not its verdict
_IDLE_SECONDS: Final = 10.0  # then the thread ends; the next task starts a new one
_EXIT_SECONDS: Final = 1.0  # for what is under way when the interpreter ends: a thread inside C++ would end the process with an abort
_WORKERS: Final[weakref.WeakSet[Worker]] = weakref.WeakSet()


class SilentError(RuntimeError):
    """The store or the peers do not answer within the limit, or cannot any more. The text says who."""


class Task(Generic[T]):
    """Steps on their way. `until`: the caller does not give up before, in seconds of the monotonic clock."""

    def __init__(self, steps: Steps[T], limit: float, on_waiting: Callable[[tuple[int, ...], float], object] | None) -> None:
        self.steps = steps
        self.until = time.monotonic() + limit
        self.on_waiting = on_waiting
        self.performed = 0
        self.gave_up = False
        self.done = threading.Event()
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._told = False  # the steps know that the caller has given up
        self._result: T | None = None
        self._error: BaseException | None = None

    def wait(self, grace: float) -> bool:
        """Wait until the steps have ended. False: the limit has passed, and then nothing moved for `grace` seconds; the caller has given up."""
        quiet, performed = 0, -1
        try:
            while not self.done.wait(max(self.until - time.monotonic(), grace / _SLICES)):
                if time.monotonic() < self.until:
                    continue
                quiet, performed = (quiet + 1 if performed == self.performed else 0), self.performed
                if quiet >= _SLICES and self.give_up():
                    return False
            return True
        finally:
            self.give_up()  # the caller may also be interrupted

    def result(self) -> T:
        """Return what the steps returned, or raise what they raised."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # set together with `done`

    def give_up(self) -> bool:
        """The caller waits no longer. False if the steps have ended already."""
        with self._lock:
            if self.done.is_set():
                return False
            self.gave_up = True
            self._wake.set()
            return True

    def rest(self, seconds: float) -> None:
        """Sleep, but not after the caller has given up."""
        self._wake.wait(seconds)

    def run(self, perform: Callable[[Operation, Task[Any]], object]) -> None:
        """Perform the steps; `perform` is asked for what touches the store."""
        reply: object = None
        try:
            while (operation := self._step(reply)) is not None:
                try:
                    reply = self._reply(operation, perform)
                except SilentError:
                    if not self.gave_up or self._told:
                        raise
                self.performed += 1
        except BaseException as raised:  # noqa: BLE001  # it is the caller's
            with self._lock:
                self._error = raised
                self.done.set()

    def _step(self, reply: object) -> Operation | None:
        """Return the next operation, None after the last. Whoever gives up does so before it or after it: steps that end are not in doubt."""
        with self._lock:
            try:
                if self.gave_up and not self._told:
                    self._told = True
                    return self.steps.throw(GaveUpError())
                return self.steps.send(reply)
            except StopIteration as stop:
                self._result = stop.value
                self.done.set()
                return None

    def _reply(self, operation: Operation, perform: Callable[[Operation, Task[Any]], object]) -> object:
        if isinstance(operation, Clock):
            return time.monotonic()
        if isinstance(operation, Sleep):
            self.rest(operation.seconds)
            return None
        if isinstance(operation, Promise):
            self.until = operation.until
            return None
        if isinstance(operation, Waiting):
            if self.on_waiting is not None:
                with contextlib.suppress(Exception):  # a log handler's trouble is not the vote's
                    self.on_waiting(operation.missing, operation.seconds)
            return None
        return perform(operation, self)


class Worker:
    """One thread at a time, which performs tasks in their order. A task behind one that is stuck waits, and its caller gives up."""

    def __init__(self, perform: Callable[[Operation, Task[Any]], object]) -> None:
        self._perform = perform
        self._tasks: queue.SimpleQueue[Task[Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._task: Task[Any] | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        _WORKERS.add(self)

    def start(self, steps: Steps[T], limit: float, on_waiting: Callable[[tuple[int, ...], float], object] | None = None) -> Task[T]:
        """Begin with the steps; `limit` in seconds holds until they promise something else."""
        if os.getpid() != self._pid:
            raise SilentError("this process was forked from the one that joined the vote")
        task = Task(steps, limit, on_waiting)
        with self._lock:
            self._tasks.put(task)
            if self._thread is None or not self._thread.is_alive():  # idle, or ended by a fault
                self._thread = threading.Thread(target=self._serve, name="fi_shim-vote", daemon=True)
                self._thread.start()
        return task

    @property
    def busy(self) -> bool:
        """True while a task has not ended."""
        task = self._task
        return (task is not None and not task.done.is_set()) or not self._tasks.empty()

    def _serve(self) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._tasks.empty():
                        self._thread = None
                        return
                continue
            self._task = task
            task.run(self._perform)
            self._task = None
            del task


@atexit.register
def _let_work_end() -> None:
    ends = time.monotonic() + _EXIT_SECONDS
    while any(worker.busy for worker in list(_WORKERS)) and time.monotonic() < ends:
        time.sleep(_EXIT_SECONDS / 100)
