"""One line an event: `fi_shim[pid rank host] event=... key=value ...`, on the logger `fi_shim`.

Where no handler would take the record (vLLM and SGLang set up their own loggers only), our own handler writes it to stderr.
Event names are documented in README and stable.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from typing import Final

LOGGER: Final = logging.getLogger("fi_shim")
_SAID: Final[set[str]] = set()
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class _StderrWhenUnheard(logging.StreamHandler):  # type: ignore[type-arg]  # generic in typeshed only
    """Writes to the stderr of the moment, and only what no other handler is going to take."""

    def emit(self, record: logging.LogRecord) -> None:
        if _heard_elsewhere(record.levelno):
            return
        self.stream = sys.stderr
        super().emit(record)


def _heard_elsewhere(level: int) -> bool:
    logger: logging.Logger | None = LOGGER
    while logger is not None:
        if any(_hears(handler, level) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def _hears(handler: logging.Handler, level: int) -> bool:
    """Whether a handler is going to show a record: not a NullHandler, and not ours, also not of an earlier copy of this module."""
    return not isinstance(handler, logging.NullHandler) and type(handler).__name__ != _StderrWhenUnheard.__name__ and handler.level <= level


def configure(level: str) -> None:
    """Set the threshold (a key of LEVELS) and see to it that somebody hears us. May be called again."""
    LOGGER.setLevel(LEVELS[level])
    if not any(isinstance(handler, _StderrWhenUnheard) for handler in LOGGER.handlers):
        release()  # one of an earlier copy of this module would speak beside ours
        LOGGER.addHandler(_StderrWhenUnheard())


def release() -> None:
    """Take our handler away again."""
    for handler in list(LOGGER.handlers):
        if type(handler).__name__ == _StderrWhenUnheard.__name__:
            LOGGER.removeHandler(handler)


def event(level: str, name: str, /, **fields: object) -> None:
    """Log one event at `level`, a key of LEVELS. Values with spaces or quotes are quoted; a failing handler is not our caller's problem."""
    number = LEVELS[level]
    LOGGER.disabled = False  # dictConfig disables, by default, each logger that it does not name; FI_SHIM_LOG is how we are made quiet
    if not LOGGER.isEnabledFor(number):
        return
    try:
        rank = _quoted(os.environ.get("RANK", "-"))
        text = " ".join([f"event={name}", *(f"{key}={_quoted(value)}" for key, value in fields.items())])
        LOGGER.log(number, "fi_shim[%d %s %s] %s", os.getpid(), rank, socket.gethostname(), text)
    except Exception:  # noqa: BLE001  # a broken handler or a closed stream must not reach an engine
        return


def once(name: str, reason: str) -> None:
    """A warning that is given once a process."""
    if (key := f"{name} {reason}") not in _SAID:
        _SAID.add(key)
        event("warning", name, reason=reason)


def _quoted(value: object) -> str:
    text = str(value)
    if text and not any(character in ' "=\n\t' for character in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
