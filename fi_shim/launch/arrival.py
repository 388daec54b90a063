"""By which route the package came into this process, and the settings that came with it."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fi_shim.settings import Settings

NOTE: Final = "_fi_shim_arrival"
"""Attribute of `sys`, set by who is about to import the package: it must be read before the import activates anything."""

IMPORT: Final = "import"


class _Arrival:
    def __init__(self) -> None:
        self.route = IMPORT


_ARRIVAL: Final = _Arrival()


def route() -> str:
    """`import`, `run` (sitecustomize), `multiprocessing` (preparation data of spawn and forkserver children), `vllm plugin` or `sglang plugin`."""
    return _ARRIVAL.route


def settings() -> Settings | None:
    """Take the note, if there is one. Returns the settings that a parent process handed over; None: those of the environment."""
    note: dict[str, Any] | None = vars(sys).pop(NOTE, None)
    handed_over = None
    with contextlib.suppress(Exception):  # a note that cannot be read: the environment counts
        if note is not None:
            _ARRIVAL.route = note["route"]
            handed_over = _unpickled(note.get("settings"))
    return handed_over


def after_import() -> None:
    """Act on a note that nobody has taken: the package was in this process before it (a fork server had it preloaded)."""
    if NOTE in vars(sys):
        from fi_shim.activation import activate

        activate(settings())


def _unpickled(data: bytes | None) -> Settings | None:
    if data is None:
        return None
    import pickle

    return pickle.loads(data)  # type: ignore[no-any-return]  # noqa: S301  # from our own parent, beside what multiprocessing unpickles
