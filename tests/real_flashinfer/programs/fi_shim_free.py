"""Help for importing FlashInfer on a machine without CUDA, for programs that must not have imported fi_shim yet."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def import_aids() -> None:
    """Load fi_shim/testing/import_aids.py by its path and install it."""
    path = Path(__file__).parents[3] / "fi_shim" / "testing" / "import_aids.py"
    spec = importlib.util.spec_from_file_location("import_aids_alone", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.install()
