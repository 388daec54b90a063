"""One side of `fi-shim demo hang`: fork the ranks of one group, let all build a workspace, report who came back.

usage: python -m fi_shim.demo.hang_side WORLD_SIZE PATIENCE_SECONDS real|simulated
"""

from __future__ import annotations

import inspect
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import warnings
from typing import Any, Final

MAX_TOKEN_NUM: Final = 2048
HIDDEN_DIM: Final = 4096
LEFT_ON_A_REAL_GPU: Final = 64 << 20  # bytes


def main() -> int:
    """Run one side; the last line printed is the result as JSON."""
    world_size, patience, devices = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    warnings.simplefilter("ignore")
    import flashinfer.comm  # once, for all ranks

    import fi_shim  # before FlashInfer, as an engine would

    port, readers, pids = _free_port(), {}, {}
    for rank in range(world_size):
        reader, writer = os.pipe()
        pids[rank] = _start_rank(rank, world_size, port, devices, writer)
        os.close(writer)
        readers[reader] = rank
    ranks = _follow(readers, world_size, patience)
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    version = fi_shim.status()["flashinfer"] or getattr(flashinfer, "__version__", "unknown")
    print(json.dumps({"flashinfer": version, "ranks": ranks}))  # noqa: T201
    return 0


def _start_rank(rank: int, world_size: int, port: int, devices: str, writer: int) -> int:
    """Fork a rank; with real GPUs start a process instead: FlashInfer's import may have initialised CUDA. Returns its pid."""
    if devices == "real":
        arguments = [str(argument) for argument in (rank, world_size, port, devices, writer)]
        return subprocess.Popen([sys.executable, "-m", "fi_shim.demo.hang_side", "rank", *arguments], pass_fds=[writer]).pid  # noqa: S603
    pid = os.fork()
    if pid == 0:
        _be_rank(rank, world_size, port, devices, writer)
    return pid


def _be_rank(rank: int, world_size: int, port: int, devices: str, writer: int) -> None:
    """Build one workspace and report. Does not return."""
    os.environ["RANK"] = str(rank)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # FlashInfer before 0.6.6 prints

    def report(**message: Any) -> None:
        os.write(writer, (json.dumps(message) + "\n").encode())

    try:
        create = _prepared(rank, world_size, port, devices)
        report(event="arrived", at=time.monotonic())
        try:
            create()
        except Exception as error:  # noqa: BLE001  # whatever it is, it is told
            report(event="back", outcome=type(error).__name__, text=str(error), at=time.monotonic())
        else:
            report(event="back", outcome="built", text="", at=time.monotonic())
    except Exception as error:  # noqa: BLE001
        report(event="failed", text=f"{type(error).__name__}: {error}")
    signal.pause()  # the peers may still need this process; the parent ends it


def _prepared(rank: int, world_size: int, port: int, devices: str) -> Any:
    """Everything up to the call that all ranks make."""
    import torch
    import torch.distributed as dist
    from flashinfer.comm import create_allreduce_fusion_workspace as create
    from flashinfer.comm.mnnvl import TorchDistBackend

    import fi_shim  # noqa: F401  # before FlashInfer, as an engine would

    torch.cuda.set_device(rank)
    ballast = _take_memory(rank) if devices == "real" and rank == world_size - 1 else None
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    request: dict[str, Any] = {"backend": "trtllm", "world_size": world_size, "rank": rank, "max_token_num": MAX_TOKEN_NUM}
    request |= {"hidden_dim": HIDDEN_DIM, "dtype": torch.bfloat16, "comm_backend": TorchDistBackend()}
    if "group" in inspect.signature(create).parameters:
        request["group"] = dist.group.WORLD

    def call() -> Any:
        workspace = create(**request)
        return workspace, ballast

    return call


def _take_memory(device: int) -> Any:
    """All of a real GPU's memory but a little."""
    import torch

    free = torch.cuda.mem_get_info(device)[0]
    return torch.empty(free - LEFT_ON_A_REAL_GPU, dtype=torch.uint8, device=f"cuda:{device}")


def _follow(readers: dict[int, int], world_size: int, patience: float) -> list[dict[str, Any]]:
    """Read the ranks' reports until all are back, or the last has arrived `patience` seconds ago."""
    arrived: dict[int, dict[str, Any]] = {}
    back: dict[int, dict[str, Any]] = {}
    pending = dict.fromkeys(readers, "")
    ends: float | None = None
    while len(back) < world_size and (ends is None or time.monotonic() < ends):
        ready, _, _ = select.select(list(pending), [], [], 0.2)
        for reader in ready:
            pending[reader] += os.read(reader, 65536).decode()
            *lines, pending[reader] = pending[reader].split("\n")
            for message in map(json.loads, lines):
                if message["event"] == "failed":
                    raise SystemExit(f"rank {readers[reader]}: {message['text']}")
                (arrived if message["event"] == "arrived" else back)[readers[reader]] = message
        if ends is None and len(arrived) == world_size:
            ends = time.monotonic() + patience
    last = max(message["at"] for message in arrived.values())
    return [_result(rank, back.get(rank), last) for rank in range(world_size)]


def _result(rank: int, message: dict[str, Any] | None, last_arrival: float) -> dict[str, Any]:
    if message is None:
        return {"rank": rank, "outcome": "hangs", "seconds": None, "text": ""}
    return {"rank": rank, "outcome": message["outcome"], "seconds": max(0.0, message["at"] - last_arrival), "text": message["text"]}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        _be_rank(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], int(sys.argv[6]))
    sys.exit(main())
