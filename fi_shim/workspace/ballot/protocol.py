"""How the ranks of a group come to one verdict: one rank's side, as generators that yield store operations.

Every rank has one cell. An *attempt* is named by the nonces in all cells; a cell that names an attempt proves that its rank is alive in this very
one, for the name contains a nonce drawn for it, so nothing left over in the store counts. The verdict of a round is one key, written once by
compare-and-set; what it holds is what everyone acts on.

A rank that loses the store gives up in doubt, but not before the `until` in its cell. So a yes is written only while nobody's has passed. No two
ranks' clocks are compared: `since` is a moment on my clock before any cell of the round can have been made, so a rank's `at` on its clock
is not before `since` on mine, and its `until` does not come before since + (until - at).

What no protocol can give: a rank that loses the store between the writing of a yes and its own reading of it gives up while others act. Hence
whoever is late to act first looks whether somebody gave up in doubt, and every later round meets the "left" of a rank that did.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

from fi_shim.workspace.ballot.cell import FACTS, UNWRITTEN, Cell, Cells, attempt_of, cell_from_bytes
from fi_shim.workspace.ballot.operations import Clock, CompareSet, GaveUpError, Limits, Promise, Read, Set, Sleep
from fi_shim.workspace.ballot.signs import Pace, Signs
from fi_shim.workspace.vote import Record, Verdict, decide, ranks, verdict_from_json, verdict_to_json

if TYPE_CHECKING:
    from fi_shim.workspace.ballot.operations import Steps

_VOID: Final = b"void"  # the verdict of an attempt that another one has replaced: nobody acts on it


@dataclass
class Voter:
    """One rank's side of the vote: `join` once, then any number of `sign`s and `round`s, then `leave`."""

    rank: int
    size: int
    nonce: str
    limits: Limits
    attempt: str = ""
    label: str = ""
    turn: int = 0
    record: Record | None = None
    until: float = 0.0  # this rank does not give up in doubt before
    looked: float = 0.0  # when the last look at the cells began
    since: float = 0.0  # before any cell of this round was made
    undecided: float = 0.0  # before this round was decided
    incomplete: float = 0.0  # the same, if nobody has gone on to the next round
    offset: dict[int, float] = field(default_factory=dict)  # my clock is at least that rank's clock plus this
    written: bytes = b""
    exist: bool = False  # all cells
    came: set[int] = field(default_factory=set)  # the ranks that were there, in this round or, before there was one, at all
    known: set[str] = field(default_factory=set)  # attempts that this process took part in
    from_store: bool = False  # the last verdict is the one in the store, or a rank's word about it

    def join(self, record: Record) -> Steps[Verdict | None]:
        """Wait for all ranks and agree on their facts. None if the caller gave up meanwhile."""
        verdict = yield from self._tidily(self._join(record))
        if verdict is not None and verdict.outcome == "no":
            yield from self.leave(verdict.reason, missed=verdict.missing)
        return verdict

    def round(self, name: str, record: Record) -> Steps[Verdict | None]:
        """Agree on one more record a rank. All ranks of an attempt run the same rounds. None if the caller gave up meanwhile."""
        self.turn += 1
        return (yield from self._tidily(self._round(f"{self.turn}.{name}", record)))

    def sign(self, name: str) -> Steps[None]:
        """Give one sign of life: this rank is at work, and has not voted again yet."""
        now = yield Clock()
        self.label = f"{self.turn}.{name}"
        yield from self._write("working", now + self.limits.silence)

    def refuse(self, request: str, attempt: str, reason: str) -> Steps[None]:
        """Do not vote on a request: `attempt` has declined it, or (empty) it is out of the question now. Answers who waits with it already."""
        found = yield Read(tuple(f"cell/{rank}" for rank in range(self.size)))
        cells = [cell_from_bytes(data) for data in found.values()]
        waiting = tuple(
            cell.nonce for cell in cells if cell and cell.state == "waiting" and cell.record and request_name(cell.record) == request
        )
        now = yield Clock()
        refusal = Cell(self.nonce, "left", now, now, attempt, reason=reason, refuses=request, answers=waiting)
        self.written = refusal.to_bytes()
        yield Set(f"cell/{self.rank}", self.written)

    def leave(self, reason: str, *, missed: tuple[int, ...] = (), doubt: str = "") -> Steps[None]:
        """Take no more part in the attempt. Leaves alone what a later attempt of this rank has written."""
        now = yield Clock()
        cell = Cell(self.nonce, "left", now, now, self.attempt, self.label, self.record, missed, reason, doubt)
        yield CompareSet(f"cell/{self.rank}", self.written, cell.to_bytes())

    def _tidily(self, steps: Steps[Verdict]) -> Steps[Verdict | None]:
        try:
            return (yield from steps)
        except GaveUpError:
            reason = f"{ranks([self.rank])} lost the store and gave up"
            if self.attempt:
                yield CompareSet(self._verdict_key, b"", _stored(Verdict("no", reason), 0.0))
            yield from self.leave(reason, missed=tuple(rank for rank in range(self.size) if rank != self.rank), doubt=self.label)
            return None

    def _join(self, record: Record) -> Steps[Verdict]:
        self.record = record
        started = self.looked = yield Clock()
        latest = started + self.limits.arrival
        yield Promise(latest)
        yield from self._write("waiting", latest)
        pace = Pace(self.limits, started)
        while True:
            verdict, missing = yield from self._seek(started, latest)
            if verdict is not None:
                return verdict
            if missing is not None:
                yield from pace.rest(missing, self.until)

    def _seek(self, started: float, latest: float) -> Steps[tuple[Verdict | None, tuple[int, ...] | None]]:
        """One look for the other ranks. Returns the verdict, if there is one, and who is missing (None: look again at once)."""
        before = self.looked
        cells = yield from self.look()
        found = attempt_of(cells)
        if found and found != self.attempt:
            return (yield from self._enter(found, before, latest)), None
        if self.attempt and (verdict := (yield from self._count(cells)) or (yield from self._read_verdict())):
            return verdict, ()
        if refusal := self._refusal(cells):
            return refusal, ()
        now = yield Clock()
        missing = self._missing(cells)
        if now >= (min(self.until, started + self.limits.late) if self._missed_by_all(cells) else self.until):
            return (yield from self._give_up(cells, missing, now - started)), missing
        return None, missing

    def _refusal(self, cells: Cells) -> Verdict | None:
        """What a rank answers that will not vote on this request. One that remembers counts only for who was there."""
        assert self.record is not None
        request = request_name(self.record)
        for rank, cell in enumerate(cells):
            if rank == self.rank or cell is None or cell.state != "left" or not cell.refuses:
                continue
            if self.nonce in cell.answers or (cell.refuses == request and cell.attempt in self.known):
                self.from_store, self.attempt = bool(cell.attempt) and cell.refuses == request, cell.attempt
                return Verdict("no", f"{ranks([rank])} does not vote: {cell.reason}", _records(cells))
        return None

    def _round(self, label: str, record: Record) -> Steps[Verdict]:
        self.since = self.undecided
        self.label, self.record, self.came = label, record, set()
        started = self.undecided = self.incomplete = beat = yield Clock()
        pace, signs = Pace(self.limits, started), Signs(self.limits.silence)
        while True:
            now = yield Clock()
            if now >= beat:
                beat = now + self.limits.beat
                yield from self._vote(now + self.limits.silence)
            verdict, missing = yield from self._watch(signs)
            if verdict is not None:
                return verdict
            yield from pace.rest(missing, beat)

    def _watch(self, signs: Signs) -> Steps[tuple[Verdict | None, tuple[int, ...]]]:
        """One look at the other ranks' votes. Returns the verdict, if there is one, and who is missing."""
        cells = yield from self.look()
        if verdict := (yield from self._count(cells)) or (yield from self._read_verdict()):
            return verdict, ()
        now = yield Clock()
        missing = self._missing(cells)
        if objection := signs.objection(self.rank, cells, missing, now):
            objection = replace(objection, records=_records(cells))
            return (yield from self._settle(objection)) or objection, missing
        return None, missing

    def _enter(self, attempt: str, since: float, latest: float) -> Steps[Verdict | None]:
        """All ranks are there: say so. An attempt that this one replaces is settled first; if that had its verdict already, this is it."""
        if self.attempt and (verdict := (yield from self._settle(None))):
            return verdict
        now = yield Clock()
        self.attempt, self.label, self.since, self.offset = attempt, FACTS, since, {self.rank: 0.0}
        self.known.add(attempt)
        self.undecided = self.incomplete = now
        self.came = set()
        yield from self._vote(max(self.until, min(now, latest) + self.limits.doubt))
        return None

    def _give_up(self, cells: Cells, missing: tuple[int, ...], seconds: float) -> Steps[Verdict]:
        reason = f"{ranks(missing)} did not vote within {seconds:.0f} s"
        if not missing:
            reason = f"all ranks came, but could not agree before the limit of {seconds:.0f} s"
        verdict = Verdict("no", reason, _records(cells), missing)
        return ((yield from self._settle(verdict)) if self.attempt else None) or verdict

    def _count(self, cells: Cells) -> Steps[Verdict | None]:
        """Decide if all ranks' votes are there; a verdict other than no only while none of them may have given up."""
        votes = {rank: cell for rank, cell in enumerate(cells) if cell and cell.voted_in(self.attempt, self.label)}
        for rank, cell in votes.items():
            self.offset[rank] = max(self.offset.get(rank, -math.inf), self.since - cell.at)
        if len(votes) < self.size:
            self.incomplete = self.looked
            return None
        verdict = decide(_records(cells))
        now = yield Clock()
        spare = min(cell.until + self.offset[rank] for rank, cell in votes.items()) - self.limits.safety - now
        return (yield from self._settle(verdict, spare)) if verdict.outcome == "no" or spare > 0 else None

    def _settle(self, verdict: Verdict | None, spare: float = 0.0) -> Steps[Verdict | None]:
        """Write the verdict (None: void) unless there is one. Returns the one there is."""
        own = _stored(verdict, spare)
        return (yield from self._act_on((yield CompareSet(self._verdict_key, b"", own)), own, verdict))

    def _read_verdict(self) -> Steps[Verdict | None]:
        found = yield Read((self._verdict_key,))
        if found:
            return (yield from self._act_on(found[self._verdict_key]))
        self.undecided = self.incomplete  # and nobody has gone on to the next round since
        return None

    def _act_on(self, stored: bytes, own: bytes = b"", proposed: Verdict | None = None) -> Steps[Verdict | None]:
        if stored == _VOID:
            return None
        verdict, spare = _restored(stored, own, proposed)
        now = yield Clock()
        if verdict.outcome == "no" or now < self.undecided + spare:
            self.from_store = True
            return verdict
        yield Promise(now + 3 * self.limits.grace)
        yield Sleep(self.limits.grace)  # this rank or the store was stopped: time for those who lost it to say so
        cells = yield from self.look()
        lost = [rank for rank, cell in enumerate(cells) if cell and cell.attempt == self.attempt and cell.doubt == self.label]
        return Verdict("no", f"{ranks(lost)} lost the store and gave up", verdict.records) if lost else verdict

    def look(self) -> Steps[list[Cell | None]]:
        """Read all cells, by rank. Creates those that are missing, and restores ours if a lost connection took it."""
        keys = [f"cell/{rank}" for rank in range(self.size)]
        self.looked = yield Clock()
        found = dict((yield Read(tuple(keys), self.exist)))
        for key in keys:
            if key not in found:
                found[key] = yield CompareSet(key, b"", UNWRITTEN)
        self.exist = True
        if found[keys[self.rank]] != self.written:
            found[keys[self.rank]] = self.written
            yield Set(keys[self.rank], self.written)
        return [cell_from_bytes(found[key]) for key in keys]

    def _vote(self, until: float) -> Steps[None]:
        yield Promise(until)
        yield from self._write("voted", until)

    def _write(self, state: Literal["waiting", "working", "voted"], until: float) -> Steps[None]:
        now = yield Clock()
        self.until = until
        self.written = Cell(self.nonce, state, now, until, self.attempt, self.label, self.record).to_bytes()
        yield Set(f"cell/{self.rank}", self.written)

    def _missing(self, cells: Cells) -> tuple[int, ...]:
        here = {r for r, cell in enumerate(cells) if cell and (cell.voted_in(self.attempt, self.label) if self.attempt else cell.arrived)}
        self.came |= here
        absent = [rank for rank in range(self.size) if rank not in here]
        return tuple([rank for rank in absent if rank not in self.came] or absent)  # who came, and left again, is not who was missed

    def _missed_by_all(self, cells: Cells) -> bool:
        """True if all others have left because this rank did not come: it may be late to their attempt, or early to a new one."""
        others = [cell for rank, cell in enumerate(cells) if rank != self.rank]
        return bool(others) and all(cell and cell.state == "left" and self.rank in cell.missed for cell in others)

    @property
    def _verdict_key(self) -> str:
        return f"{self.attempt}/{self.label}/verdict"


def request_name(record: Record) -> str:
    """What a record asks for, as a short name: equal for equal requests."""
    return hashlib.sha256(json.dumps(dict(record.request), sort_keys=True).encode()).hexdigest()[:32]


def _records(cells: Cells) -> tuple[Record, ...]:
    return tuple(cell.record if cell and cell.record else Record(rank=rank, vote="absent") for rank, cell in enumerate(cells))


def _stored(verdict: Verdict | None, spare: float) -> bytes:
    """Two lines: the spare seconds, which each rank finds for itself, and the verdict, which all ranks find alike."""
    if verdict is None:
        return _VOID
    return f"{json.dumps(spare, allow_nan=False)}\n{json.dumps(verdict_to_json(verdict), allow_nan=False)}".encode("ascii")


def _restored(stored: bytes, own: bytes, proposed: Verdict | None) -> tuple[Verdict, float]:
    """`proposed` is what `own` says: a verdict that is the same need not be read."""
    spare, _, text = stored.partition(b"\n")
    try:
        if proposed is not None and text == own.partition(b"\n")[2]:
            return proposed, float(spare)
        return verdict_from_json(json.loads(text)), float(spare)
    except (ValueError, TypeError, KeyError) as error:
        return Verdict("no", f"the verdict in the store is malformed ({error})"), 0.0
