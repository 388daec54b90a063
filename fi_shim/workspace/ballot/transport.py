"""What a vote goes over: a store if the group has one, else the communicator's own allgather."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fi_shim.workspace.ballot.operations import Clock, Exchange, GaveUpError, Promise
from fi_shim.workspace.ballot.worker import SilentError, Worker
from fi_shim.workspace.vote import Record, Verdict, decide, ranks, record_from_json, record_to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fi_shim.workspace.ballot.operations import Limits, Operation, Steps, T
    from fi_shim.workspace.ballot.worker import Task


class Side(Protocol):
    """One rank's side of one attempt, as steps."""

    rank: int
    size: int
    limits: Limits
    attempt: str
    label: str
    from_store: bool

    def join(self, record: Record) -> Steps[Verdict | None]: ...
    def round(self, name: str, record: Record) -> Steps[Verdict | None]: ...
    def sign(self, name: str) -> Steps[None]: ...
    def leave(self, reason: str) -> Steps[None]: ...


class Transport:
    """Performs steps for one group in one process. `where` names what they go over, for a reader."""

    shows_signs = True
    """Whether ranks see each other's signs of life."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.worker = Worker(self.perform)
        self.lock = threading.Lock()  # held while an attempt of this process on this group is open
        self.holder: tuple[int, Callable[[], Any]] = (0, lambda: None)  # the thread and the session that hold it

    def voter(self, rank: int, world_size: int, limits: Limits) -> Side:
        raise NotImplementedError

    def perform(self, operation: Operation, task: Task[Any]) -> Any:
        """Do one operation, in the worker's thread. Raises SilentError if that will not be possible any more."""
        raise NotImplementedError

    def read_aside(self, key: str, limit: float) -> bytes | None:  # noqa: ARG002
        """Wait up to `limit` seconds for a key, past the worker and its tasks, which may be what failed; None if it does not come."""
        return None

    def run(self, steps: Steps[T], limit: float, grace: float, on_waiting: Callable[[tuple[int, ...], float], object] | None = None) -> T:
        """Return what the steps return. Raises SilentError after `limit` seconds, or what the steps promise, and `grace` without an answer."""
        task = self.worker.start(steps, limit, on_waiting)
        try:
            answered = task.wait(grace)
        except BaseException:
            task.gave_up = True
            task.done.wait(grace)  # what the steps still say must have been said before the caller looks at it
            raise
        if not answered:
            raise SilentError(f"{self.where} does not answer")
        return task.result()


_HERE, _GONE = "here", "gave up"


class AllgatherTransport(Transport):
    """Where the group has no store. It cannot rule out that the last of the two exchanges of a round ends on one rank only."""

    shows_signs = False

    def __init__(self, allgather: Callable[[str], Sequence[str]], on_use: Callable[[str], object] | None = None) -> None:
        """Use `allgather`, which may block; `on_use` is told once, in words, that there is no store."""
        super().__init__("the communicator's allgather")
        self._allgather = allgather
        self._on_use = on_use

    def voter(self, rank: int, world_size: int, limits: Limits) -> Side:
        if self._on_use is not None:
            self._on_use("the group has no store: ranks vote by the communicator's own allgather, which cannot name who is missing")
            self._on_use = None
        return Exchanger(rank, world_size, limits)

    def perform(self, operation: Operation, task: Task[Any]) -> Any:  # noqa: ARG002
        if isinstance(operation, Exchange):
            return list(self._allgather(operation.text))
        raise SilentError("the group has no store, so its ranks share no keys")

    def run(self, steps: Steps[T], limit: float, grace: float, on_waiting: Callable[[tuple[int, ...], float], object] | None = None) -> T:
        if self.worker.busy:
            raise SilentError(f"an earlier vote by {self.where} still waits for its peers")
        return super().run(steps, limit, grace, on_waiting)


@dataclass
class Exchanger:
    """One rank's side where there is no store: records first, then who is still there. A rank that gave up says so to those who come late."""

    rank: int
    size: int
    limits: Limits
    attempt: str = "allgather"
    label: str = ""
    turn: int = 0
    from_store: bool = False

    def join(self, record: Record) -> Steps[Verdict | None]:
        return (yield from self._exchange("facts", record))

    def round(self, name: str, record: Record) -> Steps[Verdict | None]:
        return (yield from self._exchange(name, record))

    def sign(self, name: str) -> Steps[None]:  # noqa: ARG002  # nobody could read it
        yield from ()

    def leave(self, reason: str) -> Steps[None]:  # noqa: ARG002
        yield from ()

    def _exchange(self, name: str, record: Record) -> Steps[Verdict | None]:
        label = f"{self.turn}.{name}"
        self.turn += 1
        yield Promise((yield Clock()) + self.limits.arrival)
        try:
            texts = yield Exchange(json.dumps([label, record_to_json(record)]))
        except GaveUpError:
            yield Exchange(_GONE)
            return None
        gone = [rank for rank, text in enumerate((yield Exchange(_HERE))) if text != _HERE]
        if gone:
            return Verdict("no", f"{ranks(gone)} gave up before all had come")
        papers = [json.loads(text) for text in texts]
        others = {paper[0] for paper in papers} - {label}
        if others:
            return Verdict("no", f"rank {self.rank} votes in round {label}, others in {', '.join(sorted(others))}")
        return decide([record_from_json(paper[1]) for paper in papers])
