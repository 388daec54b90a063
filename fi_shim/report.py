"""`fi_shim.status()`: the state of this process, as data."""

from __future__ import annotations

from typing import Any

from fi_shim import activation
from fi_shim import settings as settings_module
from fi_shim.compatibility import CompatibilityError, UnknownReleaseError, passed_over
from fi_shim.drift.knowledge import UNREADABLE, at_a_glance
from fi_shim.launch import arrival
from fi_shim.launch.early_names import EARLY_NAMES
from fi_shim.patches.after_creation import AUDITS
from fi_shim.patches.declining import DECLINES
from fi_shim.patches.validator import REJECTIONS
from fi_shim.registry import REGISTRY
from fi_shim.state.counts import COUNTS
from fi_shim.state.processes import this_process


def status() -> dict[str, Any]:
    """What the shim is doing in this process. Plain data, ready for JSON.

    Returns:
        active: bool.
        flashinfer: version that is imported, else installed, else None.
        regime: backend -> name of the regime that sizes it; None for a release without a table.
        patches: name -> state, reason, modules, targets, why.
        settings: name -> value, source (a variable, "default" or "activate()").
        suppressed: rejections answered from cached limits (count).
        drift: what is known of differences between the tables and this FlashInfer: state, detail, changes (functions), audits;
            passed_over: what of FI_SHIM_COMPAT could not be used, one sentence each, where there is such.
        declines: verdicts that declined a workspace.
        counts: what happened since this process started: declines by reason, abstains, rejections, drift_events, votes.
        process: host, pid, rank, start_time and what else tells whether it still runs.
        route: how the package came into this process: "import", "run", "multiprocessing", "vllm plugin" or "sglang plugin".
        early_names: names that other modules had bound before the shim came, and that it pointed to what it put there: repointed, names.
    """
    in_force = activation.active_settings()
    version = activation.flashinfer_version()
    regime, drift = regimes_of(version)
    return {
        "active": in_force is not None,
        "flashinfer": None if version == "unknown" else version,
        "regime": regime,
        "patches": REGISTRY.as_dict(),
        "settings": (in_force or settings_module.read()).as_dict(),
        "suppressed": {"rejections": REJECTIONS.total},
        "drift": {**drift, "audits": list(AUDITS), **({"passed_over": list(unused)} if (unused := passed_over()) else {})},
        "declines": list(DECLINES),
        "counts": COUNTS.as_dict(),
        "process": this_process(),
        "route": arrival.route(),
        "early_names": EARLY_NAMES.as_dict(),
    }


def regimes_of(version: str) -> tuple[dict[str, str] | None, dict[str, Any]]:
    """The regimes of a release, and what is to be said about its table."""
    if version == "unknown":
        return None, {"state": "no FlashInfer"}
    try:
        known = at_a_glance(version)
        for name in () if known.release is None else known.release.regimes.values():
            known.regime(name)
    except UnknownReleaseError as error:
        return None, {**known.as_dict(), "detail": str(error)}
    except CompatibilityError as error:
        return None, {"state": UNREADABLE, "detail": str(error)}
    return None if known.release is None else dict(known.release.regimes), known.as_dict()
