"""Time of the preflight alone (facts, probe, both rounds of the vote) and of whole creations, 4 ranks on simulated devices, a local TCPStore.

usage: FI_SHIM_SIMULATE=4x8GiB PYTHONPATH=<FlashInfer release folder> python benchmarks/preflight.py     (prints JSON)
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import time
import warnings
from typing import Any

WORLD_SIZE = 4
ATTEMPTS = 40
WARM_UP = 5
BLOCKS = 10
IN_A_BLOCK = 6


def be_rank(rank: int, port: int, writer: int) -> None:
    import torch
    import torch.distributed as dist
    from flashinfer.comm.mnnvl import TorchDistBackend

    import fi_shim.settings
    from fi_shim.patches.asked import Asked
    from fi_shim.patches.voting import prepared
    from fi_shim.seams.groups import find_electorate
    from fi_shim.workspace.request import workspace_shape

    torch.cuda.set_device(rank)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD_SIZE)
    request: dict[str, Any] = {"world_size": WORLD_SIZE, "max_token_num": 2048, "hidden_dim": 4096, "dtype": "bfloat16"}
    shape = workspace_shape(backend="trtllm", **request)
    asked = Asked("trtllm", request, shape, "", WORLD_SIZE, rank, rank, None, TorchDistBackend())
    settings = fi_shim.settings.read()
    seconds = []
    for _ in range(ATTEMPTS):
        dist.barrier()
        started = time.perf_counter()
        voted = prepared(asked, find_electorate(None, asked.comm_backend, WORLD_SIZE), settings)
        seconds.append(time.perf_counter() - started)
        assert voted.verdict.outcome == "yes", voted.verdict
        voted.give_up("only the votes are measured")
    measured: dict[str, list[float]] = {"preflight": seconds[WARM_UP:], "without": [], "with": []}
    for _ in range(BLOCKS):  # in turn, so that what else the machine does falls on both
        for name in ("without", "with"):
            measured[name] += creations(name, rank)
    dist.barrier()
    os.write(writer, json.dumps(measured).encode())
    os._exit(0)


def creations(name: str, rank: int) -> list[float]:
    """Seconds of some creations on this rank, with the shim or without; the first one is not counted."""
    import torch
    import torch.distributed as dist
    from flashinfer import comm

    import fi_shim

    (fi_shim.activate if name == "with" else fi_shim.deactivate)()
    seconds = []
    for _ in range(IN_A_BLOCK):
        dist.barrier()
        started = time.perf_counter()
        made = comm.create_allreduce_fusion_workspace(
            backend="trtllm", world_size=WORLD_SIZE, rank=rank, max_token_num=2048, hidden_dim=4096, dtype=torch.bfloat16,
            group=dist.group.WORLD,
        )  # fmt: skip
        seconds.append(time.perf_counter() - started)
        comm.trtllm_destroy_ipc_workspace_for_all_reduce_fusion(made.ipc_handles)
        made.destroy()
    return seconds[1:]


def main() -> int:
    warnings.simplefilter("ignore")
    import flashinfer.comm  # noqa: F401  # once, before the ranks are forked

    import fi_shim  # noqa: F401

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    readers = []
    for rank in range(WORLD_SIZE):
        reader, writer = os.pipe()
        if os.fork() == 0:
            be_rank(rank, port, writer)
        os.close(writer)
        readers.append(reader)
    by_rank = []
    for reader in readers:
        with os.fdopen(reader) as stream:
            by_rank.append(json.loads(stream.read()))
        os.wait()
    slowest = {name: [max(attempt) * 1e3 for attempt in zip(*(rank[name] for rank in by_rank), strict=True)] for name in by_rank[0]}
    print(json.dumps({name: {"median_ms": statistics.median(values), "best_ms": min(values)} for name, values in slowest.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
