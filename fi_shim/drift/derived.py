"""A regime that nobody wrote: each plan is what a dry run of the release's own code asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fi_shim.drift.dry_run import DryRunError, dry_run
from fi_shim.drift.fitting import regimes
from fi_shim.workspace.sizes import Allocation, AllocationPlan, Granularities, Regime

if TYPE_CHECKING:
    from pathlib import Path

    from fi_shim.drift.creation_run import Outcome
    from fi_shim.workspace.request import WorkspaceShape

DERIVED: Final = "derived"
_PURPOSES: Final = {"trtllm": ("buffer", "flags", "lamport"), "mnnvl": ("mnnvl",)}


@dataclass(frozen=True)
class DerivedRegime(Regime):
    """Asks the code under `root`; half a second a plan."""

    root: Path
    entry: str
    """Backend of the factory, or "legacy"."""
    confidential_computing: bool

    def _plan(self, shape: WorkspaceShape, granularities: Granularities) -> AllocationPlan:
        multicast = granularities.multicast
        if callable(multicast):  # a driver's recommendation depends on the size, which is known after a first run
            first = self._run(shape, Granularities(granularities.allocation, signal_pad=granularities.signal_pad))
            multicast = multicast(max(requested for _, requested, _ in first.allocations)) if self.multicast != "none" else 1
        outcome = self._run(shape, Granularities(granularities.allocation, multicast, granularities.signal_pad))
        purposes = _PURPOSES[self.backend]
        if len(purposes) != len(outcome.allocations):
            purposes = tuple(f"buffer {number}" for number in range(len(outcome.allocations)))
        allocations = [Allocation(purpose, *each) for purpose, each in zip(purposes, outcome.allocations, strict=True)]
        stated = {key for regime in regimes() for key in regime.table["metadata"]}  # the others are addresses, or this rank's own
        return AllocationPlan(self.name, tuple(allocations), {key: value for key, value in outcome.metadata.items() if key in stated})

    def _run(self, shape: WorkspaceShape, granularities: Granularities) -> Outcome:
        if shape.buffer_size_in_bytes is not None:
            raise DryRunError("a dry run takes no buffer_size_in_bytes")
        request: dict[str, Any] = {
            "world_size": shape.world_size,
            "max_token_num": shape.max_token_num,
            "hidden_dim": shape.hidden_dim,
            "dtype": shape.dtype,
            "allocation_granularity": granularities.allocation,
            "multicast_granularity": granularities.multicast,
            "signal_pad_size": granularities.signal_pad,
        }
        if shape.force_oneshot_support:
            request["force_oneshot_support"] = True
        if self.confidential_computing:
            request["confidential_computing"] = True
        (outcome,) = dry_run(self.root, [(self.entry, request)])
        if outcome.refused:
            raise ValueError(outcome.refused)
        if outcome.failed or not outcome.allocations:
            raise DryRunError(outcome.failed or "it allocates nothing")
        return outcome


def derived_regime(root: Path, entry: str, *, confidential_computing: bool, example: Outcome) -> DerivedRegime:
    """The regime of an entry, with what an `example` of it shows."""
    backend = "mnnvl" if entry == "mnnvl" else "trtllm"
    table = {"name": DERIVED, "backend": backend, "allocator": example.allocations[0][0], "multicast": example.multicast}
    return DerivedRegime(DERIVED, backend, example.multicast, root, table, root, entry, confidential_computing)
