"""torch's symmetric memory as FlashInfer's own module names it: all ranks allocate, then all meet."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import wrapt

from fi_shim.seams.window import current

if TYPE_CHECKING:
    from collections.abc import Callable


class SymmetricMemoryStandIn(wrapt.ObjectProxy):  # type: ignore[type-arg]  # generic in the stubs only
    """`torch.distributed._symmetric_memory`, where a rank that could not allocate keeps nobody waiting in a rendezvous."""

    def __init__(self, module: Any, enable_for_group: Callable[[str], None]) -> None:
        """`enable_for_group` is FlashInfer's own preparation of a group, by name, for older torch."""
        super().__init__(module)
        self._self_enable_for_group = enable_for_group

    def empty(self, *args: Any, **kwargs: Any) -> Any:
        """Allocate on this rank."""
        build = current()
        if build is None:
            return self.__wrapped__.empty(*args, **kwargs)
        try:
            tensor = self.__wrapped__.empty(*args, **kwargs)
        except Exception as error:
            build.journal.failed("empty", f"symm_mem.empty: {error}")
            raise
        build.tensors.append(weakref.ref(tensor))
        return tensor

    def rendezvous(self, tensor: Any, group: Any = None) -> Any:
        """Meet over the build's own group, whatever group this release names (0.6.10 knows WORLD only)."""
        build = current()
        if build is None:
            return self.__wrapped__.rendezvous(tensor, group=group)

        def meet(name: str) -> Any:
            if group != name:
                self._self_enable_for_group(name)
            return self.__wrapped__.rendezvous(tensor, group=name)

        return build.rendezvous(meet)
