"""Run the installed FlashInfer's own creation code, alone and on no device, and write down what it allocates.

One process stands for all ranks: each peer sends what we send. Every name that is replaced for the time of a recording is in
`recording_doubles`; everything else is FlashInfer's own code. Call it from one thread at a time.
"""

from __future__ import annotations

import contextlib
import importlib
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fi_shim.testing import import_aids, recording_doubles, specification
from fi_shim.testing.loopback import LoopbackComm

if TYPE_CHECKING:
    from collections.abc import Iterator

BOUNDLESS: Final = 1 << 60  # bytes of each device: nothing is real, so nothing is short
SIGNAL_PAD_SIZE: Final = 2048  # bytes; FlashInfer's own, and older torch's


@dataclass(frozen=True)
class RecordedAllocation:
    """One large allocation, as the release asked for it.

    Attributes:
        allocator: "cuMemCreate" or "symm_mem".
        requested: bytes given to SymmDeviceMemory, or to symm_mem.empty.
        allocated: bytes that the device gives up: those given to cuMemCreate, or what torch makes of the request.
    """

    allocator: str
    requested: int
    allocated: int


@dataclass(frozen=True)
class Recorded:
    """What one creation allocated, in order, and what the workspace says about itself.

    `metadata` is the workspace's own for trtllm; for mnnvl its buffer_size_bytes and workspace_size_bytes.
    """

    backend: str
    allocations: tuple[RecordedAllocation, ...]
    metadata: dict[str, Any]


def record(
    *,
    backend: str,
    world_size: int,
    max_token_num: int,
    hidden_dim: int,
    dtype: Any,
    force_oneshot_support: bool = False,
    allocation_granularity: int = specification.SMALLEST_GRANULARITY,
    multicast_granularity: int = specification.MULTICAST,
    signal_pad_size: int = SIGNAL_PAD_SIZE,
) -> Recorded:
    """Create a workspace with `flashinfer.comm.create_allreduce_fusion_workspace` and tell what was allocated; sizes in bytes.

    Small allocations (tables of pointers, flags) are not listed. FlashInfer is left as it was found.

    Raises:
        Exception: whatever the release raises for such a request.
    """
    options = {
        "allocation_granularity": allocation_granularity,
        "multicast_granularity": multicast_granularity,
        "signal_pad_size": signal_pad_size,
    }
    request = {"backend": backend, "world_size": world_size, "max_token_num": max_token_num, "hidden_dim": hidden_dim, "dtype": dtype}
    with created_alone(**request, force_oneshot_support=force_oneshot_support, **options) as (workspace, allocations):
        return Recorded(backend, tuple(allocations), _metadata(workspace))


@contextlib.contextmanager
def created_alone(
    *,
    world_size: int,
    allocation_granularity: int = specification.SMALLEST_GRANULARITY,
    multicast_granularity: int = specification.MULTICAST,
    signal_pad_size: int = SIGNAL_PAD_SIZE,
    **request: Any,
) -> Iterator[tuple[Any, list[RecordedAllocation]]]:
    """A workspace of rank 0 as FlashInfer makes it, and what it allocated; destroyed at the end of the block. Arguments as `record`'s."""
    import_aids.install()
    importlib.import_module("flashinfer.comm")
    devices = specification.Specification(
        (BOUNDLESS,) * max(world_size, 1),
        multicast_granularity,
        multicast_for_any_size=True,
        granularity=allocation_granularity,
        fabric="on",
    )
    with recording_doubles.in_place(devices, world_size, signal_pad_size) as journal:
        workspace = _create(journal, world_size, request)
        try:
            yield workspace, [RecordedAllocation(*one) for one in journal.allocations]
        finally:
            journal.workspaces.clear()
            workspace.destroy()
            vars(workspace).clear()  # its memory must go while the doubles are in place, whoever still holds the object
            workspace._destroyed = True  # noqa: SLF001


def _create(journal: recording_doubles.Journal, world_size: int, request: dict[str, Any]) -> Any:
    comm = importlib.import_module("flashinfer.comm")
    try:
        return comm.create_allreduce_fusion_workspace(world_size=world_size, rank=0, comm_backend=LoopbackComm(world_size), **request)
    except Exception as error:
        for workspace in journal.workspaces:
            workspace._destroyed = True  # noqa: SLF001  (its destructor would complain about what it never had)
        journal.workspaces.clear()
        traceback.clear_frames(error.__traceback__)  # half-made memory must be dropped while the doubles are in place
        raise


def _metadata(workspace: Any) -> dict[str, Any]:
    if workspace.backend == "mnnvl":
        return {name: getattr(workspace, name) for name in ("buffer_size_bytes", "workspace_size_bytes")}
    return dict(workspace.metadata)
