"""One rank of the legacy path: cudaMalloc, CUDA IPC handles, and the runtime's errors as FlashInfer reports them."""

from __future__ import annotations

import ctypes
import os
import sys

import pytest

rank, store = int(sys.argv[1]), sys.argv[2]
os.environ["RANK"] = str(rank)

from fi_shim import testing  # noqa: E402  (the rank comes first)
from fi_shim.testing import simulation  # noqa: E402

simulation.activate(os.environ)

import torch  # noqa: E402
from flashinfer.comm import cuda_ipc  # noqa: E402
from torch import distributed  # noqa: E402

MIB = 1 << 20

distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
torch.cuda.set_device(rank)
pointers = cuda_ipc.create_shared_buffer(4 * MIB)
assert len(set(pointers)) == 2
for pointer in pointers:
    cuda_ipc.cudart.cudaMemset(ctypes.c_void_p(pointer), 0, 4 * MIB)
with pytest.raises(RuntimeError, match="CUDART error: invalid argument"):
    cuda_ipc.cudart.cudaMemset(ctypes.c_void_p(pointers[0]), 0, 4 * MIB + 1)
with pytest.raises(RuntimeError, match="CUDART error: out of memory"):
    cuda_ipc.cudart.cudaMalloc(1 << 40)
with pytest.raises(RuntimeError, match="CUDART error: invalid argument"):
    cuda_ipc.cudart.cudaFree(ctypes.c_void_p(pointers[1 - rank]))
distributed.barrier()
assert testing.outstanding().bytes == {0: 4 * MIB, 1: 4 * MIB}
distributed.barrier()
cuda_ipc.free_shared_buffer(pointers)
distributed.barrier()
assert not testing.outstanding().bytes
distributed.barrier()
print("done")
