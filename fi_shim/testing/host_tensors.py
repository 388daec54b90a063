"""The double of the name `torch` inside a FlashInfer module: CUDA tensors become host tensors, all else is real torch."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FACTORIES: Final = ("tensor", "empty", "zeros", "ones", "full", "arange")


class TorchOnHost:
    """Attributes of real torch, except that tensor factories ignore a CUDA device.

    Args:
        torch: the real module.
        instead: names of torch that are replaced as well.
    """

    def __init__(self, torch: Any, instead: Mapping[str, Any] | None = None) -> None:
        self._torch = torch
        self._instead = dict(instead or {})

    def __getattr__(self, name: str) -> Any:
        if name in self._instead:
            return self._instead[name]
        value = getattr(self._torch, name)
        return self._on_host(value) if name in FACTORIES else value

    def _on_host(self, factory: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(factory)
        def make(*args: Any, **kwargs: Any) -> Any:
            if "device" in kwargs and str(kwargs["device"]).startswith("cuda"):
                kwargs["device"] = "cpu"
            return factory(*args, **kwargs)

        return make
