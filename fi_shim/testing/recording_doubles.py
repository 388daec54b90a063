"""What stands where while a recording runs: every name that is replaced in FlashInfer's modules, for that time only."""

from __future__ import annotations

import contextlib
import importlib
import logging
import warnings
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fi_shim.testing import bindings
from fi_shim.testing.driver import Driver
from fi_shim.testing.host_tensors import TorchOnHost
from fi_shim.testing.kernels import CommKernels
from fi_shim.testing.machine import Machine
from fi_shim.testing.nvml import Nvml
from fi_shim.testing.process import SimulatedProcess
from fi_shim.testing.replacement import Replacements
from fi_shim.testing.runtime import Runtime
from fi_shim.testing.symmetric_memory import SymmetricMemory, alone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fi_shim.testing.specification import Specification


@dataclass
class Journal:
    """What was seen: (allocator, requested, allocated) of each large allocation, and the workspaces, whole or half-made."""

    allocations: list[tuple[str, int, int]] = field(default_factory=list)
    workspaces: list[Any] = field(default_factory=list)
    requested: int = 0


class _NotingDriver(Driver):
    """Writes down each cuMemCreate that succeeds."""

    def __init__(self, process: SimulatedProcess, note: Callable[[int], None]) -> None:
        super().__init__(process)
        self._note = note

    def cuMemCreate(self, size: int, prop: Any, flags: int) -> tuple[Any, ...]:  # noqa: N802
        answer: tuple[Any, ...] = super().cuMemCreate(size, prop, flags)
        if int(answer[0]) == 0:
            self._note(size)
        return answer


@contextlib.contextmanager
def in_place(devices: Specification, world_size: int, signal_pad_size: int) -> Iterator[Journal]:
    """Put the doubles in place, for one process that stands for `world_size` ranks, and the originals back at the end."""
    journal = Journal()
    process = SimulatedProcess(devices, Machine(devices.capacities), waits_for_peers=False)
    process.use_device(0)
    symmetric = SymmetricMemory(Driver(process), signal_pad_size, alone(world_size))
    driver = _NotingDriver(process, lambda size: journal.allocations.append(("cuMemCreate", journal.requested, size)))
    with Replacements() as replacements, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # FlashInfer calls what it has deprecated
        _replace_cuda(replacements, driver)
        _replace_torch(replacements, world_size)
        _replace_creation(replacements, journal)
        _replace_symmetric_memory(replacements, symmetric, journal)
        references = dict(getattr(_module("trtllm_ar"), "_symm_workspace_refs", {}))
        try:
            yield journal
        finally:
            current = getattr(_module("trtllm_ar"), "_symm_workspace_refs", {})
            for key in current.keys() - references.keys():
                del current[key]


def _module(name: str) -> Any:
    return importlib.import_module(f"flashinfer.comm.{name}")


def _replace_cuda(replacements: Replacements, driver: Driver) -> None:
    mnnvl, trtllm, cuda_utils = _module("mnnvl"), _module("trtllm_ar"), importlib.import_module("flashinfer.cuda_utils")
    runtime = Runtime(driver)
    replacements.replace_existing(mnnvl, cuda=driver, pynvml=Nvml(driver.process.specification))
    replacements.replace_existing(cuda_utils, driver=driver)
    replacements.replace(bindings.runtime(), "cudaSetDevice", runtime.set_device)
    library = object.__new__(_module("cuda_ipc").CudaRTLibrary)
    library.funcs = runtime.functions()
    replacements.replace_existing(trtllm, cudart=library)
    kernels = CommKernels(driver)
    replacements.replace_existing(trtllm, get_trtllm_comm_module=lambda: kernels)


def _replace_torch(replacements: Replacements, world_size: int) -> None:
    torch = importlib.import_module("torch")
    cuda = SimpleNamespace(current_device=lambda: 0, device_count=lambda: world_size, synchronize=lambda: None, is_available=lambda: True)
    world = SimpleNamespace(group=SimpleNamespace(WORLD=SimpleNamespace(group_name="recording")), barrier=lambda **_group: None)
    double = TorchOnHost(torch, {"cuda": cuda, "distributed": world})
    for name in ("mnnvl", "trtllm_ar", "trtllm_mnnvl_ar", "allreduce"):
        replacements.replace_existing(_module(name), torch=double, dist=world)


def _replace_creation(replacements: Replacements, journal: Journal) -> None:
    memory, workspace = _module("mnnvl").SymmDeviceMemory, _module("workspace_base").AllReduceFusionWorkspace
    make_memory, make_workspace = memory.__init__, workspace.__init__

    def noting_memory(self: Any, buf_size: int, *args: Any, **kwargs: Any) -> None:
        journal.requested = buf_size
        make_memory(self, buf_size, *args, **kwargs)

    def noting_workspace(self: Any, *args: Any, **kwargs: Any) -> None:
        make_workspace(self, *args, **kwargs)
        journal.workspaces.append(self)

    replacements.replace(memory, "__init__", noting_memory)
    replacements.replace(workspace, "__init__", noting_workspace)
    quiet = SimpleNamespace(**vars(logging))
    for name in ("debug", "info", "warning", "error"):
        setattr(quiet, name, lambda *_args, **_kwargs: None)  # the root logger's helpers would configure logging
    for name in ("mnnvl", "trtllm_ar", "trtllm_mnnvl_ar"):  # not "allreduce", whose validator speaks for itself
        replacements.replace_existing(_module(name), logging=quiet)
        replacements.replace(_module(name), "print", lambda *_args, **_kwargs: None)  # up to 0.6.5 creation prints


def _replace_symmetric_memory(replacements: Replacements, symmetric: SymmetricMemory, journal: Journal) -> None:
    try:
        module = _module("torch_symmetric_memory")
    except ModuleNotFoundError:
        return  # releases before 0.6.10 do not have it

    def empty(*size: Any, dtype: Any, device: Any) -> Any:
        tensor = symmetric.empty(*size, dtype=dtype, device=device)
        journal.allocations.append(("symm_mem", symmetric.requested[-1], tensor.allocated))
        return tensor

    replacements.replace_existing(
        module,
        symm_mem=SimpleNamespace(empty=empty, rendezvous=symmetric.rendezvous),
        _enable_symm_mem_for_group=lambda _name: None,  # torch before 2.11 is told about the group
    )
    confidential = getattr(importlib.import_module("flashinfer.utils"), "is_confidential_compute", None)
    if confidential is not None and hasattr(confidential, "cache_clear"):
        confidential.cache_clear()  # so that FLASHINFER_CONFIDENTIAL_COMPUTE is read each time
