"""torch's rendezvous of symmetric memory: a wait inside C++ that only its store's time limit ends."""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fi_shim.seams import devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

LIMIT_SECONDS: Final = 3.0
"""How long it may wait for a rank: all ranks have just said that they are there."""


class _Rendezvous:
    """What is known of torch's rendezvous in this process."""

    out_of_step = False
    """One has failed. torch numbers the exchanges of a process; from then on ranks may mean different ones, or read old answers."""


RENDEZVOUS: Final = _Rendezvous()
_LOCK: Final = threading.Lock()
_SHORTENED: Final[dict[tuple[str, int, str], tuple[int, dt.timedelta]]] = {}
"""Store -> how many rendezvous use it now, and its own time limit."""


def aside(meet: Callable[[], T]) -> T:
    """Call `meet` in a thread of its own, on the caller's device, and leave it there if the store's host is stopped: then it ends with that.

    Raises:
        TimeoutError: it has not ended; what it allocated stays until it does.
        Exception: what it raised.
    """
    from concurrent.futures import Future
    from concurrent.futures import TimeoutError as FutureTimeoutError

    ended: Future[T] = Future()
    device = devices.current_device()

    def run() -> None:
        try:
            devices.use_device(device)
            ended.set_result(meet())
        except BaseException as error:  # noqa: BLE001  # it is the caller's
            ended.set_exception(error.with_traceback(None))  # frames of this thread would keep memory

    threading.Thread(target=run, name="fi_shim-rendezvous", daemon=True).start()
    try:
        return ended.result(2 * LIMIT_SECONDS)
    except FutureTimeoutError:
        if ended.done():
            raise
        raise TimeoutError("torch's rendezvous does not end: the store's host does not answer") from None


@contextlib.contextmanager
def limited(store: Any) -> Iterator[None]:
    """For one rendezvous, let `store` (a c10d store, which the group keeps using) wait for LIMIT_SECONDS only.

    All groups of a process share one client with one time limit: the last rendezvous that ends gives back what the first one found.
    """
    from fi_shim.workspace.store import base_of

    base = base_of(store)
    key = getattr(base, "host", ""), getattr(base, "port", 0), getattr(base, "path", "")
    with _LOCK:
        count, before = _SHORTENED.get(key, (0, store.timeout))
        _SHORTENED[key] = count + 1, before
        store.set_timeout(dt.timedelta(seconds=LIMIT_SECONDS))
    try:
        yield
    except BaseException:
        RENDEZVOUS.out_of_step = True
        raise
    finally:
        with _LOCK:
            count, before = _SHORTENED.pop(key)
            if count > 1:
                _SHORTENED[key] = count - 1, before
            else:
                store.set_timeout(before)
