"""What one rank shows to the others: one key a rank, written by that rank only."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from fi_shim.workspace.vote import Record, record_from_json, record_to_json

FACTS: Final = "0.facts"
"""Label of the first round."""
UNWRITTEN: Final = b"-"
"""A cell that its rank has not written yet. Every cell exists, so that all are read at once."""


@dataclass(frozen=True)
class Cell:
    """A rank's state. `at` and `until` are seconds on that rank's own clock."""

    nonce: str  # drawn for this attempt
    state: Literal["waiting", "working", "voted", "left"]
    at: float  # when it was made
    until: float  # the rank does not give up in doubt before
    attempt: str = ""  # the attempt that the rank knows all ranks to be in
    label: str = ""  # number and name of the round
    record: Record | None = None
    missed: tuple[int, ...] = ()  # "left": the ranks that it missed
    reason: str = ""  # "left": why
    doubt: str = ""  # "left": the label of the round whose verdict it could not learn
    refuses: str = ""  # "left": the request that it will not vote on; `attempt` is the one that declined it, if one did
    answers: tuple[str, ...] = ()  # "left": nonces of the ranks that this refusal is an answer to

    def to_bytes(self) -> bytes:
        """Return the cell as JSON."""
        record = record_to_json(self.record) if self.record else None
        return json.dumps({**vars(self), "record": record}, allow_nan=False).encode("ascii")

    @property
    def arrived(self) -> bool:
        """True if the rank waits for an attempt to begin, or did so when it was last seen."""
        return self.state == "waiting" or (self.state == "voted" and self.label == FACTS)

    def voted_in(self, attempt: str, label: str) -> bool:
        """True if this is a vote in that round."""
        return self.state == "voted" and self.attempt == attempt and self.label == label and self.record is not None

    @property
    def turn(self) -> int:
        """Number of the round."""
        number = self.label.partition(".")[0]
        return int(number) if number.isdecimal() else -1


@functools.lru_cache(maxsize=1024)
def cell_from_bytes(data: bytes) -> Cell | None:
    """Return the cell, or None if it is not written yet or malformed. Cached: most cells look as they did last time."""
    try:
        value = json.loads(data)
        record = None if value["record"] is None else record_from_json(value["record"])
        return Cell(**{**value, "record": record, "missed": tuple(value["missed"]), "answers": tuple(value["answers"])})
    except (ValueError, TypeError, KeyError):
        return None


Cells: TypeAlias = Sequence[Cell | None]
"""All cells, by group rank."""


def attempt_of(cells: Cells) -> str:
    """Return the name of the attempt that all ranks are waiting in; empty if one has not come."""
    nonces = [cell.nonce for cell in cells if cell is not None and cell.arrived]
    return hashlib.sha256("\n".join(nonces).encode()).hexdigest()[:32] if len(nonces) == len(cells) else ""
