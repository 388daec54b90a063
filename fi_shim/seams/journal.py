"""What one build has taken from the driver, the runtime and the system, in order, and how to give back what is left of it."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Hashable


class Journal:
    """Things taken and not given back yet: kind and key -> what gives it back."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, Hashable], Callable[[], Any]] = {}
        self._sizes: dict[tuple[str, Hashable], int] = {}
        self._sockets: list[socket.socket] = []
        self.last_failure = ""
        """The last call that failed on this rank, for people; empty while none has, and when it was made again with success."""
        self._failed = ""

    def failed(self, call: str, text: str) -> None:
        """A call failed; `text` says how."""
        self._failed, self.last_failure = call, text

    def succeeded(self, call: str) -> None:
        """It did not: FlashInfer repeats with a posix handle what was refused with a fabric one."""
        if self._failed == call:
            self._failed = self.last_failure = ""

    def took(self, kind: str, key: Hashable, give_back: Callable[[], Any], *, allocated: int = 0) -> None:
        """Something was taken. `give_back` undoes it; `allocated` is the memory in bytes that the device gave up for it."""
        self._taken[kind, key] = give_back
        if allocated:
            self._sizes[kind, key] = allocated

    def gave_back(self, kind: str, key: Hashable) -> None:
        """FlashInfer gave it back itself."""
        self._taken.pop((kind, key), None)
        self._sizes.pop((kind, key), None)

    def sizes(self, kind: str) -> list[int]:
        """What is allocated now, in bytes, in order."""
        return [size for (of, _), size in self._sizes.items() if of == kind]

    def took_descriptor(self, number: int) -> None:
        """A file descriptor was opened by the driver, or received. It is closed only while it is the same file."""
        identity = _identity(number)
        if identity is not None:
            self.took("descriptor", number, lambda: os.close(number) if _identity(number) == identity else None)

    def took_socket(self, opened: socket.socket) -> None:
        """A socket was opened."""
        self._sockets.append(opened)

    def undo(self) -> list[str]:
        """Give back everything that is left, last first. Returns what could not be given back, for people."""
        for opened in self._sockets:
            with contextlib.suppress(OSError):
                opened.close()
        self._sockets.clear()
        failures = []
        while self._taken:  # each is taken off the list before it is given back: an interrupt must not have it given back twice
            (kind, key), give_back = self._taken.popitem()
            try:
                answer = give_back()
            except Exception as error:  # noqa: BLE001  # the rest is to be given back all the same
                failures.append(f"{kind} {key}: {type(error).__name__}: {error}")
                continue
            if isinstance(answer, tuple) and int(answer[0]):
                failures.append(f"{kind} {key}: {getattr(answer[0], 'name', answer[0])}")
        return failures

    def forget(self) -> None:
        """The build stands: all of it is FlashInfer's."""
        self._taken.clear()
        self._sockets.clear()


def _identity(number: int) -> tuple[int, int, str] | None:
    try:
        status = os.fstat(number)
        return status.st_dev, status.st_ino, os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115  # relative names such as "anon_inode:x"
    except OSError:
        return None
