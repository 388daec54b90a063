"""What a rank of vLLM can be told to do, besides what every rank can. Runs in a fork of the nursery; arguments and results are JSON."""

from __future__ import annotations

import importlib
import os
from types import SimpleNamespace
from typing import Any

import flashinfer.comm
import rank_jobs
import torch
import torch.distributed as dist
from rank_jobs import *  # noqa: F403

MODULE = "vllm.distributed.device_communicators.flashinfer_all_reduce"
reducing: Any = importlib.import_module(MODULE)
made: list[Any] = []


def _launch(**keywords: Any) -> torch.Tensor:
    """In place of FlashInfer's kernels: a collective of its own, so that a rank that does not come is missed."""
    dist.barrier(group=rank_jobs.groups["kernels"])
    return torch.empty(tuple(keywords["input"].shape))


flashinfer.comm.allreduce_fusion = _launch


def enter(backend: str = "auto") -> None:
    """Give vLLM the groups and the platform that its launcher would have found."""
    ranks = list(range(dist.get_world_size()))
    for group in ("device", "cpu", "kernels"):  # gloo in place of NCCL
        rank_jobs.groups[group] = dist.new_group(ranks)
    os.environ["VLLM_FLASHINFER_ALLREDUCE_BACKEND"] = backend
    reducing.current_platform = SimpleNamespace(
        is_cuda=lambda: True,
        get_device_capability=lambda: None,  # no tuned sizes
        has_device_capability=lambda number: number <= 90,
    )
    reducing.PassConfig = SimpleNamespace(default_fi_allreduce_fusion_max_size_mb=lambda: {len(ranks): 4})
    made.append(reducing.FlashInferAllReduce(rank_jobs.groups["cpu"], "cuda"))


def workspace(tokens: int = 2048, hidden_dim: int = 1024, dtype: str = "bfloat16", *, quantised: bool = False) -> str | None:
    """As the fusion pass asks for it; the backend that came, or None."""
    get = reducing.get_fi_ar_quant_workspace if quantised else reducing.get_fi_ar_workspace
    found = get(dist.get_world_size(), dist.get_rank(), tokens, hidden_dim, getattr(torch, dtype), rank_jobs.groups["cpu"])
    return None if found is None else str(found.backend)


def all_reduce(tokens: int = 16, hidden_dim: int = 1024, dtype: str = "bfloat16") -> str:
    """As the communicator does for every tensor: by FlashInfer where that is possible, else plainly."""
    given: Any = _OnDevice(torch.ones(tokens, hidden_dim, dtype=getattr(torch, dtype)))
    if made[-1].should_use_fi_ar(given):
        made[-1].all_reduce(given)
        return "fused"
    number = torch.ones(1)
    dist.all_reduce(number, group=rank_jobs.groups["device"])
    assert number.item() == dist.get_world_size()
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
