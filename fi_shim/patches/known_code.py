"""Is this, to the letter of its syntax tree, the code that a patch was written against? Tables: `compat/patches/<name>.toml`."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fi_shim.compatibility import CompatibilityError, load_patch_functions
from fi_shim.drift.fingerprint import fingerprint
from fi_shim.log import event

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def changed_functions(table: str, found: Mapping[str, Any]) -> list[str]:
    """Names, of qualified name -> function, whose definition is in none of the versions that the table knows."""
    known = _known_fingerprints(table)
    return [name for name, function in found.items() if _fingerprint_of(function, name) not in known.get(name, ())]


def _known_fingerprints(table: str) -> Mapping[str, Sequence[str]]:
    """From the table; empty where that cannot be read: then nothing is known."""
    try:
        return load_patch_functions(table)
    except CompatibilityError as error:
        event("warning", "compat_unreadable", table=f"patches/{table}.toml", error=str(error))
        return {}


def _fingerprint_of(function: Any, name: str) -> str | None:
    """Fingerprint of a function's definition in its own file, or None if it is not the plain function that stands there."""
    if not inspect.isfunction(function) or hasattr(function, "__wrapped__") or function.__qualname__ != name:
        return None
    try:
        return fingerprint(_source(function.__code__.co_filename), name)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None


@functools.lru_cache(maxsize=4)
def _source(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")
