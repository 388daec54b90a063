"""What is left of a build that did not succeed, taken apart: also while somebody keeps the exception, and without a destructor's complaint."""

from __future__ import annotations

import contextlib
import gc
import sys
import traceback
from typing import TYPE_CHECKING, Any

from fi_shim import log
from fi_shim.seams import driver as seam

if TYPE_CHECKING:
    from fi_shim.seams.building import Building


def undo(build: Building, kind: str, workspace: Any, error: BaseException | None) -> None:
    """Give back all that this rank has taken.

    Args:
        build: with its journal.
        kind: "trtllm", "mnnvl", "cutedsl", "legacy", or "restore": then the workspace stays, without memory behind its addresses.
        workspace: the object that was built or begun, what the legacy creator returned, or None.
        error: what FlashInfer raised; its frames are emptied.
    """
    _empty_frames(error)
    for memory in build.memories:
        _detach(memory) if kind == "restore" else _disarm(memory)
    if kind != "restore":
        _forget_references(build, workspace if kind == "legacy" else getattr(workspace, "__dict__", {}).get("ipc_handles"))
    build.memories.clear()
    if kind in {"trtllm", "mnnvl", "cutedsl"}:
        vars(workspace).clear()
        workspace._destroyed = True  # noqa: SLF001  # or its destructor complains
    del workspace
    if any(reference() is not None for reference in build.tensors):
        gc.collect()  # torch's own memory goes with its tensors
    with contextlib.suppress(Exception):
        seam.bindings().cuCtxSynchronize()
    for failure in build.journal.undo():
        log.event("warning", "not_given_back", what=failure)


def _empty_frames(error: BaseException | None) -> None:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        with contextlib.suppress(Exception):  # a generator that is running keeps its own
            traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _disarm(memory: Any) -> None:
    """Leave nothing that a SymmDeviceMemory's destructor would free: the journal does."""
    vars(memory).clear()
    vars(memory).update(signal_pads_dev=0, uc_ptrs_dev=0, uc_handles=[], mc_handle=0, mc_ptr=0, _exchanger=_Closed())


def _detach(memory: Any) -> None:
    """As after checkpoint_prepare: the addresses are kept, nothing is behind them."""
    memory.uc_handles = [0] * memory.group_size
    memory.mc_handle = 0
    memory._exchanger = None  # noqa: SLF001  # FlashInfer's own state
    memory._mapped = False  # noqa: SLF001


class _Closed:
    """Stands for an exchanger that has nothing to close."""

    handle_type = None

    def close(self) -> None:
        """Nothing."""


def _forget_references(build: Building, ipc_handles: Any) -> None:
    """Take what this build made out of the dictionary in which FlashInfer keeps memory alive."""
    references = getattr(sys.modules.get("flashinfer.comm.trtllm_ar"), "_symm_workspace_refs", None)
    if not references:
        return
    made = {id(memory) for memory in build.memories} | {id(tensor()) for tensor in build.tensors}
    for key, kept in list(references.items()):
        if key == id(ipc_handles) or any(id(one[0] if isinstance(one, tuple) else one) in made for one in kept):
            references.pop(key, None)
