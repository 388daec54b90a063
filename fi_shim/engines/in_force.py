"""Whether fi_shim's own preflight is going to decide about a workspace, so that an engine's may step aside."""

from __future__ import annotations

from fi_shim.registry import APPLIED, DISPLACED, REGISTRY


def preflight_not_in_force() -> str:
    """Why fi_shim would not probe and vote on a workspace that this rank asks for now, or an empty text if it would."""
    from fi_shim.activation import active_settings, flashinfer_version
    from fi_shim.drift.knowledge import knowledge
    from fi_shim.engines.sglang_forward import no_decline_here

    settings, creation = active_settings(), REGISTRY.records.get("creation")
    if settings is None or creation is None or not creation.switch.on:
        return "fi_shim is not active"
    if not {creation.state, *(point.state() for point in creation.points)} <= {APPLIED, DISPLACED}:
        return "creation is not applied everywhere"
    if settings.preflight == "off":
        return "FI_SHIM_PREFLIGHT=off"
    if reason := no_decline_here():
        return reason
    release = knowledge(flashinfer_version()).required_release()
    return "" if release.regimes else f"nothing is known of the sizes of FlashInfer {release.version}"
