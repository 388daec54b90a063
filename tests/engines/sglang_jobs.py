"""What a rank of SGLang can be told to do, besides what every rank can. Runs in a fork of the nursery; arguments and results are JSON."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import flashinfer.comm
import rank_jobs
import stand_ins
import torch
import torch.distributed as dist
from rank_jobs import *  # noqa: F403

stand_ins.install("triton", "torchvision")
for name in ("sglang.srt.utils.common", "sglang.srt.utils"):
    importlib.import_module(name).is_flashinfer_available = lambda: True  # type: ignore[attr-defined]  # it asks for a CUDA build of torch
importlib.import_module("sglang.srt.utils.custom_op").register_custom_op = lambda **_options: lambda body: body  # type: ignore[attr-defined]
FUSION = "sglang.srt.layers.flashinfer_comm_fusion"
CONTEXT = "sglang.srt.runtime_context"
fusion: Any = importlib.import_module(FUSION)


def _launch(**_keywords: Any) -> None:
    """In place of FlashInfer's kernels: a collective of its own, so that a rank that does not come is missed."""
    dist.barrier(group=rank_jobs.groups["kernels"])


flashinfer.comm.allreduce_fusion = flashinfer.comm.trtllm_allreduce_fusion = _launch  # the second is 0.5.9's


def enter(backend: str = "trtllm") -> None:
    """Give SGLang the groups and settings that its launcher would have made: one group of all ranks for attention, experts and TP."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for group in ("device", "cpu", "kernels"):  # gloo in place of NCCL
        rank_jobs.groups[group] = dist.new_group(list(range(size)))
    coordinator = SimpleNamespace(
        device_group=rank_jobs.groups["device"], cpu_group=rank_jobs.groups["cpu"], world_size=size, rank_in_group=rank
    )
    parallel = SimpleNamespace(
        tp_size=size, tp_rank=rank, tp_group=coordinator, attn_tp_size=size, attn_tp_rank=rank, attn_tp_group=coordinator,
        moe_ep_size=1, moe_ep_rank=0, moe_dp_size=1, moe_tp_size=size, moe_tp_rank=rank, moe_tp_group=coordinator, nnodes=1,
    )  # fmt: skip
    settings = SimpleNamespace(flashinfer_allreduce_fusion_backend=backend, nnodes=1)
    resources = SimpleNamespace(buffers={})
    answers: dict[str, Any] = {
        "get_parallel": parallel, "get_exec": SimpleNamespace(comm=settings), "get_resources": resources, "get_global_server_args": settings,
        "get_server_args": settings, "get_platform": SimpleNamespace(is_sm90=True, is_sm100=False),
        "is_sm90_supported": True, "is_sm100_supported": False,
        "get_tp_group": coordinator, "get_attn_tp_group": coordinator, "get_moe_tp_group": coordinator,
        "get_tensor_model_parallel_world_size": size,
        "get_attn_tensor_model_parallel_world_size": size, "get_attn_tensor_model_parallel_rank": rank,
        "get_moe_tensor_parallel_world_size": size, "get_moe_tensor_parallel_rank": rank,
        "get_moe_expert_parallel_world_size": 1, "get_moe_expert_parallel_rank": 0,
        "resolve_fusion_group": (size, rank, coordinator), "resolve_fusion_world_size": size,
    }  # fmt: skip
    for module in (fusion, sys.modules.get(CONTEXT, fusion)):  # 0.5.16 .. 0.5.18 import from the second at each call
        for name in answers.keys() & vars(module).keys():
            setattr(module, name, lambda answer=answers[name], **_which: answer)


def pre_initialize(tokens: int = 2048, hidden_dim: int = 1024, dtype: str = "bfloat16") -> dict[str, Any]:
    """As the model runner does before autotuning and graph capture."""
    fusion.pre_initialize_workspaces(max_token_num=tokens, hidden_dim=hidden_dim, dtype=getattr(torch, dtype))
    return told()


def forward(tokens: int = 16, hidden_dim: int = 1024, dtype: str = "bfloat16") -> str:
    """One fused norm, as a layer asks for it; which way it went."""
    given = torch.zeros(tokens, hidden_dim, dtype=getattr(torch, dtype))
    weight = torch.ones(hidden_dim, dtype=given.dtype)
    norm, _residual = fusion.flashinfer_allreduce_residual_rmsnorm(given, given.clone(), weight, max_token_num=max(tokens, 2048))
    return "fell back" if norm is None else "fused"


def raised_in_forward(**keywords: Any) -> str:
    """What ended a forward pass, or an empty text."""
    try:
        forward(**keywords)
    except Exception as error:  # noqa: BLE001  # it is the result
        return f"{type(error).__name__}: {error}"
    return ""


def ask(tokens: int, hidden_dim: int = 1024, dtype: str = "bfloat16") -> bool:
    """Whether the attention workspace is enough."""
    manager = _managers()["attention"]
    return bool(manager.is_buffer_size_sufficient(token_num=tokens, hidden_dim=hidden_dim, dtype=getattr(torch, dtype)))


def all_reduce() -> float:
    """A plain one, in place of NCCL's."""
    number = torch.ones(1)
    dist.all_reduce(number, group=rank_jobs.groups["device"])
    return float(number.item())


def clean_up() -> None:
    fusion.cleanup_flashinfer_workspace()


def told() -> dict[str, Any]:
    """What SGLang thinks of its workspaces."""
    unavailable = getattr(fusion, "_flashinfer_allreduce_unavailable", False)  # 0.5.9 has no such state
    return {"unavailable": unavailable, **{name: _described(one) for name, one in _managers().items()}}


def own_code() -> dict[str, bool]:
    """Whether SGLang's functions are where SGLang put them, or some of ours are."""
    return {
        name: getattr(function, "__fi_shim__", "") == ""
        for name, function in vars(fusion).items()
        if callable(function) and not isinstance(function, type)
    }


def change_code(name: str) -> None:
    """Give one of SGLang's functions another body."""
    setattr(fusion, name, lambda *_args, **_kwargs: None)


def import_again() -> None:
    """Import SGLang's module as if for the first time."""
    global fusion  # noqa: PLW0603
    del sys.modules[FUSION]
    fusion = importlib.import_module(FUSION)


def _managers() -> dict[str, Any]:
    if not hasattr(fusion, "_get_workspace_manager"):
        return {"attention": fusion._workspace_manager}
    return {
        "moe": fusion._get_workspace_manager(use_attn_tp_group=False),
        "attention": fusion._get_workspace_manager(use_attn_tp_group=True),
    }


def _described(manager: Any) -> dict[str, Any] | None:
    if not manager.initialized:
        return None
    workspace = getattr(manager, "workspace", None)  # 0.5.9 has handles and a tensor
    metadata = getattr(workspace, "metadata", {})
    return {
        "backend": getattr(workspace, "backend", "legacy"),
        "tokens": metadata.get("max_token_num"),
        "fp32": metadata.get("use_fp32_lamport"),
    }
