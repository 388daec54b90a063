"""The double of what is asked of `torch.cuda` about devices, replaced for the whole process: FlashInfer, engines and fi_shim ask alike."""

from __future__ import annotations

import functools
import importlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from fi_shim.testing.bindings import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from fi_shim.testing.driver import Driver

CAPABILITY: Final = (9, 0)
NAME: Final = "simulated by fi_shim"


class TorchCuda:
    """Functions of torch.cuda on the simulated devices.

    Args:
        driver: shares its process's current device.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._process = driver.process
        self._initialised = False

    def functions(self) -> dict[str, Callable[..., Any]]:
        """What replaces what, by name."""
        return {
            "is_available": lambda: True,
            "device_count": lambda: len(self._process.specification.capacities),
            "is_initialized": lambda: self._initialised or self._process.initialised,
            "current_device": self.current_device,
            "set_device": self.set_device,
            "_exchange_device": self.exchange_device,
            "_maybe_exchange_device": functools.partial(self.exchange_device),  # Dynamo tells the two apart
            "_lazy_call": lambda _callable, **_options: None,  # such as seeding: there is no generator
            "get_rng_state": lambda _device=None: None,  # Dynamo saves and restores it around each compilation
            "set_rng_state": lambda _state, _device=None: None,
            "synchronize": self.synchronize,
            "mem_get_info": self.mem_get_info,
            "memory_reserved": self.memory_reserved,
            "memory_allocated": lambda _device=None: 0,
            "empty_cache": self.empty_cache,
            "is_current_stream_capturing": lambda: False,
            "get_device_capability": lambda _device=None: CAPABILITY,
            "get_device_name": lambda _device=None: NAME,
            "get_device_properties": self.get_device_properties,
        }

    def current_device(self) -> int:
        self._initialise()
        return self._process.device

    def set_device(self, device: Any) -> None:
        self.exchange_device(self._index(device))

    def exchange_device(self, device: int) -> int:
        """Make `device` current (nothing for a negative one) and tell which was."""
        self._initialise()
        before = self._process.device
        if device >= 0:
            try:
                self._process.use_device(device)
            except Refusal:
                count = len(self._process.specification.capacities)
                raise RuntimeError(f"CUDA error: invalid device ordinal {device}: {count} devices are simulated") from None
        return before

    def synchronize(self, device: Any = None) -> None:  # noqa: ARG002
        self._initialise()

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        self._initialise()
        return self._driver.free_and_total(self._index(device))

    def get_device_properties(self, device: Any = None) -> SimpleNamespace:
        """Name, compute capability and memory; torch's own object cannot be made from Python."""
        total = self._process.specification.capacities[self._index(device)]
        major, minor = CAPABILITY
        return SimpleNamespace(name=NAME, major=major, minor=minor, total_memory=total)

    def memory_reserved(self, device: Any = None) -> int:
        with self._process.machine.transaction() as ledger:
            return ledger.processes[self._process.machine.process].cached.get(self._index(device), 0)

    def empty_cache(self) -> None:
        machine = self._process.machine
        with machine.transaction() as ledger:
            for device, size in list(ledger.processes[machine.process].cached.items()):
                if size:
                    machine.post("cached", machine.process, device, 0)

    def reserve_cached(self, device: int, size: int) -> None:
        """Let torch's allocator hold `size` more bytes that no tensor uses.

        Raises:
            RuntimeError: the device has not as much.
        """
        machine = self._process.machine
        with machine.transaction() as ledger:
            machine.reclaim()
            free = ledger.free(device)
            if size > free:
                raise RuntimeError(f"Simulated device {device} has {free} bytes free; {size} cannot be reserved")
            before = ledger.processes[machine.process].cached.get(device, 0)
            machine.post("cached", machine.process, device, before + size)

    def _initialise(self) -> None:
        if self._process.spoilt_by_fork:
            raise RuntimeError("CUDA was in use when this process was forked, so it cannot be used here; start it by spawn")
        self._initialised = True

    def _index(self, device: Any) -> int:
        if device is None:
            return self._process.device
        if isinstance(device, int):
            return device
        index = importlib.import_module("torch").device(device).index
        return self._process.device if index is None else int(index)
