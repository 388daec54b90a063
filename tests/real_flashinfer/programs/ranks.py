"""Fork the ranks of one group on simulated devices; all build the same workspaces, and say what they know.

usage: ranks.py WORLD_SIZE REQUESTS      REQUESTS: JSON, a list of [backend, tokens, hidden, dtype]

The last line is a list by rank: for each request the outcome and the bytes that this rank's device gave up, then status()'s drift.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from fi_shim.testing import simulation

simulation.activate(os.environ)

import fi_shim  # noqa: E402  (the devices come first)
from fi_shim import testing  # noqa: E402


def build(dist: Any, rank: int, world_size: int, request: list[Any]) -> dict[str, Any]:
    import torch
    from flashinfer.comm import create_allreduce_fusion_workspace as create
    from flashinfer.comm.mnnvl import TorchDistBackend

    backend, tokens, hidden, dtype = request
    options: dict[str, Any] = {"backend": backend, "world_size": world_size, "rank": rank, "max_token_num": tokens, "hidden_dim": hidden}
    options |= {"dtype": getattr(torch, dtype), "comm_backend": TorchDistBackend()}
    if "group" in inspect.signature(create).parameters:
        options["group"] = dist.group.WORLD
    dist.barrier()
    before = testing.outstanding().bytes.get(rank, 0)
    dist.barrier()
    try:
        workspace = create(**options)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is told
        dist.barrier()
        return {"outcome": type(error).__name__, "text": str(error), "left": testing.outstanding().bytes.get(rank, 0) - before}
    dist.barrier()
    taken = testing.outstanding().bytes.get(rank, 0) - before
    dist.barrier()
    metadata = {key: value for key, value in getattr(workspace, "metadata", {}).items() if isinstance(value, int)}
    workspace.destroy()
    return {"outcome": "built", "taken": taken, "metadata": metadata}


def be_rank(rank: int, world_size: int, requests: list[Any], folder: Path) -> None:
    os.environ["RANK"] = str(rank)
    os.dup2(2, 1)  # FlashInfer before 0.6.6 prints
    try:
        import torch
        import torch.distributed as dist

        torch.cuda.set_device(rank)
        dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=world_size)
        built = [build(dist, rank, world_size, request) for request in requests]
        (folder / f"{rank}.json").write_text(json.dumps({"built": built, "drift": fi_shim.status()["drift"]}), encoding="utf-8")
        dist.barrier()
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(0)


def main() -> None:
    world_size, requests = int(sys.argv[1]), json.loads(sys.argv[2])
    import flashinfer.comm  # noqa: F401  (once, for all ranks)

    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(world_size):
            if (child := os.fork()) == 0:
                be_rank(rank, world_size, requests, Path(folder))
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        answers = [Path(folder, f"{rank}.json") for rank in range(world_size)]
        print(json.dumps([json.loads(answer.read_text(encoding="utf-8")) for answer in answers]))


if __name__ == "__main__":
    main()
