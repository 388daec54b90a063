"""The c10d store of a group, through a connection of our own and never in the caller's thread.

A store whose host is stopped blocks whoever asks it, and with him everyone who shares his connection, for as long as it likes. So every
operation runs in a daemon thread on a clone of the store, and the caller waits outside with a limit. Facts of torch 2.13: `set` is not
acknowledged; the first operation on a dead connection prints a C++ warning; a clone is a new connection, also after a fork.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from fi_shim.workspace.ballot.operations import CompareSet, Delete, Read, Set
from fi_shim.workspace.ballot.protocol import Voter
from fi_shim.workspace.ballot.transport import Transport
from fi_shim.workspace.ballot.worker import SilentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fi_shim.workspace.ballot.operations import Limits, Operation
    from fi_shim.workspace.ballot.worker import Task

CONNECT_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.05
RETRY_SECONDS: Final = 0.5
_TRIES: Final = 3  # a store that is there but fails so often in a row is not going to work


class StoreTransport(Transport):
    """The keys `fi_shim/1/<group>/...` of one group's store, in this process."""

    def __init__(self, store: Any, ranks: Sequence[int]) -> None:
        """Use `store` (a c10d store that all ranks of the group share) for the group of these global ranks."""
        base = base_of(store)
        self.address = (base.host, base.port) if hasattr(base, "port") else None
        super().__init__("the store on " + (f"{base.host}:{base.port}" if self.address else getattr(base, "path", type(base).__name__)))
        self.prefix = f"fi_shim/1/{hashlib.sha256(','.join(map(str, ranks)).encode()).hexdigest()[:16]}/"
        self.ranks = tuple(ranks)
        self._origin = weakref.ref(store)  # the group's own store must be able to die with its group
        self._client: Any = None
        self.attempts: set[str] = set()
        """That this process took part in."""

    @property
    def origin(self) -> Any:
        """The group's own store, or None where the group is gone."""
        return self._origin()

    def voter(self, rank: int, world_size: int, limits: Limits) -> Voter:
        return Voter(rank, world_size, secrets.token_hex(16), limits, known=self.attempts)

    def perform(self, operation: Operation, task: Task[Any]) -> Any:
        for last in (*[False] * (_TRIES - 1), True):
            try:
                self._client = self._client or self._clone(task)
                return self._apply(operation)
            except SilentError:
                raise
            except Exception as error:  # noqa: BLE001  # c10d raises whatever it likes
                self._client = None
                task.rest(RETRY_SECONDS)  # a process that is about to end may still accept connections
                if last or not self._host_answers(task):
                    raise SilentError(f"{self.where} is gone ({type(error).__name__}: {_first_line(error)})") from None
        raise AssertionError

    def _apply(self, operation: Operation) -> Any:
        client = self._client
        if isinstance(operation, Set):
            return client.set(self.prefix + operation.key, operation.value)
        if isinstance(operation, CompareSet):
            return bytes(client.compare_set(self.prefix + operation.key, operation.expected, operation.value))
        if isinstance(operation, Delete):
            return client.delete_key(self.prefix + operation.key)
        assert isinstance(operation, Read)
        keys = [self.prefix + key for key in operation.keys]
        if operation.exist or client.check(keys):
            present = keys
        else:
            present = [] if operation.together else [key for key in keys if len(keys) > 1 and client.check([key])]
        values = client.multi_get(present) if present and client.has_extended_api() else [client.get(key) for key in present]
        return {key.removeprefix(self.prefix): bytes(value) for key, value in zip(present, values, strict=True)}

    def read_aside(self, key: str, limit: float) -> bytes | None:
        found: list[bytes] = []
        name, ends = self.prefix + key, time.monotonic() + limit

        def read() -> None:
            with contextlib.suppress(Exception):  # no answer is an answer
                origin: Any = self._origin()
                client = origin.clone()
                while time.monotonic() < ends and not client.check([name]):
                    time.sleep(_LOOK_SECONDS)
                if client.check([name]):
                    found.append(bytes(client.get(name)))

        reader = threading.Thread(target=read, name="fi_shim-aside", daemon=True)  # a stopped store host would hold the caller
        reader.start()
        reader.join(limit)
        return found[0] if found else None

    def _clone(self, task: Task[Any]) -> Any:
        store = self._origin()
        if store is None:
            raise SilentError(f"the process group of {self.where} has been destroyed")
        if self.address and not self._host_answers(task):  # c10d would try for as long as its own time limit, and say so
            raise SilentError(f"{self.where} is gone (nothing listens there)")
        try:
            return store.clone()
        except (AttributeError, NotImplementedError):
            return store

    def _host_answers(self, task: Task[Any]) -> bool:
        """Wait until the store's host can be reached again; False if there is none any more, or nobody waits for it."""
        while self.address:
            try:
                socket.create_connection(self.address, CONNECT_SECONDS).close()
            except ConnectionRefusedError:
                return False
            except OSError:
                if task.gave_up:
                    return False
                task.rest(RETRY_SECONDS)
            else:
                return True
        return False


_transports: weakref.WeakKeyDictionary[Any, tuple[int, StoreTransport]] = weakref.WeakKeyDictionary()


def transport_of(group: Any = None) -> StoreTransport:
    """Return the transport over the group's own store (None: the default group); the same one for the same group and process.

    Raises LookupError if the group has no store (MPI, other kinds of groups) or this process is not in it.
    """
    from torch.distributed import distributed_c10d as c10d

    group = group if group is not None else c10d.group.WORLD
    store = _store_of(group, c10d)
    if store is None:
        raise LookupError(f"no c10d store for {type(group).__name__}")
    pid, transport = _transports.get(store, (0, None))
    if transport is None or pid != os.getpid():
        transport = StoreTransport(store, c10d.get_process_group_ranks(group))
        _transports[store] = os.getpid(), transport
    return transport


def _store_of(group: Any, c10d: Any) -> Any:
    for find in ("get_group_store", "_get_process_group_store"):  # the second one for older torch
        try:
            store = getattr(group, find)() if hasattr(group, find) else getattr(c10d, find)(group)
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError):
            continue
        if store is not None:
            return store
    return None


def base_of(store: Any) -> Any:
    """The store under all prefixes."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
