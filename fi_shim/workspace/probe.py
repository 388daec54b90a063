"""Can this rank allocate it now? The exact sequence of a plan is created and released."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fi_shim.seams import devices
from fi_shim.seams import driver as seam
from fi_shim.seams.reserve import Reserve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fi_shim.workspace.handles import HandleType
    from fi_shim.workspace.sizes import AllocationPlan
    from fi_shim.workspace.vote import Vote

OUT_OF_MEMORY: Final = "CUDA_ERROR_OUT_OF_MEMORY"


@dataclass(frozen=True)
class Finding:
    """What a probe found. Sizes in bytes; `free` counts what torch could give back."""

    vote: Vote
    needed: int
    free: int
    reason: str = ""
    reserve: Reserve | None = None
    """The memory itself, where it was to be kept and FlashInfer can be served with it."""


def probe(plan: AllocationPlan, device: int, handle_type: HandleType | None, *, may_fall_back: bool = False, keep: bool = False) -> Finding:
    """Try the plan on `device` with the handle type that FlashInfer is going to ask for.

    Args:
        plan: what is going to be allocated.
        device: CUDA device number.
        handle_type: None where the memory is not shared through driver handles of FlashInfer's own.
        may_fall_back: whether the release repeats a refused fabric handle with a posix one before it gives up.
        keep: do not release what could be created; the caller has to.

    Returns:
        A finding that votes yes or no. No means: FlashInfer's own allocation would fail here.

    Raises:
        Exception: the probe could not be run, which is not the same as short of memory; the caller abstains.
    """
    needed, sizes = plan.total_bytes, [allocation.allocated for allocation in plan.allocations]
    free, cached = devices.free_bytes(device), devices.cached_bytes(device)
    if needed > free + cached:
        return Finding("no", needed, free + cached, "not enough free memory")
    allocator = plan.allocations[0].allocator
    reserve = Reserve(seam.bindings()) if keep and allocator == "cuMemCreate" else None
    failure = _attempt(allocator, device, handle_type, sizes, cached=cached, reserve=reserve)
    if failure is not None and failure.code != OUT_OF_MEMORY and may_fall_back:
        failure = _attempt(allocator, device, "posix", sizes, cached=cached, reserve=reserve)
    if failure is None:
        return Finding("yes", needed, free + cached, reserve=reserve)
    if allocator == "symm_mem" and failure.code != OUT_OF_MEMORY:
        raise failure  # torch may well ask for other properties than ours
    return Finding("no", needed, free + cached, str(failure))


def _attempt(
    allocator: str, device: int, handle_type: HandleType | None, sizes: Sequence[int], *, cached: int, reserve: Reserve | None
) -> seam.DriverError | None:
    """None if all sizes could be had at the same time, once more without torch's cache if need be; else the first failure."""
    driver = seam.bindings()
    create: Callable[[int], Any]
    keep: Callable[[int, Any], None] | None = None
    if allocator == "cudaMalloc":
        create, release = functools.partial(seam.checked, driver, "cuMemAlloc"), "cuMemFree"
    else:
        properties = seam.allocation_properties(driver, device, seam.handle_type(driver, handle_type or "posix"))
        create, release = lambda size: seam.checked(driver, "cuMemCreate", size, properties, 0), "cuMemRelease"
        if reserve is not None:
            keep = functools.partial(_keep, reserve, properties)
    failure = _try(driver, sizes, create, release, keep)
    if failure is not None and failure.code == OUT_OF_MEMORY and cached and not devices.is_capturing():
        devices.drop_cache()
        failure = _try(driver, sizes, create, release, keep)
    return failure


def _try(
    driver: Any, sizes: Sequence[int], create: Callable[[int], Any], release: str, keep: Callable[[int, Any], None] | None
) -> seam.DriverError | None:
    held: list[Any] = []
    try:
        held.extend(create(size) for size in sizes)
        while keep is not None and held:
            keep(sizes[len(held) - 1], held.pop())
    except seam.DriverError as error:
        return error
    finally:
        for handle in reversed(held):
            getattr(driver, release)(handle)
    return None


def _keep(reserve: Reserve, properties: Any, size: int, handle: Any) -> None:
    reserve.keep(size, properties, handle)
