"""One rank of the checks on real GPUs: faults after the vote, reservation, and what is left of a declined workspace.

usage: RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=... python two_gpus_faults.py nccl|gloo        (prints one line of JSON)
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from two_gpus_common import DEVICE, MIB, RANK, SHAPES, begin, create  # noqa: E402

import fi_shim  # noqa: E402
from fi_shim.patches.guarded_build import GuardedBuild  # noqa: E402
from fi_shim.seams import driver as seam  # noqa: E402

run = GuardedBuild._run
ballast: list[Any] = []


def attempt(before: Any = None) -> dict[str, Any]:
    """One creation, with `before` between vote and build, and what it left."""
    fi_shim.reset()
    gc.collect()
    torch.cuda.synchronize()
    free, files = torch.cuda.mem_get_info()[0], len(list(Path("/proc/self/fd").iterdir()))

    def struck(self: Any, *arguments: Any) -> Any:
        if before is not None:
            before()
        return run(self, *arguments)

    GuardedBuild._run = struck  # type: ignore[method-assign]
    dist.barrier()
    started = time.perf_counter()
    try:
        made = create(*SHAPES[0])
    except Exception as error:  # noqa: BLE001  # it is the result
        outcome, text = type(error).__name__, str(error).splitlines()[0]
        made = None
    else:
        outcome, text = "built", ""
    seconds = time.perf_counter() - started
    while ballast:
        seam.bindings().cuMemRelease(ballast.pop())
    if made is not None:
        made.destroy()
        references = getattr(sys.modules["flashinfer.comm.trtllm_ar"], "_symm_workspace_refs", None)
        if references is not None:
            references.clear()  # FlashInfer would keep the memory
    del made
    gc.collect()
    left = free - torch.cuda.mem_get_info()[0]
    return {"outcome": outcome, "text": text, "seconds": seconds, "left": left, "files": len(list(Path("/proc/self/fd").iterdir())) - files}


def grab() -> None:
    """Somebody takes all but 16 MiB of rank 1's device."""
    if RANK == 1:
        driver = seam.bindings()
        properties = seam.allocation_properties(driver, DEVICE, seam.handle_type(driver, "posix"))
        size = (torch.cuda.mem_get_info()[0] - 16 * MIB) // (2 * MIB) * (2 * MIB)
        ballast.append(seam.checked(driver, "cuMemCreate", size, properties, 0))


def failing(name: str) -> Any:
    """Let the next call of a driver function fail on rank 1, without being made."""

    def strike() -> None:
        if RANK != 1:
            return
        driver = sys.modules["cuda.bindings.driver"]
        original = getattr(driver, name)

        def fails(*_arguments: Any) -> Any:
            setattr(driver, name, original)
            return (driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None)

        setattr(driver, name, fails)

    return strike


def main() -> None:
    begin(sys.argv[1])
    result: dict[str, Any] = {"rank": RANK, "flashinfer": fi_shim.status()["flashinfer"], "torch": torch.__version__}
    result["first"] = attempt()  # contexts, lazy imports
    result["healthy"] = attempt()
    result["grabbed"] = attempt(grab)
    for name in ("cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemMap", "cuMemAlloc"):
        result[name] = attempt(failing(name))
    result["again"] = attempt()
    print(json.dumps(result), flush=True)
    dist.barrier()  # the store's host must not leave before its peers
    os._exit(0)


main()
