"""torch's rendezvous of symmetric memory: a wait inside C++ that only its store's time limit ends."""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_SECONDS: Final = 3.0
"""How long it may wait for a rank: all ranks have just said that they are there."""


class _Rendezvous:
    """What is known of torch's rendezvous in this process."""

    out_of_step = False
    """One has failed. torch numbers the exchanges of a process; from then on ranks may mean different ones, or read old answers."""


RENDEZVOUS: Final = _Rendezvous()


@contextlib.contextmanager
def limited(store: Any) -> Iterator[None]:
    """For one rendezvous, let `store` (a c10d store, which the group keeps using) wait for LIMIT_SECONDS only."""
    before = store.timeout
    store.set_timeout(dt.timedelta(seconds=LIMIT_SECONDS))
    try:
        yield
    except BaseException:
        RENDEZVOUS.out_of_step = True
        raise
    finally:
        store.set_timeout(before)
