"""The README's table of supported FlashInfer releases, from `compat/`.

usage: python tools/support_table.py [--write]      (prints it, or puts it into README.md)
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from pathlib import Path

from tabulate import tabulate

from fi_shim.compatibility import known_releases, load_release
from fi_shim.workspace.sizes import load_regime

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- support table: tools/support_table.py --write -->", "<!-- end of support table -->"


def table() -> str:
    """One line for consecutive releases that do the same."""
    rows = []
    for key, group in itertools.groupby(known_releases(), key=_behaviour):
        releases = list(group)
        span = releases[0] if len(releases) == 1 else f"{releases[0]} .. {releases[-1]}"
        rows.append((span, len(releases), *key))
    headers = ("FlashInfer", "releases", "trtllm", "mnnvl", "under confidential computing", "handle type decided by", "device")
    return tabulate(rows, headers=headers, tablefmt="pipe", disable_numparse=True)


def _behaviour(version: str) -> tuple[str, ...]:
    release = load_release(version)
    regimes = [f"{name} ({load_regime(name).table['allocator']})" for name in release.regimes.values()]
    confidential = ", ".join(f"{backend} {name}" for backend, name in release.confidential.items()) or "as ever"
    device = "the rank's number" if release.rules["device"] == "rank" else "the current one"
    return (*regimes, confidential, f"each {release.rules['handle_type']}".replace("each group", "the group"), device)


def with_table(text: str) -> str:
    """The README with the table of today. ValueError if its place is gone."""
    if BEGIN not in text or END not in text:
        raise ValueError(f"README.md has no place for the table: {BEGIN}")
    return re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: f"{BEGIN}\n{table()}\n{END}", text, flags=re.DOTALL)


def main() -> int:
    """Print or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
