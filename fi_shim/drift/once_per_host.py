"""Work that one process of a host does for all: whoever binds a name works, the others ask it. Nothing is written to a disk."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SERVED_S: Final = 120.0
"""How long an answer is given out: longer than the usual skew between a host's ranks. Who comes later works itself."""
_PAUSE_S: Final = 0.05
_BLOCK_BYTES: Final = 1 << 16
_CREDENTIALS: Final = struct.Struct("3i")


def once_per_host(name: str, work: Callable[[], str], *, limit_s: float) -> str:
    """The text that `work` gives, from this process or from one of the same user that has the same `name`.

    Args:
        name: what the work depends on.
        work: gives a text that is not empty. What it raises is raised here; others then work themselves.
        limit_s: seconds to wait for another process before working oneself.
    """
    address = "\0fi_shim-" + hashlib.sha256(f"{os.getuid()} {name}".encode()).hexdigest()[:32]
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        listener = _bound(address)
        if listener is not None:
            return _work_for_all(listener, work)
        answer = _ask(address, until)
        if answer:
            return answer
        time.sleep(_PAUSE_S)
    return work()


def _bound(address: str) -> socket.socket | None:
    """A listening socket of that name, or None if somebody has it. The name goes with the process that has it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(address)
    except OSError:
        listener.close()
        return None
    listener.listen(socket.SOMAXCONN)
    return listener


def _work_for_all(listener: socket.socket, work: Callable[[], str]) -> str:
    try:
        text = work()
    except BaseException:
        listener.close()  # who waits in its queue hears of it at once
        raise
    threading.Thread(target=_give_out, args=(listener, text), name="fi_shim-once-per-host", daemon=True).start()
    return text


def _give_out(listener: socket.socket, text: str) -> None:
    until = time.monotonic() + SERVED_S
    with listener:
        while (left := until - time.monotonic()) > 0:
            listener.settimeout(left)
            try:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(left)
                    connection.sendall(text.encode())
            except OSError:  # the time is over, or who asked is gone
                continue


def _ask(address: str, until: float) -> str:
    """What the process that has the name answers; empty if it failed, is gone or is another user's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(max(_PAUSE_S, until - time.monotonic()))
        try:
            connection.connect(address)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            if _CREDENTIALS.unpack(credentials)[1] != os.getuid():
                return ""
            blocks = []
            while block := connection.recv(_BLOCK_BYTES):
                blocks.append(block)
            return b"".join(blocks).decode()
        except (OSError, UnicodeDecodeError):
            return ""
