"""FlashInfer's CuTe DSL workspace, which engines construct directly: all ranks build it under guard, or all raise the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fi_shim.patches.creation import make_guard
from fi_shim.patches.definition import Patch

if TYPE_CHECKING:
    from types import ModuleType

    from fi_shim.patches.definition import Context


def _apply(module: ModuleType, context: Context) -> str:
    workspace = module.MNNVLCuteDSLAllReduceFusionWorkspace
    context.record.replace(workspace, "__init__", lambda original: make_guard("cutedsl", original, context))
    return "constructor found; its memory is not probed"


PATCH: Final = Patch(
    name="cutedsl",
    modules={"flashinfer.comm.mnnvl_cutedsl_ar": _apply},
    why="its constructor checks arguments and device on each rank by itself, compiles, allocates and meets its peers: a rank that fails "
    "leaves them waiting",
    how="all ranks vote on what they ask for, then build under guard: one rank's failure ends every wait, and all raise WorkspaceDeclined",
    upstream="flashinfer/comm/mnnvl_cutedsl_ar.py, 0.6.18 on; 0.7.2.post1 has is_mnnvl_cutedsl_supported, for one rank",
    plan="stays: FlashInfer leaves it to its callers to combine the ranks' answers",
    stays_when_disabled=True,
    optional="FlashInfer's CuTe DSL workspace",
)
