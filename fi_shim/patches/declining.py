"""The exception of a declined workspace, told once and kept for `status()`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from fi_shim import log
from fi_shim.state.counts import COUNTS
from fi_shim.workspace.decline import WorkspaceDeclined
from fi_shim.workspace.vote import Verdict

if TYPE_CHECKING:
    from fi_shim.patches.asked import Kind

_KEPT: Final = 16

DECLINES: Final[list[dict[str, Any]]] = []
"""The last declined requests of this process, for `status()`."""

SAID: Final[dict[tuple[str, str], None]] = {}
"""What was told as an error, since `reset()`."""


def decline(kind: str, what: str, verdict: Verdict, rank: int | None, *, voted: bool, again: bool) -> Exception:
    """Return what to raise; never raises itself.

    Args:
        kind: of the entry.
        what: was asked for, for people.
        verdict: a no.
        rank: of this process in the group; the first one that is there tells it as an error.
        voted: whether this rank was asked.
        again: it was declined before, and is remembered.
    """
    try:
        if again:
            log.event("debug", "declined", what=what, reason=f"as before: {verdict.reason}")
            COUNTS.declined(verdict, voted=False, again=True)
            return WorkspaceDeclined(what, verdict)
        error = _told(what, verdict, rank)
        COUNTS.declined(verdict, voted=voted)
        return error
    except Exception as error:  # noqa: BLE001  # declined it is, also where that cannot be told well
        return bare_decline(kind, error)


def _told(what: str, verdict: Verdict, rank: int | None) -> WorkspaceDeclined:
    error = WorkspaceDeclined(what, verdict)
    records = [{"rank": r.rank, "host": r.host, "vote": r.vote, "reason": r.reason} for r in verdict.records]
    DECLINES.append({"what": what, "reason": verdict.reason, "missing": list(verdict.missing), "records": records})
    del DECLINES[:-_KEPT]
    present = [r.rank for r in verdict.records if r.vote != "absent"]
    speaks = (rank is None or not present or rank == present[0]) and (what, verdict.reason) not in SAID
    log.event("error" if speaks else "debug", "declined", what=what, reason=verdict.reason)
    SAID[what, verdict.reason] = None
    for old in list(SAID)[:-_KEPT]:
        del SAID[old]
    return error


def bare_decline(kind: str, error: Exception) -> WorkspaceDeclined:
    """A decline that needs nothing of ours to work."""
    text = f"fi_shim: declined the FlashInfer {kind} workspace: fi_shim failed on this rank: {type(error).__name__}: {error}"
    declined = WorkspaceDeclined.__new__(WorkspaceDeclined, text)
    declined.verdict, declined.what = Verdict.__new__(Verdict), f"{kind} workspace"
    vars(declined.verdict).update(outcome="no", reason=text, records=(), missing=())
    with contextlib.suppress(Exception):
        COUNTS.declined(None)
    return declined


def silence_destructor(kind: Kind, args: tuple[Any, ...]) -> None:
    """The destructor of what was never built would complain."""
    if kind in {"trtllm", "mnnvl", "cutedsl"}:
        args[0]._destroyed = True  # noqa: SLF001
