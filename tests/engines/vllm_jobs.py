"""What a rank of vLLM can be told to do, besides what every rank can. Runs in a fork of the nursery; arguments and results are JSON."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from types import SimpleNamespace
from typing import Any

import flashinfer.comm
import rank_jobs
import torch
import torch.distributed as dist
from rank_jobs import *  # noqa: F403

MODULE = "vllm.distributed.device_communicators.flashinfer_all_reduce"
with contextlib.redirect_stdout(sys.stderr):  # where some releases log; the nursery speaks on standard output
    reducing: Any = importlib.import_module(MODULE)
made: list[Any] = []


def _launch(**keywords: Any) -> torch.Tensor:
    """In place of FlashInfer's kernels: a collective of its own, so that a rank that does not come is missed."""
    dist.barrier(group=rank_jobs.groups["kernels"])
    return torch.empty(tuple(keywords["input"].shape))


flashinfer.comm.allreduce_fusion = _launch


def enter(backend: str = "auto", size: int = 2) -> None:
    """Give vLLM the groups and the platform that its launcher would have found: `size` ranks of tensor parallelism, the rest data parallel."""
    for name in ("device", "cpu", "kernels"):  # gloo in place of NCCL
        for first in range(0, dist.get_world_size(), size):
            ranks = list(range(first, first + size))
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                rank_jobs.groups[name] = group
    os.environ["VLLM_FLASHINFER_ALLREDUCE_BACKEND"] = backend
    reducing.current_platform = SimpleNamespace(
        is_cuda=lambda: True,
        get_device_capability=lambda: None,  # no tuned sizes
        has_device_capability=lambda number: number <= 90,
    )
    reducing.PassConfig = SimpleNamespace(default_fi_allreduce_fusion_max_size_mb=lambda: {size: 4})
    if hasattr(reducing, "get_node_count"):  # up to 0.31
        reducing.get_node_count = lambda: 1
    made.append(reducing.FlashInferAllReduce(rank_jobs.groups["cpu"], "cuda"))


def workspace(tokens: int = 2048, hidden_dim: int = 1024, dtype: str = "bfloat16", *, quantised: bool = False) -> str | None:
    """As the fusion pass asks for it; the backend that came, or None."""
    get = reducing.get_fi_ar_quant_workspace if quantised else reducing.get_fi_ar_workspace
    group = rank_jobs.groups["cpu"]
    found = get(dist.get_world_size(group), dist.get_rank(group), tokens, hidden_dim, getattr(torch, dtype), group)
    return None if found is None else str(found.backend)


def multicast_address() -> int:
    return int(reducing._fi_ar_workspace.mc_ptr)


def all_reduce(tokens: int = 16, hidden_dim: int = 1024, dtype: str = "bfloat16") -> str:
    """As the communicator does for every tensor: by FlashInfer where that is possible, else plainly."""
    given: Any = _OnDevice(torch.ones(tokens, hidden_dim, dtype=getattr(torch, dtype)))
    if made[-1].should_use_fi_ar(given):
        made[-1].all_reduce(given)
        return "fused"
    number = torch.ones(1)
    dist.all_reduce(number, group=rank_jobs.groups["device"])
    assert number.item() == dist.get_world_size(rank_jobs.groups["device"])
    return "plain"


def clean_up() -> None:
    reducing.destroy_fi_ar_workspace()


class _OnDevice:
    """A tensor that says that it is on a CUDA device."""

    is_cuda = True

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)
