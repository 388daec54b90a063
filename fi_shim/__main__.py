"""`fi-shim` and `python -m fi_shim`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; 0 good, 1 bad news, 2 wrong use."""
    try:
        from fi_shim.cli import run
    except ImportError as error:
        if error.name not in {"click", "tabulate", "tqdm"}:
            raise
        print(f"fi-shim: the command line needs {error.name}: pip install 'fi-shim[cli]'", file=sys.stderr)  # noqa: T201
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
