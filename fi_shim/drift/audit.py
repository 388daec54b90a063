"""After a creation: what was allocated, by the handles' own sizes and the metadata, against the plan."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fi_shim.seams.journal import Journal
    from fi_shim.workspace.sizes import AllocationPlan

_LEGACY_WITH_MEMORY: Final = 4  # (ipc handles, tensor, memory handles, metadata)
_LEGACY_WITH_METADATA: Final = 3


@dataclass
class Seen:
    """What a built workspace says of itself. Sizes in bytes; None where it does not say."""

    allocated: list[int] | None = None
    """Of SymmDeviceMemory: physical bytes."""
    requested: list[int] | None = None
    """Of tensors in torch's symmetric memory."""
    created: dict[str, list[int]] = field(default_factory=dict)
    """What the driver was asked for, by allocator, as far as that was noted."""
    metadata: dict[str, Any] = field(default_factory=dict)


def look(kind: str, built: Any, journal: Journal | None = None) -> Seen:
    """Read a workspace's sizes.

    Args:
        kind: "trtllm", "mnnvl" or "legacy", as it was asked for.
        built: the workspace; what the legacy creator returned.
        journal: of the build, if it was under guard.
    """
    seen = _look(kind, built)
    if journal is not None:
        seen.created = {"cuMemCreate": journal.sizes("handle"), "cudaMalloc": journal.sizes("runtime")}
    return seen


def _look(kind: str, built: Any) -> Seen:
    if kind == "mnnvl":
        memory = getattr(vars(built).get("handle"), "mcast_device_memory", None)
        held = [memory] if memory is not None else [tensor for tensor in [vars(built).get("tensor")] if tensor is not None]
        return _sizes(held, {name: value for name, value in vars(built).items() if isinstance(value, int)})
    if kind == "legacy":
        ipc_handles = built[0]
        metadata = built[-1] if len(built) >= _LEGACY_WITH_METADATA else {}
        handles = built[2] if len(built) == _LEGACY_WITH_MEMORY else ()
    else:
        ipc_handles, metadata, handles = built.ipc_handles, built.metadata, getattr(built, "mem_handles", ())
    return _sizes(_kept(ipc_handles) or handles, metadata)


def difference(seen: Seen, plan: AllocationPlan) -> str:
    """What is not as planned, or an empty text."""
    found = []
    for name, planned in (
        ("allocated", [allocation.allocated for allocation in plan.allocations]),
        ("requested", [allocation.requested for allocation in plan.allocations]),
    ):
        sizes = getattr(seen, name)
        if sizes is not None and sizes != planned:
            found.append(f"{name} {_bytes(sizes)}, planned {_bytes(planned)} ({sum(sizes) - sum(planned):+,} bytes)")
    planned = [allocation.allocated for allocation in plan.allocations]
    created = seen.created.get(plan.allocations[0].allocator)
    if created is not None and created[: len(planned)] != planned:  # small ones may follow
        found.append(f"the driver was asked for {_bytes(created)}, planned {_bytes(planned)}")
    odd = {key: seen.metadata.get(key, "missing") for key, value in plan.metadata.items() if seen.metadata.get(key) != value}
    if odd:
        found.append(f"metadata {odd}, planned { ({key: plan.metadata[key] for key in odd}) }")
    return "; ".join(found)


def _kept(ipc_handles: Any) -> list[Any]:
    """What FlashInfer keeps alive for a workspace (0.6.10 on): SymmDeviceMemory, or tensors with their rendezvous."""
    references = getattr(sys.modules.get("flashinfer.comm.trtllm_ar"), "_symm_workspace_refs", {})
    return [kept[0] if isinstance(kept, tuple) else kept for kept in references.get(id(ipc_handles), ())]


def _sizes(held: Iterable[Any], metadata: dict[str, Any]) -> Seen:
    held = list(held)
    if held and all(hasattr(memory, "allocation_size") for memory in held):
        return Seen(allocated=[int(memory.allocation_size) for memory in held], metadata=metadata)
    if held and all(hasattr(tensor, "nbytes") for tensor in held):
        return Seen(requested=[int(tensor.nbytes) for tensor in held], metadata=metadata)
    return Seen(metadata=metadata)


def _bytes(sizes: Iterable[int]) -> str:
    return " + ".join(f"{size:,}" for size in sizes) or "nothing"
