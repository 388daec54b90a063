"""One process on simulated devices: torch's questions, torch's cache, the runtime, faults and accounting."""

from __future__ import annotations

import os
import sys

import pytest

from fi_shim import testing
from fi_shim.testing import simulation

MIB = 1 << 20

assert simulation.activate(os.environ) is True
assert testing.simulated()
assert simulation.activate({}) is True  # it stays
assert not {"torch", "flashinfer"} & set(sys.modules)

import torch  # noqa: E402  (a process that imports it after the activation)
from cuda.bindings import driver  # noqa: E402

assert torch.cuda.is_available()
assert torch.cuda.device_count() == 2
assert not torch.cuda.is_initialized()
torch.manual_seed(1)
assert torch.cuda.current_device() == 0
assert torch.cuda.is_initialized()
assert torch.cuda.get_device_capability() == (9, 0)
assert not torch.cuda.is_current_stream_capturing()
torch.cuda.set_device("cuda:1")
assert torch.cuda.current_device() == 1
with torch.cuda.device(0):
    assert torch.cuda.current_device() == 0
assert torch.cuda.current_device() == 1
cuda, runtime = simulation.required().driver, simulation.required().runtime
assert int(cuda.cuCtxGetDevice()[1]) == 1
assert int(driver.cuCtxGetDevice()[1]) == 1
assert driver.cuDeviceGetCount() == (driver.CUresult.CUDA_SUCCESS, 2)
assert int(runtime.set_device(0)[0]) == 0
assert torch.cuda.current_device() == 0
cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(1)[1])
assert torch.cuda.current_device() == 1
with pytest.raises(RuntimeError, match="invalid device ordinal 2"):
    torch.cuda.set_device(2)

testing.reserve_cached(1, 40 * MIB)
testing.reserve_cached(1, 8 * MIB)
assert torch.cuda.memory_reserved() == torch.cuda.memory_reserved(1) == 48 * MIB
assert torch.cuda.memory_allocated(1) == 0
assert torch.cuda.mem_get_info() == (16 * MIB, 64 * MIB)
assert torch.cuda.mem_get_info(0) == (64 * MIB, 64 * MIB)
assert testing.outstanding().bytes == {1: 48 * MIB}
with pytest.raises(RuntimeError, match=f"{16 * MIB} bytes free"):
    testing.reserve_cached(1, 17 * MIB)
torch.cuda.empty_cache()
assert torch.cuda.mem_get_info() == (64 * MIB, 64 * MIB)
assert not testing.outstanding()

table = runtime.functions()
assert table["cudaGetErrorString"](2) == b"out of memory"
calls = testing.calls()
assert calls["cudaSetDevice"] == 1
print("done")
