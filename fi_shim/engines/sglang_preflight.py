"""SGLang's own preflight answers yes where fi_shim is going to ask better; its collective is held all the same."""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any, Final

from fi_shim.engines.in_force import preflight_not_in_force
from fi_shim.engines.version import imported_version
from fi_shim.log import event
from fi_shim.patches.definition import Patch
from fi_shim.patches.known_code import changed_functions
from fi_shim.registry import NotNeededError, UnknownCodeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from fi_shim.patches.definition import Context
    from fi_shim.registry import Switch

PREFLIGHT: Final = "_preflight_check_workspace_memory"
LOCAL_ANSWERS: Final = {
    "_make_flashinfer_workspace_allocation_prop": None,
    "_flashinfer_trtllm_workspace_allocation_sizes": (),
    "_probe_cumem_create_sequence": True,
}
"""The steps by which SGLang finds its local answer -> what they say where it steps aside: nothing to allocate, so all is well."""


class _Aside(threading.local):
    """Whether SGLang's preflight, which runs in this thread, steps aside."""

    yes = False


_ASIDE: Final = _Aside()


def _make_preflight(original: Callable[..., bool], switch: Switch) -> Callable[..., bool]:
    """SGLang's function with the decision made beforehand, once for all its steps.

    Its all-reduce is never skipped: a rank without the shim, or one that decides otherwise, takes part in it.
    """

    @functools.wraps(original, updated=())
    def preflight(world_size: int, max_token_num: int, hidden_dim: int, dtype: Any, cpu_group: Any = None) -> bool:
        before = _ASIDE.yes
        with contextlib.suppress(Exception):  # then SGLang asks as ever: the other ranks are in its all-reduce
            _ASIDE.yes = switch.on and _steps_aside()
        try:
            return original(world_size, max_token_num, hidden_dim, dtype, cpu_group)
        finally:
            _ASIDE.yes = before

    return preflight


def _steps_aside() -> bool:
    try:
        reason = preflight_not_in_force()
    except Exception as error:  # noqa: BLE001  # nothing is known of this FlashInfer
        reason = repr(error)
    event("debug", "engine_preflight", engine="sglang", steps_aside=not reason, reason=reason or "fi_shim asks")
    return not reason


def _make_step(original: Callable[..., Any], answer: Any) -> Callable[..., Any]:
    @functools.wraps(original, updated=())
    def step(*args: Any, **kwargs: Any) -> Any:
        return answer if _ASIDE.yes else original(*args, **kwargs)

    return step


def _apply(module: ModuleType, context: Context) -> str:
    version = imported_version("sglang")
    if not hasattr(module, PREFLIGHT):
        raise NotNeededError(f"SGLang {version} has no preflight of its own")
    changed = changed_functions("sglang_preflight", {name: getattr(module, name, None) for name in (PREFLIGHT, *LOCAL_ANSWERS)})
    if changed:
        raise UnknownCodeError(f"SGLang {version}: {', '.join(changed)} changed; SGLang's own preflight stays in force")
    context.record.replace(module, PREFLIGHT, lambda original: _make_preflight(original, context.record.switch))
    for name, answer in LOCAL_ANSWERS.items():
        context.record.replace(module, name, functools.partial(_make_step, answer=answer))
    return f"SGLang {version}: its preflight steps aside where fi_shim's is in force"


PATCH: Final = Patch(
    name="sglang_preflight",
    modules={"sglang.srt.layers.flashinfer_comm_fusion": _apply},
    why="SGLang's preflight asks for what FlashInfer 0.6.0 .. 0.6.9 allocated (1.6 GB where 0.14 GB are needed), for fabric handles that 0.7.4 "
    "can do without, for a multicast granularity that GPUs without NVSwitch cannot give, and for trtllm's sizes where mnnvl is built",
    how="where fi_shim is going to probe and vote, this rank's local answer is yes; SGLang's all-reduce of the answers stays",
    upstream="sglang/srt/layers/flashinfer_comm_fusion.py, 0.5.11 .. 0.5.23",
    plan="drop once SGLang sizes by the FlashInfer that is installed",
    optional="SGLang",
)
