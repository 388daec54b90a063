"""Fetch FlashInfer releases and keep only what a CPU needs: the Python files and the metadata.

A 0.7 wheel unpacks to 700 MB of CUDA sources and takes minutes; `flashinfer.comm` needs 5 MB of it. Each release lands in
`<cache>/flashinfer/<version>/`, a folder to put in front of PYTHONPATH. A release that is there already is not fetched again.

usage: python tools/fetch_flashinfer.py 0.6.18 0.7.4 ...      (prints the folders, one a line)
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from fetch_wheel import cache_root, fetch_wheel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PARALLEL_DOWNLOADS = 3


def release_folder(version: str) -> Path:
    """The folder of one release, whether it has been fetched or not."""
    return cache_root() / "flashinfer" / version


def _wanted(name: str) -> bool:
    # JSON files lie beside some modules, which read them when they are imported.
    return (name.endswith((".py", ".json")) and not name.startswith("flashinfer/data/")) or ".dist-info/" in name


def fetch(version: str, options: Sequence[str] = ()) -> Path:
    """Download and unpack one release; returns its folder. Raises CalledProcessError if pip, with `options`, cannot get it."""
    return fetch_wheel(f"flashinfer-python=={version}", release_folder(version), _wanted, options)


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
