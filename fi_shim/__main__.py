"""`fi-shim` and `python -m fi_shim`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; 0 good, 1 bad news, 2 wrong use."""
    if sys.argv[1:2] == ["run"] and sys.argv[2:3] not in (["-h"], ["--help"]):  # needs no more than the package itself
        from fi_shim.launch.run import run as run_command

        return run_command(sys.argv[2:])
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
