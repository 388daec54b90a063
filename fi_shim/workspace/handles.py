"""Which handle type a release is going to share memory with: each rank's own answer, or one that the group agrees on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fi_shim.workspace.vote import Record

HandleType: TypeAlias = Literal["fabric", "posix"]


def local_facts(rule: str, device: int) -> dict[str, Any]:
    """What this rank can do, by the release's own rule. FlashInfer's function is looked up now: engines replace it.

    Args:
        rule: "rank" (each rank decides: up to 0.7.2.post1) or "group" (0.7.4: the group agrees).
        device: CUDA device number.

    Returns:
        handle_type: this rank's own answer; cluster: hex of the NVLink fabric cluster, where the rule asks for it.
    """
    mnnvl = sys.modules["flashinfer.comm.mnnvl"]
    if rule == "group":
        reason, cluster = mnnvl._local_fabric_status(device)  # noqa: SLF001  # the rule itself; there is no public name for it
        return {"handle_type": "posix" if reason else "fabric", "cluster": bytes(cluster).hex()}
    return {"handle_type": "fabric" if mnnvl.is_mnnvl_fabric_supported(device) else "posix"}


def agreed(rule: str, records: Sequence[Record]) -> HandleType:
    """The handle type that all ranks are going to use. ValueError, with both sides, where FlashInfer cannot agree on one."""
    answers = {record.rank: record.facts["handle_type"] for record in records}
    hosts = {record.host for record in records}
    if rule == "rank":
        if len(set(answers.values())) > 1:
            raise ValueError(f"ranks would use different handle types and wait for each other: {_sides(answers)}")
        if "fabric" in answers.values():
            return "fabric"
        if len(hosts) > 1:
            raise ValueError(f"memory shared across hosts {', '.join(sorted(hosts))} needs fabric handles: {_sides(answers)}")
        return "posix"
    clusters = {record.facts["cluster"] for record in records}
    if len(hosts) == 1:
        return "fabric" if set(answers.values()) == {"fabric"} else "posix"
    if set(answers.values()) == {"fabric"} and len(clusters) == 1 and any(bytes.fromhex(clusters.pop())):
        return "fabric"
    raise ValueError(f"memory shared across hosts {', '.join(sorted(hosts))} needs fabric handles in one NVLink domain: {_sides(answers)}")


def _sides(answers: dict[int, str]) -> str:
    return ", ".join(f"{answer} on rank {rank}" for rank, answer in answers.items())
