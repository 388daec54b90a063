"""Download one wheel with pip and keep some of its files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def cache_root() -> Path:
    """Where downloads are kept: `FI_SHIM_CACHE`, else `fi_shim` in the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fi_shim"
    return Path(os.environ.get("FI_SHIM_CACHE") or default)


def fetch_wheel(requirement: str, target: Path, wanted: Callable[[str], bool], options: Sequence[str] = ()) -> Path:
    """Unpack what is `wanted` of a wheel into `target`, unless that is there already; the wheel itself is deleted.

    Raises CalledProcessError if pip, with `options`, cannot get it.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        download = Path(scratch) / "wheel"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--only-binary=:all:"]
        # The wheels are pure Python files as far as we read them: a release whose metadata excludes this Python is read all the same.
        command += ["--ignore-requires-python", "--dest", str(download), *options, requirement]
        subprocess.run(command, check=True)
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(next(download.glob("*.whl"))) as wheel:
            wheel.extractall(unpacked, [name for name in wheel.namelist() if wanted(name)])
        try:
            unpacked.rename(target)
        except OSError:
            if not target.is_dir():  # another process was faster: its copy is as good
                raise
        shutil.rmtree(download)
    return target
