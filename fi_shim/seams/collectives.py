"""What FlashInfer's collectives go over while it builds: the communication backend that it is given, and its name `dist`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import wrapt

from fi_shim.seams.window import current

if TYPE_CHECKING:
    from collections.abc import Callable

    from fi_shim.seams.building import Building


def guarded_backend(build: Building, inner: Callable[[], Any], base: type) -> Any:
    """A CommBackend whose operations end when a rank fails.

    Args:
        build: over whose gathering they go.
        inner: makes or gives the backend that takes over when the build is over.
        base: FlashInfer's own class over torch.distributed: releases ask for instances of it, and for `_group`.
    """
    members = {name: value for name, value in vars(_GuardedBackend).items() if name not in {"__dict__", "__weakref__"}}
    backend: Any = object.__new__(type("GuardedBackend", (base,), members))
    vars(backend).update(_build=build, _inner=inner, _group=build.group)
    return backend


class _GuardedBackend:
    """The methods of FlashInfer's CommBackend. Ranks are the group's."""

    _build: Building
    _inner: Callable[[], Any]

    def Get_rank(self) -> int:  # noqa: N802
        return self._build.gathering.rank

    def Get_size(self) -> int:  # noqa: N802
        return self._build.gathering.size

    def allgather(self, data: Any) -> Any:
        return self._inner().allgather(data) if self._build.over else self._build.exchange("allgather", data)

    def bcast(self, data: Any, root: int) -> Any:
        return self._inner().bcast(data, root) if self._build.over else self._build.broadcast(data, root)

    def barrier(self) -> None:
        if self._build.over:
            self._inner().barrier()
        else:
            self._build.barrier()

    def Split(self, color: int, key: int) -> Any:  # noqa: N802
        """No release splits while it builds a workspace: this is the caller's own."""
        return self._inner().Split(color, key)


class DistStandIn(wrapt.ObjectProxy):  # type: ignore[type-arg]  # generic in the stubs only
    """The module `torch.distributed` inside FlashInfer's: in a build, its collectives are those of the build's group."""

    def all_gather_object(self, object_list: list[Any], value: Any, group: Any = None) -> None:
        """Fill `object_list` by rank."""
        build = current()
        if build is None:
            self.__wrapped__.all_gather_object(object_list, value, group=group)
        else:
            object_list[:] = build.exchange("all_gather_object", value)

    def barrier(self, group: Any = None, **kwargs: Any) -> Any:
        """Wait for all ranks."""
        build = current()
        return self.__wrapped__.barrier(group=group, **kwargs) if build is None else build.barrier()

    def get_rank(self, group: Any = None) -> int:
        """This process's rank in the group."""
        build = current()
        return int(self.__wrapped__.get_rank(group)) if build is None else build.gathering.rank

    def get_world_size(self, group: Any = None) -> int:
        """Ranks in the group."""
        build = current()
        return int(self.__wrapped__.get_world_size(group)) if build is None else build.gathering.size
