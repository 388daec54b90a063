"""Print the FlashInfer releases that tables under `compat/releases/` describe, oldest first.

usage: python tools/releases.py [--tested] [--json]      (--tested: those that `make test` runs)
"""

from __future__ import annotations

import argparse
import json
import sys

from fi_shim.compatibility import known_releases

# One of each way of allocating, of speaking and of exchanging handles, the oldest and the newest; the demo's.
TESTED = ("0.6.0", "0.6.5", "0.6.9", "0.6.12", "0.6.17", "0.6.18", "0.7.2", "0.7.4")


def main() -> int:
    """Print the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tested", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    releases = TESTED if arguments.tested else known_releases()
    print(json.dumps(releases) if arguments.json else "\n".join(releases))
    return 0


if __name__ == "__main__":
    sys.exit(main())
