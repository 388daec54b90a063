"""Which version of an engine is imported."""

from __future__ import annotations

import sys
from typing import Final

from packaging.version import InvalidVersion, Version

FROM_SOURCE: Final = Version("0.0.0")


def imported_version(package: str) -> str:
    """What the engine says its version is, or "unknown"."""
    found = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(found, str):
        return found
    from importlib import metadata  # slow to load, and mostly not needed

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def is_within(version: str, since: str, before: str) -> bool:
    """Whether since <= version < before. A build without a version is newer than any release."""
    try:
        number = Version(version)
    except InvalidVersion:
        return False
    return number > FROM_SOURCE and number.release != FROM_SOURCE.release and Version(since) <= number < Version(before)
