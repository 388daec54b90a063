"""`fi-shim verify`: do the tables still say what a FlashInfer does?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fi_shim.drift import validator_questions
from fi_shim.drift.dry_run import DryRunError
from fi_shim.drift.fitting import Witness, difference, planned
from fi_shim.drift.identity import UNLABELLED, Change, Identity, identify, label_of
from fi_shim.drift.record import BACKENDS, NewArithmeticError, observe, regimes_of
from fi_shim.workspace.sizes import load_regime

if TYPE_CHECKING:
    from pathlib import Path

    from fi_shim.compatibility import Release
    from fi_shim.drift.record import Behaviour
    from fi_shim.workspace.sizes import Regime

SHOWN: Final = 3  # shapes whose bytes are shown for each entry


@dataclass(frozen=True)
class SizeDifference:
    """One shape that a release allocates for in another way than the table says. Sizes in bytes."""

    entry: str
    request: dict[str, Any]
    requested: list[int]
    allocated: list[int]
    planned_requested: list[int]
    planned_allocated: list[int]
    detail: str
    """What differs, or an empty text."""

    @property
    def allocated_more(self) -> int:
        """Physical bytes more than planned, over all buffers."""
        return sum(self.allocated) - sum(self.planned_allocated)

    @property
    def requested_more(self) -> int:
        """Bytes asked for more than planned, before any rounding by driver or torch."""
        return sum(self.requested) - sum(self.planned_requested)


@dataclass(frozen=True)
class Report:
    """What the nets found."""

    identity: Identity
    dry_run: str
    """How the dry run went: "not needed", "equal", "different" or why it could not run."""
    regimes: dict[str, str] = field(default_factory=dict)
    """backend -> regime that gives what the code does, where one does."""
    differences: tuple[SizeDifference, ...] = ()
    other: tuple[str, ...] = ()
    """Differences that are not sizes."""

    @property
    def blame(self) -> tuple[Change, ...]:
        """The changes that count: all where behaviour differs, else those that no dry run can excuse."""
        if self.drifted and self.dry_run != "equal":
            return self.identity.changes
        return tuple(change for change in self.identity.changes if change.what in {"gone", "parameters changed"})

    @property
    def drifted(self) -> bool:
        """Whether the tables are not true of this FlashInfer."""
        unexcused = any(change.what in {"gone", "parameters changed"} for change in self.identity.changes)
        return unexcused or self.dry_run not in {"not needed", "equal"}


def verify(root: Path, *, always_run: bool = False) -> Report:
    """Fingerprints first; where they differ (or `always_run`), a dry run.

    Raises:
        NoSourceError: no FlashInfer under `root`.
        SyntaxError: its code is not Python.
        CompatibilityError: a table is missing or wrong.
    """
    label = label_of(root)
    identity = identify(root, label)
    if identity.same_code and not always_run:
        return Report(identity, "not needed", dict(identity.release.regimes))
    try:
        behaviour = observe(root, questions=validator_questions.QUESTIONS, further=True)
    except DryRunError as error:
        return Report(identity, str(error))
    differences = tuple(_differences(behaviour, identity.release))
    other = tuple(_other_differences(behaviour, identity.release))
    try:
        regimes = regimes_of(behaviour)[0]
    except NewArithmeticError:
        regimes = {}
    return Report(identity, "different" if differences or other else "equal", regimes, differences, other)


def _differences(behaviour: Behaviour, release: Release) -> list[SizeDifference]:
    """Three shapes of each entry that differs: those that differ first."""
    found = []
    for witnesses, regime in _entries(behaviour, release):
        shown = [_size_difference(regime, witness) for witness in witnesses]
        if any(each.detail for each in shown):
            found += sorted(shown, key=lambda each: not each.detail)[:SHOWN]
    return found


def _entries(behaviour: Behaviour, release: Release) -> list[tuple[list[Witness], Regime]]:
    """Each entry's witnesses, and the regime that the table names for them."""
    entries = [(behaviour.of(backend), load_regime(release.regimes[backend])) for backend in BACKENDS]
    entries.append((behaviour.of("legacy"), load_regime(release.rules["legacy_creator"])))
    trtllm = release.confidential.get("trtllm", release.regimes["trtllm"])
    entries.append((behaviour.of("trtllm", confidential=True), load_regime(trtllm)))
    return entries


def _size_difference(regime: Regime, witness: Witness) -> SizeDifference:
    plan = planned(regime, witness)
    planned_allocations = () if isinstance(plan, str) else plan.allocations
    return SizeDifference(
        witness.entry,
        dict(witness.request),
        [requested for _, requested, _ in witness.outcome.allocations],
        [allocated for _, _, allocated in witness.outcome.allocations],
        [allocation.requested for allocation in planned_allocations],
        [allocation.allocated for allocation in planned_allocations],
        difference(regime, witness),
    )


def _other_differences(behaviour: Behaviour, release: Release) -> list[str]:
    first = behaviour.of("trtllm")[0].outcome
    found = []
    if not first.failed:
        found += validator_questions.wrong_answers(first.answers)
        known = release.rules.get("metadata", "").split()
        if known and known != list(first.metadata):
            odd = sorted(set(known) ^ set(first.metadata)) or known
            found.append(f"the workspace's metadata has other keys: {', '.join(odd)}")
    devices = {device for witness in behaviour.of("trtllm") for device in witness.outcome.devices}
    by_rank = release.rules["device"] == "rank"
    if devices and by_rank != (devices == {0}):
        found.append(f"it allocates on {'the current device' if by_rank else 'the device numbered as the rank'}")
    return found


def as_dict(report: Report) -> dict[str, Any]:
    """The report as JSON-ready data."""
    identity = report.identity
    return {
        "root": str(identity.root),
        "version": None if identity.label == UNLABELLED else identity.label,
        "release": identity.release.version,
        "recognised_by": identity.how,
        "drift": report.drifted,
        "dry_run": report.dry_run,
        "regimes": report.regimes,
        "changes": [{**vars(change), "location": f"{change.file}:{change.line}"} for change in identity.changes],
        "blame": [change.name for change in report.blame],
        "differences": [
            {**vars(each), "allocated_more": each.allocated_more, "requested_more": each.requested_more} for each in report.differences
        ],
        "other": list(report.other),
    }


def as_text(report: Report) -> str:
    """The report for people."""
    identity = report.identity
    says = "says no version" if identity.label == UNLABELLED else f"says {identity.label}"
    lines = [f"FlashInfer under {identity.root} {says}; by content it is {_content(identity)}"]
    if report.dry_run != "not needed":
        lines.append(f"dry run: {report.dry_run}")
    if identity.changes:
        lines.append("changed functions:" if report.drifted else "changed functions, without effect on sizes, metadata or the validator:")
        lines += [f"  {change}" for change in identity.changes]
    for each in report.differences:
        shape = ", ".join(f"{key}={value}" for key, value in each.request.items())
        lines.append(f"{each.entry} ({shape}): {each.allocated_more:+,} bytes allocated, {each.requested_more:+,} requested")
        lines += [f"  {each.detail}"] if each.detail else []
    if report.drifted and not report.differences and report.dry_run in {"equal", "different"}:
        lines.append("no byte more or less in any shape that was tried")
    lines += report.other
    regimes = ", ".join(f"{backend}: {name}" for backend, name in report.regimes.items())
    lines.append("DRIFT: the tables do not describe this FlashInfer" if report.drifted else f"no drift ({regimes})")
    return "\n".join(lines)


def _content(identity: Identity) -> str:
    kind = {"files": "", "functions": " in all that matters", "changed": " with changes"}[identity.how]
    return f"{identity.release.version}{kind}"
