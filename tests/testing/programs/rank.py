"""One rank of a group that makes and destroys FlashInfer workspaces: rank.py RANK WORLD_SIZE STORE REQUESTS.

REQUESTS is a list in JSON of [backend, tokens, hidden, dtype, cure]. One line of JSON a request: what was taken before, during and
after, per device, and what this process still holds. Ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
from typing import Any

rank, world_size, store, requests = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
os.environ["RANK"] = str(rank)

from fi_shim import testing  # noqa: E402  (the rank comes first)
from fi_shim.testing import simulation  # noqa: E402

simulation.activate(os.environ)

import torch  # noqa: E402
from torch import distributed  # noqa: E402

with contextlib.redirect_stdout(sys.stderr):
    import flashinfer.comm


def make(backend: str, tokens: int, hidden: int, dtype: str) -> Any:
    with contextlib.redirect_stdout(sys.stderr):  # early releases print
        return flashinfer.comm.create_allreduce_fusion_workspace(
            backend=backend,
            world_size=world_size,
            rank=rank,
            max_token_num=tokens,
            hidden_dim=hidden,
            dtype=getattr(torch, dtype),
            comm_backend=flashinfer.comm.mnnvl.TorchDistBackend(),
        )


def taken() -> dict[str, int]:
    distributed.barrier()
    bytes_of_devices = testing.outstanding().bytes
    distributed.barrier()
    return {str(device): size for device, size in bytes_of_devices.items()}


def cycle(backend: str, tokens: int, hidden: int, dtype: str, cure: str) -> dict[str, Any]:
    before = taken()
    workspace = make(backend, tokens, hidden, dtype)
    during = taken()
    workspace.destroy()
    del workspace
    if cure == "references":
        importlib.import_module("flashinfer.comm.trtllm_ar")._symm_workspace_refs.clear()
    gc.collect()
    if cure == "descriptors":
        for descriptor in testing.outstanding().processes[0].descriptors:
            os.close(descriptor)
    after, held = taken(), testing.outstanding().processes[0]
    left = {"handles": held.handles, "mappings": held.mappings, "descriptors": len(held.descriptors), "linear": len(held.linear)}
    return {"before": before, "during": during, "after": after, "reservations": len(held.reservations), **left}


distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
torch.cuda.set_device(rank)
for request in requests:
    try:
        result = cycle(*request)
    except RuntimeError as error:
        result = {"error": str(error)}
    print(json.dumps(result), flush=True)
    if "error" in result:
        break
sys.stdin.readline()
os._exit(0)  # a peer may be stuck in a collective
