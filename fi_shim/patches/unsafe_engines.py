"""Engine versions in which a declined workspace would silently give wrong results."""

from __future__ import annotations

import sys
from typing import Final

SAFE_SGLANG: Final = "0.5.21"


def unsafe_engine() -> str:
    """Why a decline would be unsafe in this process, or an empty text."""
    module = sys.modules.get("sglang")
    if module is None:
        return ""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return unsafe_sglang(str(getattr(module, "__version__", None) or version("sglang")))
    except PackageNotFoundError:
        return ""  # a build without a version is newer than any release that is meant here


def unsafe_sglang(found: str) -> str:
    """Why a decline would be unsafe under this SGLang, or an empty text.

    Up to 0.5.20: where its fused op declines in forward, the norm runs without any all-reduce.
    """
    from packaging.version import InvalidVersion, Version

    try:
        number = Version(found)
    except InvalidVersion:
        return ""
    unsafe = number < Version(SAFE_SGLANG) and any(number.release)  # 0.0.0 is a build from source
    return (
        f"unsafe engine version: SGLang {found} skips the all-reduce when a workspace is declined in forward (fixed in {SAFE_SGLANG})"
        if unsafe
        else ""
    )
