"""What happened in this process since it started: numbers that only grow, for `status()` and the state file."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fi_shim.state.reasons import REASONS, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fi_shim.workspace.vote import Verdict

VOTE_BUCKETS_S: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Upper limits in seconds: from an undisturbed vote to the default limit of arrival."""

_Result = TypeVar("_Result")


class Counts:
    """Counters of one process, and who wants to hear of a change."""

    def __init__(self) -> None:
        self.publish: Callable[[], None] = lambda: None
        """Called after a change that matters; never raises."""
        self.begin_anew()

    def begin_anew(self) -> None:
        """From zero: also in a forked child, whose parent's events are the parent's."""
        self._lock = threading.Lock()
        self._declines = dict.fromkeys(REASONS, 0)
        self._abstains = 0
        self._drift_events = 0
        self._within = [0] * len(VOTE_BUCKETS_S)
        self._votes, self._vote_seconds = 0, 0.0
        self._rejections_before = _rejections()

    def declined(self, verdict: Verdict | None, *, voted: bool = True, again: bool = False) -> None:
        """One request that all ranks declined; arguments as `reason_of`'s. `again`: remembered, as for every layer; published with time."""
        with contextlib.suppress(Exception):
            reason = reason_of(verdict, voted=voted)
            with self._lock:
                self._declines[reason] += 1
            if not again:
                self.publish()

    def abstained(self) -> None:
        """One request that was built without preflight."""
        with self._lock:
            self._abstains += 1
        self.publish()

    def drifted(self) -> None:
        """One difference between the tables and this FlashInfer. Not published: its caller may hold a lock; a vote or an import follows."""
        with self._lock:
            self._drift_events += 1

    def timed(self, vote: Callable[..., _Result], *arguments: Any) -> _Result:
        """Run one vote, however it ends, and note how long it took: the wait for late ranks and the probe included."""
        started = time.monotonic()
        try:
            return vote(*arguments)
        finally:
            self._note_vote(time.monotonic() - started)

    def _note_vote(self, seconds: float) -> None:
        with self._lock:
            self._votes, self._vote_seconds = self._votes + 1, self._vote_seconds + seconds
            for place, limit in enumerate(VOTE_BUCKETS_S):
                self._within[place] += seconds <= limit
        self.publish()

    def rejections(self) -> int:
        """Rejections that were answered from cached limits in this process."""
        return _rejections() - self._rejections_before

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON; times in seconds."""
        rejections = self.rejections()
        with self._lock:
            votes = {
                "count": self._votes,
                "seconds": round(self._vote_seconds, 6),
                "within": {str(limit): count for limit, count in zip(VOTE_BUCKETS_S, self._within, strict=True)},
            }
            return {
                "declines": dict(self._declines),
                "abstains": self._abstains,
                "rejections": rejections,
                "drift_events": self._drift_events,
                "votes": votes,
            }


def _rejections() -> int:
    validator = sys.modules.get("fi_shim.patches.validator")
    return 0 if validator is None else validator.REJECTIONS.total


COUNTS: Final = Counts()
