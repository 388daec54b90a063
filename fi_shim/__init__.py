"""Makes FlashInfer's all-reduce-fusion workspaces quiet, exact and hang-free, from outside.

Importing this package activates it, unless FI_SHIM=0: FlashInfer's modules are patched as they are imported.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from fi_shim.activation import activate, deactivate
from fi_shim.launch import arrival

if TYPE_CHECKING:
    from fi_shim.patches.remembered import reset
    from fi_shim.report import status
    from fi_shim.workspace.decline import WorkspaceDeclined
    from fi_shim.workspace.planning import plan
    from fi_shim.workspace.sizes import Allocation, AllocationPlan

__version__ = "0.1.0"
__all__ = ["Allocation", "AllocationPlan", "WorkspaceDeclined", "__version__", "activate", "deactivate", "plan", "reset", "status"]

# Loaded when first asked for: an engine that imports the package pays for the hooks only.
_LATE = {
    "Allocation": "fi_shim.workspace.sizes",
    "AllocationPlan": "fi_shim.workspace.sizes",
    "WorkspaceDeclined": "fi_shim.workspace.decline",
    "plan": "fi_shim.workspace.planning",
    "reset": "fi_shim.patches.remembered",
    "status": "fi_shim.report",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LATE[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})


activate(arrival.settings())
if os.environ.get("FI_SHIM_SIMULATE"):  # a test switch, independent of the patches
    from fi_shim.testing.simulation import activate_or_say_why_not

    activate_or_say_why_not(os.environ)
