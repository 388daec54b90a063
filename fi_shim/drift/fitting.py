"""Which regime gives what a release asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fi_shim.compatibility import CompatibilityError, folders
from fi_shim.workspace.request import workspace_shape
from fi_shim.workspace.sizes import AllocationPlan, Granularities, load_regime

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fi_shim.drift.creation_run import Outcome
    from fi_shim.workspace.sizes import Regime

_SHAPE: Final = ("world_size", "max_token_num", "hidden_dim", "dtype", "force_oneshot_support")
_GRANULARITIES: Final = {"allocation_granularity": "allocation", "multicast_granularity": "multicast", "signal_pad_size": "signal_pad"}


@dataclass(frozen=True)
class Witness:
    """One request and what a release made of it."""

    entry: str
    """Backend of the factory, or "legacy"."""
    request: Mapping[str, Any]
    outcome: Outcome


def planned(regime: Regime, witness: Witness) -> AllocationPlan | str:
    """What the regime gives for the request of `witness`, or why it refuses it."""
    request = witness.request
    shape = workspace_shape(backend=regime.backend, **{name: request[name] for name in _SHAPE if name in request})
    try:
        return regime.plan(shape, Granularities(**{name: request[given] for given, name in _GRANULARITIES.items() if given in request}))
    except ValueError as error:
        return str(error)


def difference(regime: Regime, witness: Witness) -> str:
    """What is not as `regime` says, or an empty text."""
    plan, outcome = planned(regime, witness), witness.outcome
    if outcome.failed:
        return outcome.failed
    if isinstance(plan, str) or outcome.refused:
        return "" if isinstance(plan, str) and outcome.refused else f"refused: {outcome.refused or 'no'}, by the table: {plan}"
    known = [(a.allocator, a.requested, a.allocated) for a in plan.allocations]
    if known != outcome.allocations:
        return f"asks for {_bytes(outcome.allocations)}, by the table {_bytes(known)}"
    if regime.multicast != outcome.multicast:
        return f"multicast: {outcome.multicast}, by the table {regime.multicast}"
    odd = {key: outcome.metadata.get(key, "missing") for key, value in plan.metadata.items() if outcome.metadata.get(key) != value}
    return f"metadata {odd}, by the table { ({key: plan.metadata[key] for key in odd}) }" if odd else ""


def fitting(witnesses: Sequence[Witness]) -> list[str]:
    """Names of the regimes that give all that was asked for."""
    return [regime.name for regime in regimes() if all(not difference(regime, witness) for witness in witnesses)]


def nearest(witnesses: Sequence[Witness]) -> Regime:
    """The regime that gives most of it."""
    backend = "mnnvl" if witnesses[0].entry == "mnnvl" else "trtllm"
    candidates = [regime for regime in regimes() if regime.backend == backend]
    return max(candidates, key=lambda regime: (sum(not difference(regime, witness) for witness in witnesses), -_residue(regime, witnesses)))


def regimes() -> list[Regime]:
    """All regimes that can be used."""
    packaged = folders()[-1] / "regimes"
    found = []
    for name in sorted({path.stem for folder in folders() for path in (folder / "regimes").glob("*.toml")}):
        try:
            found.append(load_regime(name))
        except CompatibilityError:  # of the overlay alone, and told
            if (packaged / f"{name}.toml").is_file():
                raise
    return found


def _residue(regime: Regime, witnesses: Sequence[Witness]) -> int:
    """Bytes by which the regime is wrong, over all witnesses."""
    total = 0
    for witness in witnesses:
        plan = planned(regime, witness)
        known = 0 if isinstance(plan, str) else plan.total_bytes
        total += abs(known - sum(allocated for _, _, allocated in witness.outcome.allocations))
    return total


def _bytes(allocations: Sequence[tuple[str, int, int]]) -> str:
    return " + ".join(f"{allocated:,} ({requested:,} from {allocator})" for allocator, requested, allocated in allocations) or "nothing"
