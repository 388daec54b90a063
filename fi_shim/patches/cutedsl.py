"""Before the CuTe DSL workspace is built: FlashInfer's own checks, asked on all ranks; all build, or all raise the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fi_shim.patches.creation import make_guard
from fi_shim.patches.definition import Patch
from fi_shim.registry import NotNeededError

if TYPE_CHECKING:
    from types import ModuleType

    from fi_shim.patches.definition import Context


def _apply(module: ModuleType, context: Context) -> str:
    from flashinfer.comm import allreduce

    if not hasattr(allreduce, "is_mnnvl_cutedsl_supported"):
        raise NotNeededError("this FlashInfer has no is_mnnvl_cutedsl_supported to ask: its CuTe DSL workspace is left alone")
    workspace = module.MNNVLCuteDSLAllReduceFusionWorkspace
    context.record.replace(workspace, "__init__", lambda original: make_guard("cutedsl", original, context))
    return "FlashInfer's own checks are asked on all ranks; memory, the rendezvous and the kernels' compilation are not"


PATCH: Final = Patch(
    name="cutedsl",
    modules={"flashinfer.comm.mnnvl_cutedsl_ar": _apply},
    why="its constructor checks arguments and device on each rank by itself, and is collective from then on: a rank that is refused leaves "
    "its peers waiting",
    how="all ranks vote on what they ask for and on what is_mnnvl_cutedsl_supported says; any no, and all raise WorkspaceDeclined",
    upstream="flashinfer/comm/mnnvl_cutedsl_ar.py, 0.7.2.post1 on",
    plan="stays: FlashInfer leaves it to its callers to combine the ranks' answers",
    stays_when_disabled=True,
    optional="FlashInfer's CuTe DSL workspace",
)
