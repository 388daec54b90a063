"""Each patched callable, called inside torch.compile, with fullgraph=True and with graph breaks allowed; also with FI_SHIM=0, to compare.

The last line is a JSON object: for each callable its `outcome`, and the graphs that Dynamo made of 6 calls.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

warnings.simplefilter("ignore")

from fi_shim import testing  # noqa: E402
from fi_shim.testing import simulation  # noqa: E402

simulation.activate(os.environ)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import fi_shim  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

REPEATS = 6
FITS, TOO_MANY_TOKENS = 16, 3 << 18  # of 1,024 elements, on a device of 4 GiB
HIDDEN = 1024


def entries(backend: Any, group: Any, mapping: Any) -> dict[str, Callable[[int], Any]]:
    """Every way to build a workspace, by the name of the callable that is patched."""
    from flashinfer import comm
    from flashinfer.comm import allreduce, trtllm_ar, trtllm_mnnvl_ar

    legacy = "trtllm_create_ipc_workspace_for_all_reduce_fusion"
    takes_symmetric = "use_symm_dev_mem" in trtllm_ar.trtllm_create_ipc_workspace_for_all_reduce_fusion.__wrapped__.__annotations__
    options = {"comm_backend": backend, "use_symm_dev_mem": True} if takes_symmetric else {}
    takes_group = "group" in allreduce.TRTLLMAllReduceFusionWorkspace.__init__.__annotations__
    with_group = {"group": group} if takes_group else {}

    def creator(module: Any) -> Callable[[int], Any]:
        return lambda tokens: getattr(module, legacy)(0, 1, tokens, HIDDEN, group=group, create_metadata=True, **options)

    return {
        "TRTLLMAllReduceFusionWorkspace.__init__": lambda tokens: allreduce.TRTLLMAllReduceFusionWorkspace(
            1, 0, tokens, HIDDEN, torch.bfloat16, backend, **with_group
        ),
        "MNNVLAllReduceFusionWorkspace.__init__": lambda tokens: trtllm_mnnvl_ar.MNNVLAllReduceFusionWorkspace(
            mapping, tokens, HIDDEN, torch.bfloat16, comm_backend=backend
        ),
        f"flashinfer.comm.trtllm_ar.{legacy}": creator(trtllm_ar),
        f"flashinfer.comm.allreduce.{legacy}": creator(allreduce),
        f"flashinfer.comm.{legacy}": creator(comm),
    }


def compiled(step: Callable[..., Any], *, fullgraph: bool) -> tuple[Callable[..., Any], Any]:
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    return torch.compile(step, backend=counter, fullgraph=fullgraph), counter


def building(build: Callable[[int], Any], *, fullgraph: bool) -> dict[str, Any]:
    def step(x: Any, tokens: int) -> Any:
        workspace = build(tokens)
        return x + 1, workspace

    call, counter = compiled(step, fullgraph=fullgraph)
    x = torch.ones(2)
    try:
        for _ in range(REPEATS):
            _, workspace = call(x, FITS)
            has_limits = "_fi_shim_limits" in getattr(workspace, "__dict__", {})
            if hasattr(workspace, "destroy"):
                workspace.destroy()
            del workspace
    except Exception as error:  # noqa: BLE001
        return {"outcome": type(error).__name__, "explained": "built outside of compiled regions" in str(error)}
    seen = {"outcome": "built", "graphs": counter.frame_count, "has_limits": has_limits}
    try:
        call(x, TOO_MANY_TOKENS)
    except Exception as error:  # noqa: BLE001
        seen["too_large"] = type(error).__name__
    return seen


def destroying(build: Callable[[int], Any], *, fullgraph: bool) -> dict[str, Any]:
    def step(x: Any, workspace: Any) -> Any:
        workspace.destroy()
        return x + 1

    call, counter = compiled(step, fullgraph=fullgraph)
    left = []
    for _ in range(REPEATS):
        workspace = build(FITS)
        call(torch.ones(2), workspace)
        left += [name for name in ("_fi_shim_limits", "metadata") if name in vars(workspace)]
    return {"outcome": "destroyed", "graphs": counter.frame_count, "left": left}


def asking(build: Callable[[int], Any], *, fullgraph: bool) -> dict[str, Any]:
    workspace = build(FITS)

    def step(x: Any, tokens: int) -> Any:
        return x + 1 if workspace.is_buffer_size_sufficient(1, tokens, HIDDEN, torch.bfloat16) else x - 1

    call, counter = compiled(step, fullgraph=fullgraph)
    try:
        answers = [float(call(torch.ones(2), tokens)[0]) for tokens in range(FITS + 1, FITS + 1 + REPEATS)]
    except Exception as error:  # noqa: BLE001
        return {"outcome": type(error).__name__}
    finally:
        workspace.destroy()
    return {"outcome": sorted(set(answers)), "graphs": counter.frame_count}


def restoring(build: Callable[[int], Any], backend: Any, *, fullgraph: bool) -> dict[str, Any]:
    """The vote on a restore of one rank asks the driver for its memory, which FlashInfer's own code does not do beforehand."""

    def step(x: Any, workspace: Any) -> Any:
        workspace.checkpoint_restore(backend)
        return x + 1

    call, counter = compiled(step, fullgraph=fullgraph)
    workspace = build(FITS)
    try:
        for _ in range(REPEATS):
            workspace.checkpoint_prepare()
            before = testing.calls()["cuMemCreate"]
            call(torch.ones(2), workspace)
            created = testing.calls()["cuMemCreate"] - before
    except Exception as error:  # noqa: BLE001
        return {"outcome": type(error).__name__, "explained": "built outside of compiled regions" in str(error)}
    finally:
        workspace.destroy()
    return {"outcome": "restored", "graphs": counter.frame_count, "created": created}


def main() -> None:
    torch.cuda.set_device(0)
    torch.accelerator.is_available = lambda: False  # a torch with CUDA would ask the real runtime for its stream
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        import flashinfer.comm  # noqa: F401
        from flashinfer.comm.mapping import Mapping
        from flashinfer.comm.mnnvl import TorchDistBackend

        every = entries(TorchDistBackend(), dist.group.WORLD, Mapping(world_size=1, rank=0, tp_size=1, gpus_per_node=1))
        workspace_class = "TRTLLMAllReduceFusionWorkspace"
        build = every[f"{workspace_class}.__init__"]
        seen: dict[str, Any] = {}
        for key, fullgraph in (("fullgraph", True), ("breaks", False)):
            seen[key] = {name: building(entry, fullgraph=fullgraph) for name, entry in every.items()}
            for owner in (workspace_class, "MNNVLAllReduceFusionWorkspace"):
                name = f"{owner}.checkpoint_restore"
                seen[key][name] = restoring(every[f"{owner}.__init__"], TorchDistBackend(), fullgraph=fullgraph)
            seen[key][f"{workspace_class}.destroy"] = destroying(build, fullgraph=fullgraph)
            seen[key][f"{workspace_class}.is_buffer_size_sufficient"] = asking(build, fullgraph=fullgraph)
        seen["targets"] = [target for patch in fi_shim.status()["patches"].values() for target in patch["targets"]]
        seen["torch"] = torch.__version__
        print(json.dumps(seen))
        dist.destroy_process_group()


main()
