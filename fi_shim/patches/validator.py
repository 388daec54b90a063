"""Reject shapes that cannot fit from cached limits: no log line, no exception, FlashInfer's validator not called."""

from __future__ import annotations

import contextlib
import functools
import operator
from typing import TYPE_CHECKING, Any, Final

from fi_shim.log import event
from fi_shim.patches.definition import Patch
from fi_shim.patches.outside_graphs import outside_graphs
from fi_shim.patches.validator_probe import recognise

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from fi_shim.patches.definition import Context
    from fi_shim.registry import Switch

LIMITS: Final = "_fi_shim_limits"
"""Key in a workspace's `__dict__`: (capacity in elements, fp32 mode, tp_size, metadata, max_token_num, hidden_dim)."""


class Rejections:
    """How many calls were rejected from cached limits in this process. Not counted inside a compiled region."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


REJECTIONS: Final = Rejections()


def _announce() -> None:
    event("info", "rejections_suppressed", note="shapes that cannot fit are rejected without a log line from here on; status() counts them")


def make_validator(original: Callable[..., bool], switch: Switch) -> Callable[..., bool]:
    """A plain function with the validator's own signature: torch.compile traces it, which it does not do with a wrapper object.

    It answers False only where FlashInfer's check is bound to answer False; everything else is FlashInfer's to answer. The order of
    the tests is that of their cost: an accepted call pays for one dictionary entry, one product and two comparisons. The metadata's
    values are looked at again before a rejection: somebody may have changed them in place.
    """
    from torch import dtype as dtype_type
    from torch import float32
    from torch.compiler import is_dynamo_compiling

    def is_buffer_size_sufficient(
        self: Any,
        tp_size: int,
        num_tokens: int,
        hidden_dim: int,
        dtype: Any,
        use_oneshot: Any = None,
    ) -> bool:
        try:
            own = self.__dict__
            limits = own["_fi_shim_limits"]
            if num_tokens * hidden_dim > limits[0] or (dtype is float32) is not limits[1]:
                _, is_fp32, ranks, metadata, max_token_num, max_hidden_dim = limits
                if (
                    tp_size == ranks
                    and type(num_tokens) is int
                    and type(hidden_dim) is int
                    and type(dtype) is dtype_type
                    and own["metadata"] is metadata
                    and metadata["max_token_num"] is max_token_num
                    and metadata["hidden_dim"] is max_hidden_dim
                    and metadata["use_fp32_lamport"] is is_fp32
                    and switch.on
                ):
                    # A counter that is read under tracing would recompile until the limit fails.
                    if not is_dynamo_compiling():
                        REJECTIONS.total += 1
                        if REJECTIONS.total == 1:
                            _announce()
                    return False
        except Exception:  # noqa: BLE001, S110  # no limits, or odd values: FlashInfer answers, or raises as it does
            pass
        return original(self, tp_size, num_tokens, hidden_dim, dtype, use_oneshot)

    return functools.wraps(original, updated=())(is_buffer_size_sufficient)


def remember_limits(workspace: Any) -> None:
    """Put a new workspace's limits into its `__dict__`, if its metadata is as FlashInfer writes it. Never raises."""
    own = vars(workspace)
    own.pop(LIMITS, None)
    try:
        metadata = own["metadata"]
        ranks, is_fp32 = metadata["tp_size"], metadata["use_fp32_lamport"]
        max_token_num, hidden_dim = metadata["max_token_num"], metadata["hidden_dim"]
        # The product as FlashInfer's check computes it: with numpy's integers it can overflow, and so must ours.
        capacity = operator.index(max_token_num * hidden_dim)
        if isinstance(is_fp32, bool) and type(metadata) is dict:
            own[LIMITS] = (capacity, is_fp32, operator.index(ranks), metadata, max_token_num, hidden_dim)
    except Exception as error:  # noqa: BLE001  # then every call goes to FlashInfer
        event("debug", "limits_unknown", error=repr(error))


def _make_init(original: Callable[..., None], switch: Switch) -> Callable[..., None]:
    @functools.wraps(original, updated=())
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        if switch.on:
            with contextlib.suppress(Exception):  # the workspace is built: whatever fails here, it stands
                remember_limits(self)

    return outside_graphs(__init__)


def _make_destroy(original: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(original, updated=())
    def destroy(self: Any) -> None:
        if LIMITS in self.__dict__:  # not `pop`: torch 2.9's Dynamo cannot trace it, and FlashInfer's own `destroy` can be traced
            delattr(self, LIMITS)
        original(self)

    return destroy


def _apply(module: ModuleType, context: Context) -> str:
    workspace = module.TRTLLMAllReduceFusionWorkspace
    recognised = recognise(module, workspace)
    replace = context.record.replace
    replace(workspace, "is_buffer_size_sufficient", lambda original: make_validator(original, context.record.switch))
    replace(workspace, "destroy", _make_destroy)
    replace(workspace, "__init__", lambda original: _make_init(original, context.record.switch))
    return recognised


PATCH: Final = Patch(
    name="validator",
    modules={"flashinfer.comm.allreduce": _apply},
    why="TRTLLMAllReduceFusionWorkspace.is_buffer_size_sufficient logs two lines (prints them before 0.6.6) for each shape that does not "
    "fit, although the engine falls back as planned: 28,032 warnings in one start",
    how="limits cached at construction prove most rejections; all other calls reach FlashInfer's validator",
    upstream="flashinfer/comm/allreduce.py, unchanged in 0.6.0 .. 0.7.4",
    plan="drop once FlashInfer answers without logging",
)
