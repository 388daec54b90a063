"""What a rank can be told to do with FlashInfer's CuTe DSL workspace, besides what every rank can. The CuTe DSL itself is a stand-in."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import rank_jobs
import stand_ins
import torch
import torch.distributed as dist
from rank_jobs import *  # noqa: F403

stand_ins.install("cutlass")

from flashinfer.comm import mnnvl_cutedsl_ar as workspaces  # noqa: E402


def _protocol(**options: Any) -> object:
    """In place of a protocol, which compiles kernels and meets its peers."""
    workspaces.dist.barrier(group=options["group"])
    return object()


def _broken_protocol(**_options: Any) -> object:
    raise RuntimeError("no compiler")


def break_kernel() -> None:
    workspaces.BTProtocol = _broken_protocol  # type: ignore[misc,assignment]


def enter(capability: tuple[int, int] = (10, 0)) -> None:
    """Let this rank's device be as the kernels want it, but for what the simulated devices say."""
    torch.cuda.get_device_capability = lambda _device=None: capability  # type: ignore[assignment]
    workspaces.symm_mem = SimpleNamespace(get_backend=lambda _device: "NCCL")
    workspaces.LLProtocol = workspaces.BTProtocol = workspaces.HTProtocol = _protocol  # type: ignore[misc,assignment]


def build(tokens: int = 64, hidden_dim: int = 8192, group: str = "world") -> str:
    """Construct it as SGLang does, directly; what came of it."""
    shipped = workspaces.DEFAULT_CONFIG.profiles[0]
    profile = dataclasses.replace(shipped, tp_size=2, hidden_size=hidden_dim)
    try:
        made = workspaces.MNNVLCuteDSLAllReduceFusionWorkspace(
            tp_size=2,
            tp_rank=dist.get_rank(),
            max_token_num=tokens,
            hidden_dim=hidden_dim,
            dtype=torch.bfloat16,
            group=rank_jobs.groups[group],
            top_k=shipped.top_k,
            config=workspaces.MNNVLCuteDSLConfig(profiles=(profile,)),
        )
    except Exception as error:  # noqa: BLE001  # it is the result
        return f"{type(error).__name__}: {error}"
    return str(made.backend)
