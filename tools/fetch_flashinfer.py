"""Fetch FlashInfer releases and keep only what a CPU needs: the Python files and the metadata.

A 0.7 wheel unpacks to 700 MB of CUDA sources and takes minutes; `flashinfer.comm` needs 5 MB of it. Each release lands in
`<cache>/flashinfer/<version>/`, a folder to put in front of PYTHONPATH. A release that is there already is not fetched again.

usage: python tools/fetch_flashinfer.py 0.6.18 0.7.4 ...      (prints the folders, one a line)
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PARALLEL_DOWNLOADS = 3


def cache_root() -> Path:
    """Where downloads are kept: `FI_SHIM_CACHE`, else `fi_shim` in the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fi_shim"
    return Path(os.environ.get("FI_SHIM_CACHE") or default)


def release_folder(version: str) -> Path:
    """The folder of one release, whether it has been fetched or not."""
    return cache_root() / "flashinfer" / version


def _wanted(name: str) -> bool:
    # JSON files lie beside some modules, which read them when they are imported.
    return (name.endswith((".py", ".json")) and not name.startswith("flashinfer/data/")) or ".dist-info/" in name


def fetch(version: str, options: Sequence[str] = ()) -> Path:
    """Download and unpack one release; returns its folder. Raises CalledProcessError if pip, with `options`, cannot get it."""
    target = release_folder(version)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{version}-") as scratch:
        download = Path(scratch) / "wheel"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--only-binary=:all:"]
        # The wheels are pure Python files as far as we read them: a release whose metadata excludes this Python is read all the same.
        command += ["--ignore-requires-python", "--dest", str(download), *options, f"flashinfer-python=={version}"]
        subprocess.run(command, check=True)
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(next(download.glob("*.whl"))) as wheel:
            wheel.extractall(unpacked, [name for name in wheel.namelist() if _wanted(name)])
        try:
            unpacked.rename(target)
        except OSError:
            if not target.is_dir():  # another process was faster: its copy is as good
                raise
        shutil.rmtree(download)
    return target


def main() -> int:
    """Fetch the releases named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    versions = parser.parse_args().versions
    with ThreadPoolExecutor(PARALLEL_DOWNLOADS) as pool:
        for folder in pool.map(fetch, versions):
            print(folder, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
