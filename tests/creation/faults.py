"""The fault matrix: which calls a release makes while it builds, and a choice of those cases that covers all pairs."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import astuple, dataclass
from pathlib import Path

CALLS_FILE = Path(__file__).with_name("calls_of_builds.json")
RELEASES = (
    "0.6.0", "0.6.6", "0.6.9", "0.6.10", "0.6.12", "0.6.14", "0.6.15", "0.6.16.post4", "0.6.17", "0.7.1", "0.7.2.post1", "0.7.4",
)  # fmt: skip
BACKENDS = ("trtllm", "mnnvl")
SIZES = (2, 4)
MOST = 120
SEED = 5


@dataclass(frozen=True)
class Case:
    """The n-th call of a name fails on one rank."""

    release: str
    backend: str
    size: int
    last_rank: bool
    how: str
    call: str
    last_call: bool

    @property
    def victim(self) -> int:
        return self.size - 1 if self.last_rank else 0

    def __str__(self) -> str:
        which = "last" if self.last_call else "first"
        return f"{self.release} {self.backend} {self.size} ranks: {which} {self.call} fails on rank {self.victim} by {self.how}"


def known_calls() -> dict[str, dict[str, dict[str, list[int]]]]:
    """Release -> backend -> call -> how often rank 0 of two, and the last rank, makes it."""
    found: dict[str, dict[str, dict[str, list[int]]]] = json.loads(CALLS_FILE.read_text())
    return found


def all_cases() -> list[Case]:
    calls = known_calls()
    return [
        Case(release, backend, size, last_rank, how, call, last_call)
        for release in RELEASES
        for backend in BACKENDS
        for call, counts in calls[release][backend].items()
        for last_rank in (False, True)
        for last_call in ((False, True) if counts[last_rank] > 1 else (False,) if counts[last_rank] else ())
        for size in SIZES
        for how in ("code", "exception")
    ]


def cover(cases: list[Case], most: int = MOST) -> list[Case]:
    """At most so many cases that together have (nearly) all pairs of properties that occur: greedy, in a seeded order."""
    waiting = cases[:]
    random.Random(SEED).shuffle(waiting)
    missing = set(itertools.chain.from_iterable(map(_pairs, waiting)))
    chosen: list[Case] = []
    while missing and len(chosen) < most:
        best = max(waiting, key=lambda case: len(_pairs(case) & missing))
        chosen.append(best)
        missing -= _pairs(best)
    return chosen


def _pairs(case: Case) -> set[tuple[object, ...]]:
    return set(itertools.combinations(enumerate(astuple(case)), 2))
