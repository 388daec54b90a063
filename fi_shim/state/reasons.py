"""Why a workspace was declined, as one of a few words: a metric's label must not be free text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fi_shim.workspace.vote import differences

if TYPE_CHECKING:
    from fi_shim.workspace.vote import Record, Verdict

REASONS: Final = ("memory", "driver", "missing_rank", "difference", "drift", "remembered", "capturing", "failed", "other")
_OUT_OF_MEMORY: Final = ("not enough free memory", "out_of_memory")
_BY_WORDS: Final = {"captur": "capturing", "allocated otherwise than planned": "drift", "failed": "failed"}
"""What a reason contains -> its word, the first that fits."""


def reason_of(verdict: Verdict | None) -> str:
    """One of REASONS. None stands for a fault of the shim that left no verdict."""
    if verdict is None:
        return "failed"
    text = verdict.reason.lower()
    if "remembered" in text:
        return "remembered"
    if verdict.missing:
        return "missing_rank"
    if differences([record for record in verdict.records if record.vote != "absent"]):
        return "difference"
    refused = [record for record in verdict.records if record.vote == "no" and record.bytes_needed is not None]  # by a probe that ran
    if refused:
        return "memory" if any(map(_out_of_memory, refused)) else "driver"
    return next((word for words, word in _BY_WORDS.items() if words in text), "other")


def _out_of_memory(record: Record) -> bool:
    return any(words in record.reason.lower() for words in _OUT_OF_MEMORY)
