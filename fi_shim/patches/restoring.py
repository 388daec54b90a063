"""`checkpoint_restore` (FlashInfer 0.6.15 on) allocates and exchanges as a creation does: it is a transaction as well."""

from __future__ import annotations

import sys
from typing import Any, Final

from fi_shim.patches.asked import Asked
from fi_shim.workspace.sizes import Allocation, AllocationPlan

METHOD: Final = "checkpoint_restore"


def restore_asked(backend: str, workspace: Any, comm_backend: Any) -> tuple[Asked, AllocationPlan] | None:
    """What restoring a workspace asks for; None where FlashInfer has nothing to allocate, or says itself what is wrong."""
    memories = memories_of(workspace)
    if not memories or any(memory.mapped for memory in memories):
        return None
    rank, size = memories[0].group_rank, memories[0].group_size
    sizes = [int(memory.allocation_size) for memory in memories]
    request = {"entry": f"restore {backend}", "world_size": size, "bytes": sum(sizes)}
    allocations = tuple(Allocation("buffer", "cuMemCreate", number, number) for number in sizes)
    asked = Asked("restore", request, None, "", size, rank, memories[0].device_idx, None, comm_backend, backend=backend)
    return asked, AllocationPlan("as created", allocations, {})


def memories_of(workspace: Any) -> list[Any]:
    """The `SymmDeviceMemory` objects behind a workspace; none where its memory is torch's."""
    held = vars(workspace)
    handle = getattr(held.get("handle"), "mcast_device_memory", None)
    found = [handle] if handle is not None else list(held.get("mem_handles") or ())
    kind = sys.modules["flashinfer.comm.mnnvl"].SymmDeviceMemory
    return found if all(isinstance(memory, kind) for memory in found) else []
