"""Up to SGLang 0.5.20 a workspace is declined before the first forward or not at all."""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from fi_shim.engines.version import imported_version, is_within
from fi_shim.patches.definition import Patch
from fi_shim.registry import APPLIED, DISPLACED, REGISTRY, NotNeededError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from fi_shim.patches.definition import Context

MODULE: Final = "sglang.srt.layers.flashinfer_comm_fusion"
PRE_INITIALISES: Final = "pre_initialize_workspaces"
ENSURES: Final = "ensure_workspace_initialized"
NAME: Final = "sglang_forward"
SWALLOWS_SINCE, PRE_INITIALISES_SINCE, SAFE_SINCE = (
    "0.5.10",
    "0.5.11",
    "0.5.21",
)  # 0.5.9 lets a decline end the forward pass, as it does with FlashInfer's own errors


class _Where(threading.local):
    """How deep this thread is in SGLang's two functions."""

    pre_initialising = 0
    ensuring = 0


_WHERE: Final = _Where()


def where_declined(version: str) -> str:
    """Where this SGLang's workspaces are declined, if not wherever they are asked for; otherwise an empty text."""
    if is_within(version, SWALLOWS_SINCE, PRE_INITIALISES_SINCE):
        return f"SGLang {version} builds its workspaces in forward only: they are never declined"
    if is_within(version, PRE_INITIALISES_SINCE, SAFE_SINCE):
        return f"SGLang {version}: a workspace is declined at pre-initialisation or not at all"
    return ""


def no_decline_here() -> str:
    """Why a workspace that is asked for now, in this thread, must not be declined; or an empty text."""
    if MODULE not in sys.modules:
        return ""
    version = imported_version("sglang")
    if not is_within(version, SWALLOWS_SINCE, SAFE_SINCE):
        return ""
    record = REGISTRY.records.get(NAME)
    state = record.state if record is not None else "not there"
    if state not in {APPLIED, DISPLACED}:
        return f"SGLang {version} skips the all-reduce where a workspace is declined in forward, and {NAME} is {state}"
    if _WHERE.ensuring and not _WHERE.pre_initialising:
        return f"SGLang {version} skips the all-reduce where a workspace is declined in forward (fixed in {SAFE_SINCE})"
    return ""


def _make_marker(original: Callable[..., Any], mark: str) -> Callable[..., Any]:
    @functools.wraps(original, updated=())
    def marked(*args: Any, **kwargs: Any) -> Any:
        setattr(_WHERE, mark, getattr(_WHERE, mark) + 1)
        try:
            return original(*args, **kwargs)
        finally:
            setattr(_WHERE, mark, getattr(_WHERE, mark) - 1)

    return marked


def _apply(module: ModuleType, context: Context) -> str:
    version = imported_version("sglang")
    where = where_declined(version)
    if not where:
        raise NotNeededError(f"SGLang {version} stands a decline in forward")
    context.record.replace(module, ENSURES, functools.partial(_make_marker, mark="ensuring"))
    if hasattr(module, PRE_INITIALISES):
        context.record.replace(module, PRE_INITIALISES, functools.partial(_make_marker, mark="pre_initialising"))
    return where


PATCH: Final = Patch(
    name=NAME,
    modules={MODULE: _apply},
    why="where SGLang's fused op finds no workspace in forward, the norm runs without any all-reduce: silently wrong results",
    how="SGLang's two functions tell where they are; in forward FlashInfer builds as without the shim, and SGLang's own preflight stays in force",
    upstream="sglang/srt/layers/layernorm.py, fixed in 0.5.21",
    plan="drop with the last SGLang before 0.5.21",
    optional="SGLang",
)
