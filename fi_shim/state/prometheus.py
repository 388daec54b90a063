"""Running processes in Prometheus' text format (version 0.0.4), for node_exporter's textfile collector or a sidecar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fi_shim.state.reasons import REASONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fi_shim.state.reading import StateFile

    Sample = tuple[str, Mapping[str, str], float]

_FAMILIES = {
    "fi_shim_info": ("gauge", "1 for each running process; version of the shim and of FlashInfer, and what is known of the latter."),
    "fi_shim_active": ("gauge", "Whether the shim is active in the process."),
    "fi_shim_patch_active": ("gauge", "Whether a patch is applied in the process."),
    "fi_shim_declines_total": ("counter", "Workspaces that all ranks declined, by reason."),
    "fi_shim_abstains_total": ("counter", "Workspaces that were built without preflight because a rank abstained."),
    "fi_shim_rejections_total": ("counter", "Shapes that were rejected without a log line."),
    "fi_shim_drift_events_total": ("counter", "Differences between the tables and this FlashInfer."),
    "fi_shim_vote_seconds": ("histogram", "Duration of a vote, the wait for late ranks and the probe included."),
}


def as_prometheus(files: Sequence[StateFile]) -> str:
    """The metrics of all running processes. Counters start at 0 with each process; host, pid and rank tell processes apart."""
    samples: dict[str, list[Sample]] = {name: [] for name in _FAMILIES}
    for file in files:
        if file.state == "live":
            for family, sample in _samples(file.content):
                samples[family].append(sample)
    lines = []
    for family, (kind, text) in _FAMILIES.items():
        lines += [f"# HELP {family} {text}", f"# TYPE {family} {kind}"]
        lines += [f"{name}{{{_labels(labels)}}} {_number(value)}" for name, labels, value in samples[family]]
    return "\n".join(lines) + "\n"


def _samples(content: Mapping[str, Any]) -> Iterator[tuple[str, Sample]]:
    process, counts = content["process"], content["counts"]
    base = {"host": process["host"], "pid": str(process["pid"]), "rank": process["rank"]}

    def plain(name: str, value: float, **labels: str) -> tuple[str, Sample]:
        return name, (name, {**base, **labels}, value)

    versions = {"version": str(content.get("version", "")), "flashinfer": str(content.get("flashinfer") or "")}
    yield plain("fi_shim_info", 1, **versions, drift=str((content.get("drift") or {}).get("state", "")))
    yield plain("fi_shim_active", content["active"])
    for patch, record in content["patches"].items():
        yield plain("fi_shim_patch_active", record["state"] == "applied", patch=patch)
    for reason in REASONS:
        yield plain("fi_shim_declines_total", counts["declines"].get(reason, 0), reason=reason)
    for name in ("abstains", "rejections", "drift_events"):
        yield plain(f"fi_shim_{name}_total", counts[name])
    family, votes = "fi_shim_vote_seconds", counts["votes"]
    for limit, count in votes["within"].items():
        yield family, (f"{family}_bucket", {**base, "le": limit}, count)
    yield family, (f"{family}_bucket", {**base, "le": "+Inf"}, votes["count"])
    yield family, (f"{family}_sum", base, votes["seconds"])
    yield family, (f"{family}_count", base, votes["count"])


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return repr(int(value)) if value == int(value) else repr(float(value))
