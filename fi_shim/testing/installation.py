"""Everything that a simulation replaces in a process, and where: the code behind the table in README.md."""

from __future__ import annotations

import importlib
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fi_shim.importing import PostImportFinder
from fi_shim.testing import import_aids
from fi_shim.testing.driver import FUNCTIONS, Driver
from fi_shim.testing.host_tensors import TorchOnHost
from fi_shim.testing.kernels import CommKernels
from fi_shim.testing.nvml import Nvml
from fi_shim.testing.process import SimulatedProcess
from fi_shim.testing.rendezvous import among_processes
from fi_shim.testing.runtime import Runtime
from fi_shim.testing.shared_machine import SharedMachine
from fi_shim.testing.symmetric_memory import SymmetricMemory
from fi_shim.testing.torch_cuda import TorchCuda

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import ModuleType

    from fi_shim.testing.faults import Fault
    from fi_shim.testing.specification import Specification


class Simulation:
    """The doubles of one process, and their installation.

    Args:
        devices: what is simulated.
        faults: calls that fail.
        folder: the state that all processes of the simulated machine share.
    """

    def __init__(self, devices: Specification, faults: Sequence[Fault], folder: Path) -> None:
        self.machine = SharedMachine(folder, devices.capacities)
        self.process = SimulatedProcess(devices, self.machine, faults)
        self.driver = Driver(self.process)
        self.runtime = Runtime(self.driver)
        self.torch_cuda = TorchCuda(self.driver)
        self._nvml = Nvml(devices)
        self._kernels = CommKernels(self.driver)
        os.register_at_fork(after_in_child=self.process.after_fork)
        os.environ.setdefault("FLASHINFER_CONFIDENTIAL_COMPUTE", "0")  # FlashInfer would ask NVML, which is not there
        import_aids.install()
        self._finder = PostImportFinder()
        for name, callback in {
            "cuda.bindings.driver": self._in_driver,
            "cuda.cuda": self._in_driver,
            "cuda.bindings.runtime": self._in_runtime,
            "cuda.cudart": self._in_runtime,
            "torch": self._in_torch,
            "flashinfer.cuda_utils": self._in_cuda_utils,
            "flashinfer.comm.cuda_ipc": self._in_cuda_ipc,
            "flashinfer.comm.mnnvl": self._in_mnnvl,
            "flashinfer.comm.trtllm_ar": self._in_trtllm_ar,
            "flashinfer.comm.trtllm_mnnvl_ar": _in_trtllm_mnnvl_ar,
            "flashinfer.comm.torch_symmetric_memory": self._in_torch_symmetric_memory,
        }.items():
            self._finder.watch(name, callback)

    def _in_driver(self, module: ModuleType) -> None:
        for name in FUNCTIONS:
            setattr(module, name, getattr(self.driver, name))

    def _in_runtime(self, module: Any) -> None:
        module.cudaSetDevice = self.runtime.set_device

    def _in_torch(self, module: ModuleType) -> None:
        for name, function in self.torch_cuda.functions().items():
            setattr(module.cuda, name, function)

    def _in_cuda_utils(self, module: Any) -> None:
        module.driver = self.driver

    def _in_cuda_ipc(self, module: Any) -> None:
        functions = self.runtime.functions()

        def without_library(self: Any, so_file: str | None = None) -> None:  # noqa: ARG001
            self.lib, self.funcs = None, functions

        module.CudaRTLibrary.__init__ = without_library
        loaded = vars(module.cudart).get("_library", module.cudart)  # from 0.6.13 on it is loaded at the first call
        if isinstance(loaded, module.CudaRTLibrary):
            loaded.funcs = functions

    def _in_mnnvl(self, module: Any) -> None:
        module.cuda = self.driver
        module.pynvml = self._nvml
        module.torch = TorchOnHost(importlib.import_module("torch"))

    def _in_trtllm_ar(self, module: Any) -> None:
        module.torch = TorchOnHost(importlib.import_module("torch"))
        module.get_trtllm_comm_module = lambda: self._kernels

    def _in_torch_symmetric_memory(self, module: Any) -> None:
        pad = importlib.import_module("torch.distributed._symmetric_memory").get_signal_pad_size()
        double = SymmetricMemory(self.driver, pad, among_processes(self.driver))
        module.symm_mem = SimpleNamespace(empty=double.empty, rendezvous=double.rendezvous)
        module._enable_symm_mem_for_group = lambda _name: None  # noqa: SLF001  (torch before 2.11 is told about the group)


def _in_trtllm_mnnvl_ar(module: Any) -> None:
    module.torch = TorchOnHost(importlib.import_module("torch"))
