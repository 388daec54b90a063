"""SGLang's request for an fp32 workspace, in words that FlashInfer's factory understands."""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import TYPE_CHECKING, Any, Final

from fi_shim.engines.version import imported_version
from fi_shim.patches.definition import Patch
from fi_shim.registry import NotNeededError, UnknownCodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from fi_shim.patches.definition import Context
    from fi_shim.registry import Switch

FACTORY: Final = "_create_allreduce_fusion_workspace"
KEYWORD: Final = "use_fp32_lamport"
FP32_BYTES: Final = 4
MOST_TIMES: Final = 4  # two ranks need twice the tokens; more than this is another release's arithmetic


def _make_factory(original: Callable[..., Any], switch: Switch) -> Callable[..., Any]:
    @functools.wraps(original, updated=())
    def create(*args: Any, **kwargs: Any) -> Any:
        if switch.on and kwargs.get(KEYWORD) is True:
            with contextlib.suppress(Exception):  # then FlashInfer refuses the keyword on all ranks, as without the shim
                kwargs = _as_flashinfer_says_it(kwargs)
        return original(*args, **kwargs)

    return create


def _as_flashinfer_says_it(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Without the keyword: FlashInfer goes by the dtype. Enough tokens for the two-shot kernel's first buffer.

    That kernel writes two fp32 values for each element of the tensor; up to FlashInfer 0.7.1 the buffer is sized for two bytes an element
    and rank, which is too little on two and three ranks. Results are then wrong, without an error.
    """
    from torch import float32

    if asked.get("dtype") is not float32:
        raise ValueError(f"{KEYWORD} with {asked.get('dtype')}")
    translated = {name: value for name, value in asked.items() if name != KEYWORD}
    if translated["backend"] == "trtllm":
        translated["max_token_num"] *= _times(translated)
    return translated


def _times(asked: Mapping[str, Any]) -> int:
    from fi_shim.workspace.planning import plan

    shape = {name: asked[name] for name in ("world_size", "max_token_num", "hidden_dim", "dtype")}
    first = next(allocation for allocation in plan(backend="trtllm", **shape).allocations if allocation.purpose == "buffer")
    written = 2 * asked["max_token_num"] * asked["hidden_dim"] * FP32_BYTES
    times = -(-int(written) // first.requested)
    if times > MOST_TIMES:
        raise ValueError(f"a first buffer of {first.requested} bytes, {written} are written")
    return times


def _apply(module: ModuleType, context: Context) -> str:
    version, factory = imported_version("sglang"), getattr(module, FACTORY, None)
    if factory is None:
        raise NotNeededError(f"SGLang {version} does not ask for {KEYWORD}")
    asks = inspect.unwrap(module.FlashInferWorkspaceManager.initialize).__code__
    if KEYWORD not in asks.co_varnames:
        raise NotNeededError(f"SGLang {version} does not ask for {KEYWORD}")
    parameters = inspect.signature(factory).parameters
    if KEYWORD in parameters:
        raise NotNeededError(f"FlashInfer's factory understands {KEYWORD}")
    if not {"backend", "dtype", "max_token_num"} <= set(parameters):
        raise UnknownCodeError(f"FlashInfer's factory has the signature {inspect.signature(factory)}")
    context.record.replace(module, FACTORY, lambda original: _make_factory(original, context.record.switch))
    return f"SGLang {version}: {KEYWORD} is left out"


PATCH: Final = Patch(
    name="sglang_fp32",
    modules={"sglang.srt.layers.flashinfer_comm_fusion": _apply},
    why="for fp32 inputs SGLang passes a keyword that FlashInfer's factory does not have: TypeError on all ranks, the bf16 workspace is gone "
    "by then, and fusion is off for good",
    how="the keyword is left out, since FlashInfer goes by the dtype; up to FlashInfer 0.7.1 two or three ranks get more tokens, because the "
    "two-shot kernel would write beyond its buffer",
    upstream="sglang/srt/layers/flashinfer_comm_fusion.py, 0.5.14 .. 0.5.23",
    plan="drop once SGLang does not pass the keyword",
    optional="SGLang",
)
