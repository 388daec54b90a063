"""What a regime's numbers or a patch's assumptions come from: the functions, methods and constants whose change is drift."""

from __future__ import annotations

from typing import Final

WATCHED: Final[dict[str, tuple[str, ...]]] = {
    "flashinfer.comm.allreduce": ("create_allreduce_fusion_workspace", "TRTLLMAllReduceFusionWorkspace.*"),
    "flashinfer.comm.trtllm_ar": (
        "BarrierFlagCount", "MAX_COMM_SIZE", "trtllm_create_ipc_workspace_for_all_reduce_fusion",
        "trtllm_destroy_ipc_workspace_for_all_reduce_fusion", "trtllm_lamport_initialize", "_initialize_allreduce_fusion_protocol",
        "check_trtllm_allreduce_fusion_workspace_metadata", "_symm_workspace_refs",
    ),
    "flashinfer.comm.mnnvl": (
        "SIGNAL_PAD_SIZE", "round_up", "SymmDeviceMemory.*", "McastGPUBuffer.*", "is_mnnvl_fabric_supported", "is_multicast_supported",
        "_local_fabric_status", "choose_mnnvl_handle_type", "allocate_mnnvl_handles", "_create_and_import_handles", "alloc_and_copy_to_cuda",
        "TorchDistBackend.*",
    ),
    "flashinfer.comm.trtllm_mnnvl_ar": (
        "MNNVL_ONE_SHOT_THRESHOLD", "MNNVLAllreduceFusionStrategy.*", "MNNVLAllReduceFusionWorkspace.*",
    ),
    "flashinfer.comm.torch_symmetric_memory": ("_alloc_symm_buffer_bytes",),
    "flashinfer.comm.workspace_base": ("AllReduceFusionWorkspace.*",),
    "flashinfer.comm.cuda_ipc": ("create_shared_buffer", "CudaRTLibrary.cudaMalloc"),
    "flashinfer.comm.comm_backend": ("TorchDistBackend.*",),
    "flashinfer.comm.mapping": ("Mapping.__init__",),
    "flashinfer.utils": ("ceil_div", "round_up", "is_confidential_compute"),
    "flashinfer.cuda_utils": ("checkCudaErrors",),
}  # fmt: skip
"""module -> names; `Class.*` stands for its methods, constants and head (bases and decorators). Releases have not all of them."""

ALSO_HASHED: Final = ("flashinfer.comm.fd_exchange", "flashinfer.comm.abstractions")
"""Files whose whole text is compared, but no function of theirs: they share handles and size nothing."""


def file_of(module: str) -> str:
    """Path of a module inside a wheel."""
    return module.replace(".", "/") + ".py"
