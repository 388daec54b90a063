"""Fetch releases of engines and keep only their Python files, JSON files and metadata.

A wheel of vLLM is 350 MB, nearly all of it compiled kernels; its Python files are 30 MB. Each release lands in
`<cache>/engines/<name>-<version>/`, a folder to put on PYTHONPATH. A release that is there already is not fetched again.

usage: python tools/fetch_engine.py sglang==0.5.23 vllm==0.33.0 ...      (prints the folders, one a line)
       python tools/fetch_engine.py --all                                (every release that tests drive: 5 GB to download, once)
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

from fetch_wheel import cache_root, fetch_wheel

from fi_shim.installed_engines import TESTED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Some releases have wheels for some Pythons on one platform only; what is read of them is the same in all.
ANY_WHEEL: Final = (
    *("--implementation", "cp", "--python-version", "3.12", "--abi", "cp312", "--abi", "abi3", "--abi", "none"),
    *(part for glibc in (34, 31, 28, 24, 17) for part in ("--platform", f"manylinux_2_{glibc}_x86_64")),
    *("--platform", "manylinux2014_x86_64", "--platform", "manylinux1_x86_64", "--platform", "linux_x86_64"),
)


def _wanted(name: str) -> bool:
    return name.endswith((".py", ".json")) or ".dist-info/" in name


def engine_folder(name: str, version: str) -> Path:
    """The folder of one release, whether it has been fetched or not."""
    return cache_root() / "engines" / f"{name}-{version}"


def fetch(name: str, version: str, options: Sequence[str] = ()) -> Path:
    """Download and unpack one release; returns its folder. Raises CalledProcessError if pip, with `options`, cannot get it."""
    return fetch_wheel(f"{name}=={version}", engine_folder(name, version), _wanted, (*ANY_WHEEL, *options))


def main() -> int:
    """Fetch the releases named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", metavar="NAME==VERSION")
    parser.add_argument("--all", action="store_true", help="every release that tests drive")
    chosen = parser.parse_args()
    every = [f"{name}=={version}" for name, versions in TESTED.items() for version in versions]
    for release in every if chosen.all else chosen.releases:
        name, _, version = release.partition("==")
        print(fetch(name, version), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
