"""`fi-shim run`: prepare an environment in which every Python waits for FlashInfer, and become the command."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fi_shim.settings import switched_off

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SITE: Final = Path(__file__).resolve().parent / "site"
WRONG_USE: Final = 2
CANNOT_BE_EXECUTED: Final = 126  # as env(1) and shells say it
NOT_FOUND: Final = 127


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the command: the folder with our sitecustomize in front of PYTHONPATH, and FI_SHIM=1 where nothing is said.

    FI_SHIM=0: unchanged, but for simulated devices, which do not depend on it.
    """
    prepared = dict(environ)
    if switched_off(environ) and not prepared.get("FI_SHIM_SIMULATE"):
        return prepared
    if not prepared.get("FI_SHIM", "").strip():
        prepared["FI_SHIM"] = "1"  # the plugins in processes that keep it, but lose PYTHONPATH, then activate as well
    given = prepared.get("PYTHONPATH", "")
    if given.split(os.pathsep)[0] != str(SITE):
        prepared["PYTHONPATH"] = os.pathsep.join([str(SITE), given] if given else [str(SITE)])
    return prepared


def run(command: Sequence[str]) -> int:
    """Execute `command` in place of this process. Returns, with an exit code, only where that fails."""
    if command[:1] == ["--"]:
        command = command[1:]
    if not command or command[0].startswith("-"):
        what = f"no such option: {command[0]}" if command else "no command"
        return _say(f"{what}\nusage: fi-shim run [--] COMMAND [ARGUMENT ...]", WRONG_USE)
    sys.stdout.flush()
    ignored = [getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name)]
    handlers = {number: signal.getsignal(number) for number in ignored}
    for number in ignored:  # this Python ignores them, and what is ignored stays so across an exec
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], list(command), environment(os.environ))  # noqa: S606  # there must be no shell between
    except OSError as error:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        found = not isinstance(error, FileNotFoundError)
        return _say(f"{command[0]}: {error.strerror}", CANNOT_BE_EXECUTED if found else NOT_FOUND)


def _say(text: str, code: int) -> int:
    print(f"fi-shim run: {text}", file=sys.stderr)  # noqa: T201
    return code
