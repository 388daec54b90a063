"""What follows from a difference between what was allocated and the plan: a line, or in strict mode one more vote."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fi_shim import log
from fi_shim.drift import audit
from fi_shim.state.counts import COUNTS
from fi_shim.workspace.vote import Record, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from fi_shim.seams.journal import Journal
    from fi_shim.workspace.sizes import AllocationPlan

KEPT_AUDITS: Final = 16
AUDITS: Final[list[dict[str, Any]]] = []
"""The last differences found in this process, for `status()`."""
_said: Final[set[str]] = set()


@dataclass(frozen=True)
class Audit:
    """One creation that all ranks agreed to, with a plan on each."""

    kind: str
    what: str
    """For people."""
    rank: int
    plan: AllocationPlan
    vote: Callable[[Record], Verdict] | None
    """In strict mode: one more attempt of the group."""

    def after(self, built: Any) -> Verdict | None:
        """Compare. Returns the verdict that declines the workspace after all, given back by then, or None to keep it."""
        difference = self.look(built)
        if self.vote is None:
            return None
        record = self._record("no" if difference else "yes", difference and f"allocated otherwise than planned: {difference}")
        try:
            verdict = self.vote(record)
        except Exception as error:  # noqa: BLE001  # peers hear nothing from us and give up
            verdict = Verdict("no", f"fi_shim failed on this rank before it could vote: {type(error).__name__}: {error}")
        if not verdict.declined:
            return None
        try:
            give_back(self.kind, built)
        except Exception as error:  # noqa: BLE001  # what is decided holds
            log.event("warning", "not_given_back", what=f"{self.what}: {type(error).__name__}: {error}")
        return verdict

    def failed(self, error: BaseException) -> None:
        """FlashInfer raised: in strict mode the others wait for this rank's vote."""
        if self.vote is not None:
            with contextlib.suppress(Exception):  # FlashInfer's own error is the one to be seen
                self.vote(self._record("no", f"FlashInfer failed: {type(error).__name__}: {error}"))

    def look(self, built: Any, journal: Journal | None = None) -> str:
        """What is not as planned, told once; an empty text if all is. `journal` is what the driver was asked for, where that was noted."""
        try:
            difference = audit.difference(audit.look(self.kind, built, journal), self.plan)
        except Exception as error:  # noqa: BLE001  # what cannot be read is no reason to harm a workspace that works
            log.event("debug", "audit_failed", error=repr(error))
            return ""
        if difference:
            self._tell(difference)
        return difference

    def _record(self, vote: Any, reason: str) -> Record:
        return Record(rank=self.rank, vote=vote, phase="audit", reason=reason)

    def _tell(self, difference: str) -> None:
        AUDITS.append({"what": self.what, "regime": self.plan.regime, "difference": difference})
        del AUDITS[:-KEPT_AUDITS]
        COUNTS.drifted()
        COUNTS.publish()
        if difference not in _said:
            _said.add(difference)
            log.event("warning", "drift", what=self.what, regime=self.plan.regime, difference=difference)


def give_back(kind: str, built: Any) -> None:
    """Let go of a workspace's memory, references that FlashInfer keeps included. Releases up to 0.6.9 lose it all the same."""
    creator = sys.modules.get("flashinfer.comm.trtllm_ar")
    references = getattr(creator, "_symm_workspace_refs", None)
    ipc_handles = built[0] if kind == "legacy" else vars(built).get("ipc_handles")
    if references is not None:
        references.pop(id(ipc_handles), None)
    elif kind == "legacy" and creator is not None and not isinstance(built[-1], list):
        with contextlib.suppress(Exception):
            creator.trtllm_destroy_ipc_workspace_for_all_reduce_fusion(ipc_handles)
    if kind != "legacy":
        built.destroy()
        vars(built).clear()  # an exception's frames may keep the object
        built._destroyed = True  # noqa: SLF001  # or its destructor complains
