"""Who votes: the group behind what an engine passes to FlashInfer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class NoElectorateError(Exception):
    """There is no group to vote in; the text says why. FlashInfer runs as without the shim."""


@dataclass(frozen=True)
class Electorate:
    """The ranks that build one workspace together."""

    group: Any | None
    """A torch.distributed.ProcessGroup, or None where only `comm_backend` knows the ranks."""
    comm_backend: Any | None
    rank: int
    """Of this process, in the group."""
    size: int


def find_electorate(group: Any, comm_backend: Any, world_size: int | None) -> Electorate:
    """Find the group by what the caller gave, the CPU group first: SGLang's backend keeps one beside its NCCL group.

    Args:
        group: what the caller gave as process group, or None.
        comm_backend: what the caller gave as communication backend, or None.
        world_size: ranks of the workspace; None if the caller's own is not a number.

    Returns:
        The group, whatever its size. `rank` is -1 where this process is not in it.

    Raises:
        NoElectorateError: no torch group and no usable backend, or a workspace of one rank in a larger group.
    """
    electorate = _find(group, comm_backend)
    if world_size == 1 and electorate.size != 1:
        raise NoElectorateError(f"the group has {electorate.size} ranks, the workspace one, which has nobody to vote with")
    return electorate


def _find(group: Any, comm_backend: Any) -> Electorate:
    import torch.distributed as dist

    initialized = dist.is_available() and dist.is_initialized()
    candidates = [getattr(comm_backend, "_cpu_group", None), getattr(comm_backend, "_group", None), group]
    if initialized:
        if any(candidate is dist.GroupMember.NON_GROUP_MEMBER for candidate in candidates):
            return Electorate(None, None, -1, 0)
        for candidate in candidates:
            if isinstance(candidate, dist.ProcessGroup):
                return Electorate(candidate, comm_backend, dist.get_rank(candidate), dist.get_world_size(candidate))
    if comm_backend is not None and not _is_torch_backend(comm_backend):
        return Electorate(None, comm_backend, int(comm_backend.Get_rank()), int(comm_backend.Get_size()))
    if group is not None:
        raise NoElectorateError(f"group is a {type(group).__module__}.{type(group).__qualname__}, not a torch process group")
    if not initialized:
        raise NoElectorateError("torch.distributed is not initialised")
    return Electorate(dist.group.WORLD, comm_backend, dist.get_rank(), dist.get_world_size())


def _is_torch_backend(comm_backend: Any) -> bool:
    """Whether it is FlashInfer's own adapter over torch.distributed, or derived from it: without a group it means WORLD."""
    return any(cls.__name__ == "TorchDistBackend" for cls in type(comm_backend).__mro__)
