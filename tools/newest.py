"""Fetch the newest FlashInfer release or nightly, hold it against the tables and record it; for the scheduled workflow.

Prints `version=`, `news=` (whether there is anything to propose) and `recorded=` (whether a table was written), one a line. The index of the
nightlies is FLASHINFER_NIGHTLY_INDEX_URL.

usage: python tools/newest.py release|nightly [--report FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import fetch_flashinfer
import support_table
from packaging.version import Version

from fi_shim.compatibility import folders, known_releases
from fi_shim.drift import record, verify
from fi_shim.drift.dry_run import DryRunError


def main() -> int:
    """Look, record, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("channel", choices=("release", "nightly"))
    parser.add_argument("--report", type=Path, default=Path(os.devnull))
    arguments = parser.parse_args()
    options = []
    if arguments.channel == "nightly":
        index = os.environ.get("FLASHINFER_NIGHTLY_INDEX_URL")
        if not index:
            print("news=false")
            return 0
        options = ["--pre", "--index-url", index]
    version = newest(options)
    print(f"version={Version(version).public}")
    if Version(version).public in known_releases():
        print("news=false")
        return 0
    root = fetch_flashinfer.fetch(version, options)
    report = verify.verify(root)
    news = arguments.channel == "release" or report.drifted  # a nightly that does the same needs no table
    recorded, text = recording(root, version) if news else (False, "")
    body = f"`fi-shim verify`:\n\n```\n{verify.as_text(report)}\n```\n\n`fi-shim record`:\n\n```\n{text}\n```\n"
    arguments.report.write_text(body, encoding="utf-8")
    print(f"news={str(news).lower()}")
    print(f"recorded={str(recorded).lower()}")
    return 0


def newest(options: list[str]) -> str:
    """What pip would install. CalledProcessError if it finds nothing."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed", "--report", "-", *options]
    done = subprocess.run([*command, "flashinfer-python"], check=True, stdout=subprocess.PIPE, text=True)
    version: str = json.loads(done.stdout)["install"][0]["metadata"]["version"]
    return version


def recording(root: Path, version: str) -> tuple[bool, str]:
    """Write its table and the README's; whether that worked, and what is to be said about it."""
    try:
        path = record.write(root, Version(version).public, folders("")[-1])
    except (record.NewArithmeticError, DryRunError) as error:
        return False, str(error)
    readme = support_table.README
    readme.write_text(support_table.with_table(readme.read_text(encoding="utf-8")), encoding="utf-8")
    return True, f"{path.name} written"


if __name__ == "__main__":
    sys.exit(main())
