"""Where the tables are: in the overlay that FI_SHIM_COMPAT names, then in the package. What of an overlay cannot be used is passed over.

An overlay comes from outside, as from a ConfigMap: a slip in it must not cost more than the overlay. The packaged table holds then, as if
the variable were unset, one line says so, and so do `status()` and `fi-shim doctor`.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fi_shim import log

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE: Final = "FI_SHIM_COMPAT"
KINDS: Final = ("releases", "regimes", "patches")
"""The folders of a layout."""


class CompatibilityError(ValueError):
    """A compat table is missing, cannot be read or does not say what it must; the text names the file."""


class _PassedOver:
    """What of overlays this process could not use, and why."""

    def __init__(self) -> None:
        self._told: dict[Path, str] = {}

    def add(self, path: Path, text: str) -> None:
        """Told by one line a process."""
        self._told[path] = text
        log.once("compat_unreadable", text)

    def forget(self, path: Path) -> None:
        """It can be used (again)."""
        self._told.pop(path, None)

    def of(self, overlay: str) -> tuple[str, ...]:
        """One sentence for each path in that folder, and for the folder itself."""
        return tuple(text for path, text in list(self._told.items()) if path.is_relative_to(overlay))


_PASSED_OVER: Final = _PassedOver()


def passed_over() -> tuple[str, ...]:
    """What of the overlay in force could not be used so far, one sentence each."""
    overlay = _overlay()
    return _PASSED_OVER.of(overlay) if overlay else ()


def pass_over(path: Path, why: object) -> None:
    """Go on without this file of the overlay. `why` names it."""
    _PASSED_OVER.add(path, f"{why}; {VARIABLE}'s file is passed over")


def folders(overlay: str | None = None) -> tuple[Path, ...]:
    """Where the tables are read from, first match wins: the overlay (default: FI_SHIM_COMPAT's), then the packaged tables."""
    packaged = Path(__file__).with_name("_compat")
    if not packaged.is_dir():
        packaged = Path(__file__).parent.parent / "compat"
    overlay = _overlay() if overlay is None else overlay
    if not overlay:
        return (packaged,)
    folder = Path(overlay)
    if complaint := _complaint(folder):
        _PASSED_OVER.add(folder, f"{VARIABLE}={overlay} {complaint}: the packaged tables are used")
        return (packaged,)
    _PASSED_OVER.forget(folder)
    return folder, packaged


def _overlay() -> str:
    return os.environ.get(VARIABLE, "").strip()


def _complaint(folder: Path) -> str:
    """What is wrong with a whole overlay; empty: nothing. A folder with nothing in it is an overlay that says nothing."""
    try:
        entries = list(folder.iterdir())
    except (OSError, ValueError) as error:
        return f"is not a folder that can be read ({getattr(error, 'strerror', None) or error})"
    flat = sorted(entry.name for entry in entries if entry.suffix == ".toml")
    if flat and not any(entry.name in KINDS for entry in entries):
        return f"has {flat[0]} where only the folders {', '.join(KINDS)} are looked into"
    return ""


def locate(kind: str, name: str, check: Callable[[Path], object]) -> Path:
    """The file of a table: the overlay's if `check` takes it, else the packaged one, unchecked.

    Args:
        kind: one of KINDS.
        name: without its suffix.
        check: raises CompatibilityError for a file that cannot be used.

    Raises:
        CompatibilityError: there is none, or only one that cannot be used.
    """
    *overlays, packaged = folders()
    found = packaged / kind / f"{name}.toml"
    unusable: CompatibilityError | None = None
    for path in (folder / kind / found.name for folder in overlays):
        if not _is_there(path):
            _PASSED_OVER.forget(path)
            continue
        try:
            check(path)
        except CompatibilityError as error:
            unusable = error
            pass_over(path, error)
        else:
            _PASSED_OVER.forget(path)
            return path
    if found.is_file():
        return found
    raise unusable or CompatibilityError(f"{found}: no such table")


def _is_there(path: Path) -> bool:
    """Also what cannot be looked at: reading it says why."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a ValueError: such a name cannot be a file's
        return False
    except OSError:
        pass
    return True


@functools.lru_cache(maxsize=256)
def _parsed(path: Path, _changed_ns: int) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    with path.open("rb") as file:
        table: dict[str, Any] = tomllib.load(file)
        return table


def read_table(path: Path) -> dict[str, Any]:
    """Parse one TOML file; CompatibilityError with the file's name if that fails."""
    try:
        return _parsed(path, path.stat().st_mtime_ns)
    except (OSError, ValueError) as error:  # a TOMLDecodeError and a UnicodeDecodeError are ValueErrors
        raise CompatibilityError(f"{path}: {error}") from error


def check_word(path: Path, name: str, value: object, known: tuple[str, ...]) -> None:
    """CompatibilityError unless `value` is one of the known words."""
    if value not in known:
        raise CompatibilityError(f"{path}: {name} is {value!r}, not {' or '.join(known)}")
