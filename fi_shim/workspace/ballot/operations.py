"""What the protocol asks of the world, one small value an operation, and its time limits."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """Time limits, all in seconds."""

    arrival: float = 300.0  # until the last rank has come; below the usual 600 s watchdog, above the skew of weight loading
    late: float = 30.0  # how long a rank that finds all others gone waits for a new attempt
    doubt: float = 10.0  # a rank that has said "I am here" waits at least so long for an answer
    silence: float = 60.0  # once all have come, a rank without a sign of life for so long is missing
    beat: float = 5.0  # between signs of life
    work: float = 1800.0  # a rank that is at work for longer than this hangs
    safety: float = 2.0  # a yes is written only so long before the first rank may give up
    grace: float = 1.0  # a store is silent if it has not answered for so long
    warn_first: float = 30.0
    warn_every: float = 60.0
    poll_first: float = 0.0002
    poll_last: float = 0.05


@dataclass(frozen=True)
class Set:
    """Write a key."""

    key: str
    value: bytes


@dataclass(frozen=True)
class Read:
    """Read keys. Reply: a dict of those that exist; `together`: empty unless all do. `exist`: all are known to, which saves a question."""

    keys: tuple[str, ...]
    exist: bool = False
    together: bool = False


@dataclass(frozen=True)
class Delete:
    """Remove a key."""

    key: str


@dataclass(frozen=True)
class CompareSet:
    """Write a key if it holds `expected` (empty: if it does not exist). Reply: what it holds now."""

    key: str
    expected: bytes
    value: bytes


@dataclass(frozen=True)
class Sleep:
    """Pause."""

    seconds: float


@dataclass(frozen=True)
class Clock:
    """Reply: this process's monotonic clock, in seconds."""


@dataclass(frozen=True)
class Promise:
    """The caller must not give up before `until` on this process's monotonic clock."""

    until: float


@dataclass(frozen=True)
class Waiting:
    """Tell the caller which ranks have been missing for how many seconds."""

    missing: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class Exchange:
    """Where there is no store: give a text to all ranks. Reply: everyone's, by rank."""

    text: str


Operation: TypeAlias = Set | Read | Delete | CompareSet | Exchange | Sleep | Clock | Promise | Waiting
Steps: TypeAlias = Generator[Operation, Any, T]


class GaveUpError(Exception):
    """Thrown into the steps of a caller that has given up meanwhile: tidy up, promise nothing more."""
