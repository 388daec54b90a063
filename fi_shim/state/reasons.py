"""Why a workspace was declined, as one of a few words: a metric's label must not be free text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fi_shim.workspace.vote import differences

if TYPE_CHECKING:
    from fi_shim.workspace.vote import Record, Verdict

REASONS: Final = ("memory", "driver", "missing_rank", "difference", "drift", "remembered", "capturing", "failed", "other")
_OUT_OF_MEMORY: Final = ("not enough free memory", "out_of_memory")
_BY_WORDS: Final = {
    "declined before": "remembered",
    "captur": "capturing",
    "allocated otherwise than planned": "drift",
    "failed": "failed",
}
"""What a reason contains -> its word, the first that fits."""


def reason_of(verdict: Verdict | None, *, voted: bool = True) -> str:
    """One of REASONS.

    Args:
        verdict: None stands for a fault of the shim that left no verdict.
        voted: False where this request was not voted on; records of several ranks are then those of an earlier one.
    """
    if verdict is None:
        return "failed"
    against = [record for record in verdict.records if record.vote == "no"]
    facts = {
        "remembered": not voted and len(verdict.records) > 1,
        "missing_rank": bool(verdict.missing),
        "difference": bool(differences([record for record in verdict.records if record.vote != "absent"])),
        "memory": any(map(_out_of_memory, against)),
        "driver": any(record.phase == "probe" and record.bytes_needed is not None for record in against),
    }
    words = next((word for words, word in _BY_WORDS.items() if words in verdict.reason.lower()), "")
    built = any(record.phase == "commit" for record in against)
    return next((word for word, holds in facts.items() if holds), words or ("failed" if built else "other"))


def _out_of_memory(record: Record) -> bool:
    return any(words in record.reason.lower() for words in _OUT_OF_MEMORY)
