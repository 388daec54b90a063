"""Sockets whose waits end when the build ends. FlashInfer passes descriptors in plain `recvmsg`, `accept` and `connect`."""

from __future__ import annotations

import array
import contextlib
import select
import socket
import time
from typing import TYPE_CHECKING, Any, Final

import wrapt

from fi_shim.seams.window import current

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fi_shim.seams.building import Building

SLICE_SECONDS: Final = 0.05
"""How long a socket waits before it looks at the build again."""


class SocketModuleStandIn(wrapt.ObjectProxy):  # type: ignore[type-arg]  # generic in the stubs only
    """The module `socket`, whose sockets belong to the calling thread's build."""

    @property
    def socket(self) -> Any:
        """What makes a socket."""
        build = current()
        if build is None:
            return self.__wrapped__.socket
        return lambda *args, **kwargs: GuardedSocket.of_build(build, *args, **kwargs)


class GuardedSocket(socket.socket):
    """A socket of one build. Its waits raise StoppedError when a rank has failed; its own time limit holds as ever."""

    _build: Building

    @classmethod
    def of_build(cls, build: Building, *args: Any, **kwargs: Any) -> GuardedSocket:
        """Make one."""
        made = cls(*args, **kwargs)
        made._build = build
        build.journal.took_socket(made)
        return made

    def bind(self, address: Any) -> None:
        with self._noted("bind"):
            super().bind(address)

    def sendmsg(self, *args: Any) -> int:
        with self._noted("sendmsg"):
            return super().sendmsg(*args)

    def recvmsg(self, *args: Any) -> Any:
        self._wait()
        with self._noted("recvmsg"):
            answer = super().recvmsg(*args)
        for level, kind, data in answer[1]:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                received = array.array("i")
                received.frombytes(data[: len(data) - len(data) % received.itemsize])
                for descriptor in received:
                    self._build.journal.took_descriptor(descriptor)
        return answer

    def recv(self, *args: Any) -> bytes:
        self._wait()
        return super().recv(*args)

    def accept(self) -> tuple[socket.socket, Any]:
        self._wait()
        with self._noted("accept"):
            descriptor, address = self._accept()  # type: ignore[attr-defined]  # the C method that the base class uses
        return self.of_build(self._build, self.family, self.type, self.proto, fileno=descriptor), address

    def connect(self, address: Any) -> None:
        try:
            super().connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            self._build.gathering.check()  # FlashInfer tries again, for half a minute
            raise
        except OSError as error:
            self._build.journal.failed("connect", f"connect: {error}")
            raise

    @contextlib.contextmanager
    def _noted(self, call: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._build.journal.failed(call, f"{call}: {error}")
            raise

    def _wait(self) -> None:
        if self._build.over:
            return
        limit = self.gettimeout()
        ends = None if limit is None else time.monotonic() + limit
        waiting = select.poll()
        waiting.register(self, select.POLLIN)
        while not waiting.poll(SLICE_SECONDS * 1000):
            self._build.gathering.check()
            if ends is not None and time.monotonic() >= ends:
                raise TimeoutError("timed out")


class OsStandIn(wrapt.ObjectProxy):  # type: ignore[type-arg]  # generic in the stubs only
    """The module `os`, which notes descriptors that FlashInfer closes."""

    def close(self, descriptor: int) -> None:
        """Close it, and do not close it again at the end of the build."""
        build = current()
        if build is not None:
            build.journal.gave_back("descriptor", descriptor)
        self.__wrapped__.close(descriptor)
