"""What ranks exchange while they build: numbered operations over the keys of an attempt, so that one rank's failure ends every wait.

There is one failure key an attempt. Whoever fails writes it, unless somebody has; whoever waits looks at it together with what he waits for.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from fi_shim.workspace.ballot.operations import Clock, CompareSet, Delete, Promise, Read, Set, Sleep
from fi_shim.workspace.ballot.protocol import Voter
from fi_shim.workspace.ballot.signs import Signs

if TYPE_CHECKING:
    from fi_shim.workspace.ballot.cell import Cells
    from fi_shim.workspace.ballot.operations import Steps
    from fi_shim.workspace.ballot.session import Session

BUILDING: Final = "build"
"""Name of the work, in signs of life."""
_POLL_LAST: Final = 0.005  # seconds: somebody else waits for us as well
_ALONE: Final = 3  # looks for the others' payloads alone: mostly they are there by then
_PATIENT: Final = 200  # looks, then the pauses grow as in a vote


@dataclass(frozen=True)
class Failure:
    """Why a build ended: the rank that failed, where it runs, and what happened there. The same on all ranks that were told."""

    rank: int
    where: str
    reason: str
    lost: bool = False
    """Whether that rank takes no part any more: nobody needs to wait for its vote."""

    def __str__(self) -> str:
        return f"{self.where} failed: {self.reason}"


class StoppedError(RuntimeError):
    """The build is over since a rank failed. A RuntimeError, as FlashInfer raises them itself."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"fi_shim: {failure}")
        self.failure = failure


class Gathering:
    """This rank's side of one build.

    Args:
        session: an attempt in which all ranks agreed to build.
        where: this rank, for people.
        release: the FlashInfer that builds; ranks of another one cannot mean the same operations.

    Raises:
        LookupError: the group has no store, so its ranks share no keys.
    """

    def __init__(self, session: Session, where: str, release: str) -> None:
        if not isinstance(session.voter, Voter):
            raise LookupError("a group without a store cannot build under guard")  # noqa: TRY004  # not the caller's mistake
        self.rank = session.voter.rank
        self.size = session.voter.size
        self._session = session
        self._voter = session.voter
        self._where = where
        self._release = release
        self._number = 0
        self._signs = Signs(session.voter.limits.silence)
        self._beat = 0.0

    def gather(self, kind: str, payload: bytes) -> list[bytes]:
        """Give `payload` to all ranks. Returns everyone's, by rank.

        Raises:
            StoppedError: a rank failed, is silent, or is in another operation than this one.
            SilentError: the store does not answer.
        """
        number, self._number = self._number, self._number + 1
        own = f"{kind} of FlashInfer {self._release}"
        entry = json.dumps(own).encode() + b"\n" + payload
        entries = [found.partition(b"\n") for found in self._session.perform(self._gather(number, entry))]
        kinds = [json.loads(head) for head, _, _ in entries]
        others = [rank for rank, their in enumerate(kinds) if their != own]
        if others:
            raise StoppedError(self.fail(f"is in {own}, rank {others[0]} in {kinds[others[0]]} (operation {number})"))
        return [body for _, _, body in entries]

    def check(self) -> None:
        """Raise StoppedError if a rank has failed or is silent; for waits of another kind."""
        self._session.perform(self._check())

    def fail(self, reason: str) -> Failure:
        """Tell all ranks that this one failed. Returns the failure that counts: the first one."""
        return self._session.perform(self._publish(Failure(self.rank, self._where, reason)))

    def tidy(self) -> None:
        """All ranks have read everything: take this rank's part out of the store. Returns at once."""
        self._session.start(self._tidy(self._number))

    def _tidy(self, count: int) -> Steps[None]:
        for number in range(count):
            yield Delete(f"{self._prefix}/{number}/{self.rank}")

    def _gather(self, number: int, entry: bytes) -> Steps[list[bytes]]:
        keys = [f"{self._prefix}/{number}/{rank}" for rank in range(self.size)]
        yield Set(keys[self.rank], entry)
        limits, looks, pause = self._voter.limits, 0, self._voter.limits.poll_first
        while True:
            found = yield Read(tuple(keys), together=True)
            if found:
                return [found[key] for key in keys]
            if looks >= _ALONE and (ahead := (yield from self._watch())):
                found = yield Read(tuple(keys), together=True)  # it may have come, and that rank gone on, since the look before
                if found:
                    return [found[key] for key in keys]
                raise StoppedError((yield from self._publish(ahead)))
            yield Sleep(pause)
            looks += 1
            pause = min(2 * pause, _POLL_LAST if looks < _PATIENT else limits.poll_last)

    def _check(self) -> Steps[None]:
        if ahead := (yield from self._watch()):
            raise StoppedError((yield from self._publish(ahead)))

    def _watch(self) -> Steps[Failure | None]:
        """Raises StoppedError if the build is over. Returns what is wrong if a rank votes already, though it should wait as this one does."""
        found = yield Read((self._failure_key,))
        if found:
            raise StoppedError(_failure(found[self._failure_key]))
        now = yield Clock()
        if now < self._beat:
            return None
        limits = self._voter.limits
        self._beat = now + limits.beat
        yield Promise(now + limits.silence)
        yield from self._voter.sign(BUILDING)
        cells = yield from self._voter.look()
        if lost := self._signs.lost(self.rank, cells, now):
            rank, reason = lost
            raise StoppedError((yield from self._publish(Failure(rank, _where(rank, cells), reason, lost=True))))
        mine = cells[self.rank]
        for rank, cell in enumerate(cells):
            if mine is not None and cell is not None and cell.state == "voted" and cell.turn > mine.turn and cell.record is not None:
                return Failure(rank, cell.record.where, cell.record.reason or f"votes in round {cell.label} before all have built")
        return None

    def _publish(self, failure: Failure) -> Steps[Failure]:
        return _failure((yield CompareSet(self._failure_key, b"", json.dumps(asdict(failure)).encode())))

    @property
    def _prefix(self) -> str:
        return f"{self._voter.attempt}/{BUILDING}"

    @property
    def _failure_key(self) -> str:
        return f"{self._prefix}/failure"


def _where(rank: int, cells: Cells) -> str:
    cell = cells[rank]
    return cell.record.where if cell is not None and cell.record is not None else f"rank {rank}"


def _failure(stored: bytes) -> Failure:
    try:
        value = json.loads(stored)
        return Failure(int(value["rank"]), str(value["where"]), str(value["reason"]), value["lost"] is True)
    except (ValueError, TypeError, KeyError) as error:
        return Failure(-1, "a rank", f"in a way that cannot be read ({error})")
