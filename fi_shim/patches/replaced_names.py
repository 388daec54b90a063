"""Which names in FlashInfer's modules are replaced while a workspace is built."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Final

from fi_shim.seams.collectives import DistStandIn
from fi_shim.seams.driver_calls import DriverStandIn, RuntimeStandIn
from fi_shim.seams.sockets import OsStandIn, SocketModuleStandIn
from fi_shim.seams.symmetric_memory import SymmetricMemoryStandIn
from fi_shim.seams.window import Window, current

if TYPE_CHECKING:
    from collections.abc import Callable


def _remembering(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def remembered(self: Any, *args: Any, **kwargs: Any) -> None:
        if (build := current()) is not None:
            build.memories.append(self)
        original(self, *args, **kwargs)

    return remembered


def _replacements() -> dict[tuple[Any, str], Callable[[Any], Any]]:
    comm = "flashinfer.comm."
    cutedsl = comm + "mnnvl_cutedsl"
    found: dict[tuple[Any, str], Callable[[Any], Any]] = {}
    for name, attribute, make in (
        ("mnnvl", "cuda", DriverStandIn),
        ("mnnvl", "socket", SocketModuleStandIn),
        ("mnnvl", "os", OsStandIn),
        ("fd_exchange", "socket", SocketModuleStandIn),
        ("fd_exchange", "os", OsStandIn),
        ("cuda_ipc", "cudart", RuntimeStandIn),
        ("cuda_ipc", "dist", DistStandIn),
        ("trtllm_ar", "cudart", RuntimeStandIn),
        ("trtllm_ar", "dist", DistStandIn),
    ):
        if (module := sys.modules.get(comm + name)) is not None:
            found[module, attribute] = make
    symmetric: Any = sys.modules.get(comm + "torch_symmetric_memory")
    if symmetric is not None:
        for owner in filter(None, (symmetric, sys.modules.get(comm + "mnnvl_cutedsl.symmetric_buffer"))):
            found[owner, "symm_mem"] = lambda module: SymmetricMemoryStandIn(module, symmetric._enable_symm_mem_for_group)  # noqa: SLF001
    for name, module in list(sys.modules.items()) if cutedsl in sys.modules else ():
        if name.startswith(cutedsl) and hasattr(module, "dist"):
            found[module, "dist"] = DistStandIn
    found[sys.modules[comm + "mnnvl"].SymmDeviceMemory, "__init__"] = _remembering
    return found


WINDOW: Final = Window(_replacements)
