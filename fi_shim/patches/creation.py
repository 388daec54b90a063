"""Whoever builds a workspace, and however: all ranks vote before FlashInfer's code builds, and again when it has; all get one, or all raise."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from fi_shim.patches.declining import bare_decline, silence_destructor
from fi_shim.patches.definition import Patch
from fi_shim.patches.outside_graphs import outside_graphs
from fi_shim.patches.restoring import METHOD, restore_asked
from fi_shim.patches.transacting import transact

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from fi_shim.patches.asked import Kind
    from fi_shim.patches.definition import Context

LEGACY: Final = "trtllm_create_ipc_workspace_for_all_reduce_fusion"

_building = threading.local()
"""`yes` while FlashInfer's own code builds in this thread: its inner steps are not requests of their own."""


def make_guard(kind: Kind, original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    """FlashInfer's constructor or creator, behind the votes. Everything else is FlashInfer's."""
    switch, settings = context.record.switch, context.settings
    attempt = _ending(kind, lambda *args, **kwargs: transact(kind, original, args, kwargs, settings))

    @functools.wraps(original, updated=())
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not switch.on or getattr(_building, "yes", False):
            return original(*args, **kwargs)
        _building.yes = True
        try:
            return attempt(*args, **kwargs)
        finally:
            _building.yes = False

    return outside_graphs(guarded)


def _make_restore_guard(backend: str, original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    """`checkpoint_restore` behind the votes."""
    switch, settings = context.record.switch, context.settings

    def ask(workspace: Any, comm_backend: Any) -> tuple[Any, Exception | None]:
        known = restore_asked(backend, workspace, comm_backend)
        if known is not None:
            return transact("restore", original, (workspace, comm_backend), {}, settings, known)
        try:
            return original(workspace, comm_backend), None
        except Exception as error:  # noqa: BLE001  # FlashInfer's own; the caller gets it
            return None, error

    attempt = _ending("restore", ask)

    @functools.wraps(original, updated=())
    def guarded(self: Any, comm_backend: Any) -> Any:
        return (attempt if switch.on else original)(self, comm_backend)

    return outside_graphs(guarded)


def _ending(kind: Kind, attempt: Callable[..., tuple[Any, Exception | None]]) -> Callable[..., Any]:
    """A function that returns, or raises as it is, what `attempt` gives. What that raises itself is a fault of ours, and declines."""

    def end(*args: Any, **kwargs: Any) -> Any:
        built = None
        try:
            built, error = attempt(*args, **kwargs)
        except Exception as fault:  # noqa: BLE001  # the peers cannot know: building alone would hang
            error = bare_decline(kind, fault)
            with contextlib.suppress(Exception):  # noise only
                silence_destructor(kind, args)
        followed = error.__context__ if error is not None else None
        try:
            if error is not None:
                raise error
            return built
        finally:
            if error is not None:
                error.__context__ = followed  # FlashInfer's own, and not what the caller happens to handle
            del built, error, followed  # an exception must not keep this frame, which would keep it

    return end


def _apply_to_allreduce(module: ModuleType, context: Context) -> str:
    context.record.replace(module.TRTLLMAllReduceFusionWorkspace, "__init__", lambda original: make_guard("trtllm", original, context))
    _guard_restore("trtllm", module.TRTLLMAllReduceFusionWorkspace, context)
    _point_to_guard(module, context)
    return "entries found"


def _guard_restore(backend: str, workspace: type, context: Context) -> None:
    if METHOD in vars(workspace):
        context.record.replace(workspace, METHOD, lambda original: _make_restore_guard(backend, original, context))


def _apply_to_mnnvl(module: ModuleType, context: Context) -> str:
    context.record.replace(module.MNNVLAllReduceFusionWorkspace, "__init__", lambda original: make_guard("mnnvl", original, context))
    _guard_restore("mnnvl", module.MNNVLAllReduceFusionWorkspace, context)
    return "entries found"


def _apply_to_legacy(module: ModuleType, context: Context) -> str:
    context.record.replace(module, LEGACY, lambda original: make_guard("legacy", original, context))
    return "entries found"


def _point_to_guard(module: ModuleType, context: Context) -> str:
    """A module that imported the legacy creator, before we replaced it or after, shares its fate."""
    source = sys.modules.get("flashinfer.comm.trtllm_ar")
    if source is not None:
        context.record.follow(module, LEGACY, source)
    return "entries found"


PATCH: Final = Patch(
    name="creation",
    modules={
        "flashinfer.comm.trtllm_ar": _apply_to_legacy,
        "flashinfer.comm.trtllm_mnnvl_ar": _apply_to_mnnvl,
        "flashinfer.comm.allreduce": _apply_to_allreduce,
        "flashinfer.comm": _point_to_guard,
    },
    why="a rank that cannot allocate its workspace raises, and its peers wait in a collective until a watchdog kills the job, minutes later",
    how="all ranks probe and vote, FlashInfer's code builds over collectives that end when a rank fails, all vote again: all or none",
    upstream="flashinfer/comm/mnnvl.py; 0.7.4 tells peers of three kinds of failure",
    plan="stays: FlashInfer does not ask whether the whole group can",
    stays_when_disabled=True,
)
