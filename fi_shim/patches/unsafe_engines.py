"""Engine versions in which a declined workspace would silently give wrong results."""

from __future__ import annotations

import sys
from typing import Final

SAFE_SGLANG: Final = "0.5.21"


def unsafe_engine() -> str:
    """Why a decline would be unsafe in this process, or an empty text.

    SGLang up to 0.5.20: where its fused op declines in forward, the norm runs without any all-reduce.
    """
    module = sys.modules.get("sglang")
    if module is None:
        return ""
    from importlib.metadata import PackageNotFoundError, version

    from packaging.version import InvalidVersion, Version

    found = getattr(module, "__version__", None)
    try:
        found = found or version("sglang")
        number = Version(str(found))
        unsafe = number < Version(SAFE_SGLANG) and any(number.release)  # 0.0.0 is a build from source
    except (InvalidVersion, PackageNotFoundError):
        return ""  # a build without a version is newer than any release that is meant here
    return (
        f"unsafe engine version: SGLang {found} skips the all-reduce when a workspace is declined in forward (fixed in {SAFE_SGLANG})"
        if unsafe
        else ""
    )
