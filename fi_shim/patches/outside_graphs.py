"""Run a function outside of torch.compile's graphs: the vote and what builds a workspace are no tensor code, and must not be traced.

`torch.compiler.disable` imports Dynamo, which takes seconds; most processes never compile. So a function is told about Dynamo when
Dynamo is imported: before that nobody can trace.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

DYNAMO: Final = "torch._dynamo"
_REASON: Final = (
    "fi_shim: a FlashInfer workspace is built outside of compiled regions; FlashInfer's own code for it cannot be traced either"
)
_waiting: Final[list[Callable[[], None]]] = []


def outside_graphs(function: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function that calls `function`. Where Dynamo traces it, there is a graph break (an error under fullgraph=True) before it."""
    target = function

    @functools.wraps(function, updated=())
    def outside(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    outside.__wrapped__ = getattr(function, "__wrapped__", function)  # one layer, as the registry sees it

    def hide() -> None:
        nonlocal target
        from torch.compiler import disable

        target = disable(function, reason=_REASON)

    _waiting.append(hide)
    if hasattr(sys.modules.get(DYNAMO), "disable"):  # imported, and not half-way
        dynamo_is_imported()
    return outside


def dynamo_is_imported(_module: ModuleType | None = None) -> None:
    """Hide all functions that were made so far."""
    while _waiting:
        _waiting.pop()()
