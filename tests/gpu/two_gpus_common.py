"""What the programs for real GPUs share: a group of two ranks, and a workspace that needs no compiled kernel."""

from __future__ import annotations

import inspect
import os
from typing import Any

import torch
import torch.distributed as dist
from flashinfer import comm
from flashinfer.comm import trtllm_ar
from flashinfer.comm.mnnvl import TorchDistBackend, checkCudaErrors, cuda

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = RANK % torch.cuda.device_count()  # gloo ranks may share one GPU
MIB = 1 << 20
SHAPES = [(2048, 4096, torch.bfloat16), (2048, 12288, torch.bfloat16), (2048, 4096, torch.float32)]


def lamport_initialize(pointer: int, size: int, dtype: Any) -> None:
    """What FlashInfer's kernel does to the lamport buffer (negative zeros), so that no kernel must be compiled here."""
    if dtype == torch.float32:
        checkCudaErrors(cuda.cuMemsetD32(pointer, 0x80000000, size))
    else:
        checkCudaErrors(cuda.cuMemsetD16(pointer, 0x8000, size))


def create(tokens: int, hidden: int, dtype: Any) -> Any:
    group = {"group": dist.group.WORLD} if "group" in inspect.signature(comm.create_allreduce_fusion_workspace).parameters else {}
    return comm.create_allreduce_fusion_workspace(
        backend="trtllm", world_size=WORLD_SIZE, rank=RANK, max_token_num=tokens, hidden_dim=hidden, dtype=dtype,
        comm_backend=TorchDistBackend(), **group,
    )  # fmt: skip


def begin(backend: str) -> None:
    """Take this rank's device and join the group."""
    torch.cuda.set_device(DEVICE)
    trtllm_ar.trtllm_lamport_initialize = lamport_initialize
    trtllm_ar.get_trtllm_comm_module = lambda: None  # or it would be compiled before the vote
    dist.init_process_group(backend, device_id=torch.device("cuda", DEVICE) if backend == "nccl" else None)
    dist.barrier()
