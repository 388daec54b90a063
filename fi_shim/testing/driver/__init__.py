"""The double of `cuda.bindings.driver`: functions are simulated, everything else (enums, structs) is the real module's."""

from __future__ import annotations

from typing import Any, Final

from fi_shim.testing import bindings
from fi_shim.testing.driver.devices import Devices
from fi_shim.testing.driver.linear import LinearMemory
from fi_shim.testing.driver.multicast import Multicast
from fi_shim.testing.driver.physical import PhysicalMemory


class Driver(Devices, PhysicalMemory, Multicast, LinearMemory):
    """Stands wherever FlashInfer has the driver module; see each base for a part of its functions."""

    def __getattr__(self, name: str) -> Any:
        real = getattr(bindings.driver(), name)
        if name.startswith("cu") and callable(real):
            raise NotImplementedError(f"{name} is not simulated (fi_shim.testing.driver)")
        return real


FUNCTIONS: Final = tuple(name for name in dir(Driver) if name.startswith("cu"))
