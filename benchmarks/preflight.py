"""Time of the preflight alone (facts, probe, both rounds of the vote), for 4 ranks on simulated devices over a local TCPStore.

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
        verdict = prepared(asked, find_electorate(None, asked.comm_backend, WORLD_SIZE), settings).verdict
        seconds.append(time.perf_counter() - started)
        assert verdict.outcome == "yes", verdict
    dist.barrier()
    os.write(writer, json.dumps(seconds[WARM_UP:]).encode())
    os._exit(0)


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
    slowest = [max(attempt) for attempt in zip(*by_rank, strict=True)]
    print(json.dumps({"median_ms": statistics.median(slowest) * 1e3, "best_ms": min(slowest) * 1e3}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
