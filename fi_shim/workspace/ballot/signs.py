"""While a rank waits for the others: how often it looks, and when it calls one of them lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fi_shim.workspace.ballot.operations import Clock, Sleep, Waiting
from fi_shim.workspace.vote import Verdict

if TYPE_CHECKING:
    from fi_shim.workspace.ballot.cell import Cell, Cells
    from fi_shim.workspace.ballot.operations import Limits, Steps


@dataclass
class Pace:
    """How often to look: often while something happens, ever more seldom while nothing does. All times in seconds."""

    limits: Limits
    started: float
    pause: float = 0.0
    warn: float = 0.0
    missing: tuple[int, ...] | None = None

    def rest(self, missing: tuple[int, ...], until: float) -> Steps[None]:
        """Sleep until it is time to look again, but not beyond `until`; say from time to time who is missing."""
        now = yield Clock()
        waited = now - self.started
        if missing and waited >= max(self.warn, self.limits.warn_first):
            self.warn = waited + self.limits.warn_every
            yield Waiting(missing, waited)
        self.pause = self.limits.poll_first if missing != self.missing else min(2 * self.pause, self.limits.poll_last)
        self.missing = missing
        yield Sleep(max(0.0, min(self.pause, until - now)))


@dataclass
class Signs:
    """When each rank last gave a sign of life, by my clock, and what that means for the round."""

    silence: float
    changed: dict[int, tuple[Cell | None, float]] = field(default_factory=dict)
    complete: float | None = None

    def objection(self, rank: int, cells: Cells, missing: tuple[int, ...], now: float) -> Verdict | None:
        """Return the no that this rank has to propose in the round it votes in, if any."""
        if lost := self.lost(rank, cells, now) or _elsewhere(rank, cells):
            return Verdict("no", lost[1], missing=(lost[0],))
        if missing or self.complete is None:
            self.complete = None if missing else now
        elif now - self.complete >= self.silence:
            label = getattr(cells[rank], "label", "")
            return Verdict("no", f"all ranks voted in round {label}, but for {self.silence:.0f} s none could be sure of the others")
        return None

    def lost(self, rank: int, cells: Cells, now: float) -> tuple[int, str] | None:
        """The first other rank that takes no part any more, and why this rank says so; None while all do."""
        mine = cells[rank]
        assert mine is not None
        for other, cell in enumerate(cells):
            if other != rank and (reason := self._reason(other, cell, mine, now)):
                return other, reason
        return None

    def _reason(self, rank: int, cell: Cell | None, mine: Cell, now: float) -> str:
        if cell is None or cell.attempt != mine.attempt:
            return f"rank {rank} has begun another attempt"
        if cell.state == "left":
            return f"rank {rank} left: {cell.reason}"
        before, since = self.changed.get(rank, (None, now))
        if before != cell:
            self.changed[rank] = (cell, now)
        elif now - since >= self.silence:
            return f"rank {rank} gave no sign of life for {self.silence:.0f} s in round {mine.label}"
        return ""


def _elsewhere(rank: int, cells: Cells) -> tuple[int, str] | None:
    """The first other rank that votes in a round that is not this rank's, and not one before."""
    mine = cells[rank]
    assert mine is not None
    for other, cell in enumerate(cells):
        if cell is not None and cell.state == "voted" and cell.turn >= mine.turn and cell.label != mine.label:
            return other, f"rank {other} votes in round {cell.label}, rank {rank} in round {mine.label}"
    return None
