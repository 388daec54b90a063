"""Telling a process of the tests what to do, over a socket: a line of JSON for each call and for each answer, which may come in any order."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from concurrent.futures import Future
from typing import Any


class Conversation:
    """With one process, which first says its pid. An EOFError where it does not start.

    Args:
        address: of the Unix socket.
        order: what the process is to be, for those that are told.
    """

    def __init__(self, address: str, order: dict[str, Any] | None = None) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address)
        if order is not None:
            self._say(order)
        self._lines = self._socket.makefile()
        first = self._lines.readline()
        if not first:
            self._close()
            raise EOFError("the process did not start")
        self.pid = int(first)
        self._futures: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def start(self, call: dict[str, Any]) -> Future[Any]:
        """Begin a call. An AssertionError is what the process raised, an EOFError its end."""
        future: Future[Any] = Future()
        with self._lock:
            self._futures[len(self._futures)] = future
            try:
                self._say(call)
            except OSError as error:
                future.set_exception(error)
        return future

    def end(self) -> None:
        """Do not wait for the process to close it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    @property
    def is_over(self) -> bool:
        """Whether the process has closed it."""
        return not self._listener.is_alive()

    def wait_for_end(self, seconds: float) -> None:
        """Until the process has closed it."""
        self._listener.join(seconds)

    def _say(self, message: dict[str, Any]) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in self._lines:
                answer = json.loads(line)
                future = self._futures[answer["number"]]
                if "error" in answer:
                    future.set_exception(AssertionError(answer["error"]))
                else:
                    future.set_result(answer["value"])
        with self._lock:
            for future in self._futures.values():
                if not future.done():
                    future.set_exception(EOFError(f"process {self.pid} is gone"))
            self._close()

    def _close(self) -> None:
        self._lines.close()
        self._socket.close()
