"""What every rank raises when a verdict is no."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fi_shim.workspace.vote import Record, Verdict

_COLUMNS = ("rank", "host", "device", "needed", "free", "vote", "reason")


class WorkspaceDeclined(RuntimeError):  # noqa: N818  # the public name
    """All ranks declined to build a workspace. A RuntimeError: engines catch it and fall back.

    Attributes:
        verdict: the verdict; `verdict.records` has each rank's record, by group rank.
    """

    def __init__(self, what: str, verdict: Verdict) -> None:
        self.verdict = verdict
        self._what = what
        super().__init__(f"{headline(what, verdict)}\n{table(verdict)}")

    def __reduce__(self) -> tuple[type[WorkspaceDeclined], tuple[str, Verdict]]:
        """Engines send exceptions to other processes."""
        return type(self), (self._what, self.verdict)


def headline(what: str, verdict: Verdict) -> str:
    """One line a person can act on."""
    said = "fi_shim active" in verdict.reason
    hint = f". Is fi_shim active on {_ranks(verdict.missing)}?" if verdict.missing and not said else ""
    return f"fi_shim: all ranks declined the FlashInfer {what}: {verdict.reason}{hint}"


def table(verdict: Verdict) -> str:
    """Each rank's record; sizes in bytes."""
    rows = [_COLUMNS, *(_row(record) for record in verdict.records)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS) - 1)]
    return "\n".join("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip() for row in rows)


def _row(record: Record) -> tuple[str, ...]:
    sizes = ["-" if size is None else f"{size:,}" for size in (record.bytes_needed, record.bytes_free)]
    device = "-" if record.device is None else str(record.device)
    return (str(record.rank), record.host or "-", device, *sizes, record.vote, record.reason.replace("\n", " "))


def _ranks(numbers: tuple[int, ...]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
