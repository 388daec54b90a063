"""`join`: wait for all ranks and agree on their facts. Then a `Session`, in which the ranks vote again and share keys."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fi_shim.workspace.ballot.operations import CompareSet, Limits, Read, Set
from fi_shim.workspace.ballot.worker import SilentError
from fi_shim.workspace.vote import Record, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from fi_shim.workspace.ballot.operations import Operation, Steps, T
    from fi_shim.workspace.ballot.transport import Side, Transport


def join(
    transport: Transport,
    rank: int,
    world_size: int,
    record: Record,
    *,
    arrival_limit: float | None = None,
    limits: Limits | None = None,
    on_waiting: Callable[[tuple[int, ...], float], object] | None = None,
) -> Session:
    """Wait until all ranks of the group have come, and agree on their records. Returns within the limits whatever the others do.

    Args:
        transport: of the group; `transport_of` finds it.
        rank: this process's rank in the group, as in `record`.
        world_size: number of ranks in the group.
        record: what this rank says.
        arrival_limit: seconds to wait for the last rank; None: as in `limits`.
        limits: None: the defaults.
        on_waiting: called with the missing ranks and the seconds waited, after half a minute and then once a minute, in another thread.

    Returns:
        A session whose `verdict` all ranks share. If it is a no, the session is closed already.

    Raises:
        TypeError, ValueError: the record holds what is not JSON. Nothing has been written then.
    """
    limits = limits or Limits()
    if arrival_limit is not None:
        limits = replace(limits, arrival=arrival_limit)
    session = Session(transport, transport.voter(rank, world_size, limits), on_waiting)
    session.join(record)
    return session


class Session:
    """An attempt. `verdict` is the one on the facts.

    A session keeps this process's other threads from voting on the same group until it is closed: use it in a `with`.
    """

    def __init__(self, transport: Transport, voter: Side, on_waiting: Callable[[tuple[int, ...], float], object] | None) -> None:
        self.verdict = Verdict("no", "not joined yet")
        self.voter = voter
        self._transport = transport
        self._limits = voter.limits
        self._on_waiting = on_waiting
        self._release: weakref.finalize[Any, Any] | None = None

    @property
    def records(self) -> tuple[Record, ...]:
        """The facts, by group rank."""
        return self.verdict.records

    def join(self, record: Record) -> Verdict:
        """Vote on the facts; once, before anything else. `join`, the function, does it."""
        transport = self._transport
        thread, left_open = transport.holder
        if thread == threading.get_ident() and (session := left_open()):
            session.close("began another attempt")
        limits, began = self._limits, time.monotonic()
        if not transport.lock.acquire(timeout=limits.arrival):
            self.verdict = Verdict("no", f"another thread of rank {record.rank} has been in an attempt of this group all the time")
            return self.verdict
        transport.holder = threading.get_ident(), weakref.ref(self)
        self._release = weakref.finalize(self, transport.lock.release)
        self._release.atexit = False
        left = limits.arrival - (time.monotonic() - began)
        self.voter.limits = replace(limits, arrival=max(left, min(limits.doubt, limits.arrival)))
        try:
            self.verdict = self._vote(self.voter.join(record), record, limits.arrival)
        finally:
            if self.verdict.outcome == "no":
                self._release()
        return self.verdict

    def round(self, name: str, record: Record) -> Verdict:
        """Vote once more. All ranks hold the same rounds in the same order; a rank or a store that is lost is a no."""
        self._check_open()
        self.voter.from_store = False
        return self._vote(self.voter.round(name, record), record, self._limits.silence)

    @contextlib.contextmanager
    def working(self, name: str) -> Iterator[None]:
        """Give signs of life while this thread does something that may take minutes, for example "kernel build"."""
        self._check_open()
        if not self._transport.shows_signs:
            yield
            return
        over = threading.Event()
        signs = threading.Thread(target=self._sign, args=(name, over), name="fi_shim-signs", daemon=True)
        signs.start()
        try:
            yield
        finally:
            over.set()
            signs.join()  # it only hands over, so it does not block; and no sign comes after the next vote

    def perform(self, steps: Steps[T]) -> T:
        """Perform steps of this attempt, which promise how long they may take. Raises SilentError, or what the steps raise."""
        self._check_open()
        return self._transport.run(steps, self._limits.doubt, self._limits.grace)

    def start(self, steps: Steps[Any]) -> None:
        """Begin with steps that nobody waits for."""
        self._transport.worker.start(steps, 0.0)

    def set(self, key: str, value: bytes) -> None:
        """Write a key of this attempt. Like the two below, raises SilentError if the store does not answer."""
        self._ask(Set(self._key(key), value))

    def read(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return those of this attempt's keys that exist."""
        found = self._ask(Read(tuple(map(self._key, keys))))
        return {key: found[self._key(key)] for key in keys if self._key(key) in found}

    def compare_set(self, key: str, value: bytes) -> bytes:
        """Write a key of this attempt unless it exists. Returns what it holds now."""
        return bytes(self._ask(CompareSet(self._key(key), b"", value)))

    def close(self, reason: str = "done") -> None:
        """Take no more part. Ranks that still wait for this one learn the reason at once."""
        if self._release is not None and self._release.alive:
            with contextlib.suppress(SilentError):
                self._transport.worker.start(self.voter.leave(reason), 0.0).done.wait(self._limits.grace)
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close("done" if error is None else f"{type(error).__name__}: {error}")

    def _vote(self, steps: Steps[Verdict | None], record: Record, limit: float) -> Verdict:
        before = self.voter.label
        try:
            verdict = self._transport.run(steps, limit, self._limits.grace, self._on_waiting)
        except SilentError as error:
            records = (record if rank == self.voter.rank else Record(rank=rank, vote="absent") for rank in range(self.voter.size))
            return Verdict("no", str(error), tuple(records))
        except Exception:  # a fault of ours, but perhaps after this rank had voted: the others act on what the store holds
            raw = self._verdict_of_the_others(limit) if self.voter.label != before else None  # else it had not begun to vote
            if raw is None:
                raise
            return raw
        assert verdict is not None  # only for who gave up
        return verdict

    def _verdict_of_the_others(self, limit: float) -> Verdict | None:
        """The bare outcome in the store, by as little of our code as can be; None if there is none within the limit."""
        written = self._transport.read_aside(f"{self.voter.attempt}/{self.voter.label}/verdict", limit)
        if written is None:
            return None
        stored = json.loads(written.partition(b"\n")[2])
        return Verdict(stored["outcome"], f"{stored['reason']} (a fault of fi_shim on this rank kept it from reading more)")

    def _sign(self, name: str, over: threading.Event) -> None:
        ends, last = time.monotonic() + self._limits.work, None
        with contextlib.suppress(SilentError):
            while time.monotonic() < ends:
                if last is None or last.done.is_set():
                    last = self._transport.worker.start(self.voter.sign(name), 0.0)
                if over.wait(self._limits.beat):
                    return

    def _ask(self, operation: Operation) -> Any:
        return self.perform(_single(operation))

    def _key(self, key: str) -> str:
        return f"{self.voter.attempt}/data/{key}"

    def _check_open(self) -> None:
        if self._release is None or not self._release.alive:
            raise RuntimeError(f"this attempt is over: {self.verdict.reason}")


def _single(operation: Operation) -> Steps[Any]:
    return (yield operation)
