"""Fetch an engine's release and keep only what its Python code needs: the Python and JSON files and the metadata.

A vLLM wheel is 336 MB, of which 60 MB are such files. Each release lands in `<cache>/engines/<name>-<version>/`, a folder that can stand on
PYTHONPATH. A release that is there already is not fetched again.

usage: python tools/fetch_engine.py sglang==0.5.23 vllm==0.33.0      (prints the folders, one a line)
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from fetch_flashinfer import cache_root

if TYPE_CHECKING:
    from collections.abc import Sequence


def engine_folder(name: str, version: str) -> Path:
    """The folder of one release, whether it has been fetched or not."""
    return cache_root() / "engines" / f"{name}-{version}"


def _wanted(file: str) -> bool:
    return file.endswith((".py", ".json")) or ".dist-info/" in file


def fetch(name: str, version: str, options: Sequence[str] = ()) -> Path:
    """Download and unpack one release; returns its folder. Raises CalledProcessError if pip, with `options`, cannot get it."""
    target = engine_folder(name, version)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        download = Path(scratch) / "wheel"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--only-binary=:all:"]
        # Its compiled parts are left out: which Python they are for does not matter.
        command += ["--ignore-requires-python", "--dest", str(download), *options, f"{name}=={version}"]
        subprocess.run(command, check=True)
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(next(download.glob("*.whl"))) as wheel:
            wheel.extractall(unpacked, [file for file in wheel.namelist() if _wanted(file)])
        try:
            unpacked.rename(target)
        except OSError:
            if not target.is_dir():  # another process was faster: its copy is as good
                raise
    return target


def main() -> int:
    """Fetch the releases named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="+", metavar="NAME==VERSION")
    for engine in parser.parse_args().engines:
        name, _, version = engine.partition("==")
        print(fetch(name, version), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
