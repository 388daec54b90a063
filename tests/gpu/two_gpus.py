"""One rank of the checks on real GPUs: what a workspace takes, the vote over NCCL's store, a decline under real shortage.

usage: RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=... python two_gpus.py nccl|gloo        (prints one line of JSON)
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import warnings
from typing import Any

warnings.simplefilter("ignore")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from flashinfer.comm.mnnvl import cuda  # noqa: E402
from two_gpus_common import MIB, RANK, SHAPES, WORLD_SIZE, begin, create  # noqa: E402

import fi_shim  # noqa: E402


def taken(tokens: int, hidden: int, dtype: Any) -> dict[str, Any]:
    """Bytes that the device gave up for a workspace, and what the plan says."""
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    started = time.perf_counter()
    workspace = create(tokens, hidden, dtype)
    seconds = time.perf_counter() - started
    after = torch.cuda.mem_get_info()[0]
    planned = fi_shim.plan(world_size=WORLD_SIZE, max_token_num=tokens, hidden_dim=hidden, dtype=dtype)
    workspace.destroy()
    del workspace
    gc.collect()
    return {"shape": [tokens, hidden, str(dtype)], "planned": planned.total_bytes, "taken": before - after, "seconds": seconds}


def declined() -> dict[str, Any]:
    """Rank 1 has 64 MiB left."""
    ballast = torch.empty(torch.cuda.mem_get_info()[0] - 64 * MIB, dtype=torch.uint8, device="cuda") if RANK == 1 else None
    dist.barrier()
    started = time.perf_counter()
    try:
        create(*SHAPES[1])
    except Exception as error:  # noqa: BLE001
        outcome = type(error).__name__, str(error).splitlines()[0]
    else:
        outcome = "built", ""
    seconds = time.perf_counter() - started
    del ballast
    torch.cuda.empty_cache()
    return {"outcome": outcome[0], "text": outcome[1], "seconds": seconds}


def cached_memory_is_given_back() -> str:
    """Torch holds nearly all memory, unused: the probe gives it back and the workspace is built."""
    free = torch.cuda.mem_get_info()[0]
    block = torch.empty(free - 64 * MIB, dtype=torch.uint8, device="cuda") if RANK == 0 else None
    del block  # stays in torch's cache
    dist.barrier()
    create(*SHAPES[0]).destroy()
    return "built"


def granularities() -> dict[str, int]:
    """Recommended multicast granularity in MiB for sizes in MiB."""
    from fi_shim.seams import driver as seam

    posix = seam.handle_type(cuda, "posix")
    return {
        str(size): seam.multicast_granularity(cuda, WORLD_SIZE, size * MIB, posix) // MIB
        for size in (2, 4, 8, 34, 100, 510, 512, 514, 1024, 3000)
    }


def main() -> None:
    begin(sys.argv[1])
    result: dict[str, Any] = {"rank": RANK, "flashinfer": fi_shim.status()["flashinfer"], "backend": sys.argv[1]}
    result["first"] = taken(*SHAPES[0])  # contexts, lazy imports
    result["taken"] = [taken(*shape) for shape in SHAPES]
    result["cached"] = cached_memory_is_given_back()
    result["declined"] = declined()
    result["patches"] = {name: patch["state"] for name, patch in fi_shim.status()["patches"].items()}
    result["multicast_granularity_by_mib"] = granularities()
    print(json.dumps(result), flush=True)
    dist.barrier()  # the store's host must not leave before its peers
    os._exit(0)  # what FlashInfer leaks must not delay the exit


main()
