"""What fi_shim asks torch about a CUDA device, and the one thing it asks torch to do."""

from __future__ import annotations


def current_device() -> int:
    """Number of this process's current device."""
    import torch

    return int(torch.cuda.current_device())


def use_device(device: int) -> None:
    """Make `device` the calling thread's current one."""
    import torch

    torch.cuda.set_device(device)


def free_bytes(device: int) -> int:
    """Free memory of `device` in bytes, as the driver tells. Makes a CUDA context where there is none."""
    import torch

    return int(torch.cuda.mem_get_info(device)[0])


def cached_bytes(device: int) -> int:
    """Memory in bytes that torch's allocator holds on `device` and does not use."""
    import torch

    return max(0, int(torch.cuda.memory_reserved(device)) - int(torch.cuda.memory_allocated(device)))


def is_capturing() -> bool:
    """Whether the current stream is being captured into a CUDA graph."""
    import torch

    return bool(torch.cuda.is_current_stream_capturing())


def drop_cache() -> None:
    """Give torch's unused cached memory back to the device. Not while a stream captures."""
    import torch

    torch.cuda.empty_cache()
