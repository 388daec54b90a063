"""Requests that a group has declined: engines ask again for every layer, and shall not wait again for every layer."""

from __future__ import annotations

import contextlib
import secrets
import weakref
from typing import TYPE_CHECKING, Final

from fi_shim.patches import declining
from fi_shim.workspace.ballot.operations import Limits
from fi_shim.workspace.ballot.protocol import Voter, request_name
from fi_shim.workspace.store import StoreTransport, transport_of
from fi_shim.workspace.transaction import MISTAKE
from fi_shim.workspace.vote import differences

if TYPE_CHECKING:
    from fi_shim.seams.groups import Electorate
    from fi_shim.workspace.ballot.session import Session
    from fi_shim.workspace.ballot.worker import Task
    from fi_shim.workspace.vote import Record, Verdict

KEPT: Final = 64
"""Requests that are remembered for each group."""
_declined: Final[weakref.WeakKeyDictionary[StoreTransport, dict[str, tuple[Verdict, str]]]] = weakref.WeakKeyDictionary()

_refusals: Final[weakref.WeakKeyDictionary[StoreTransport, Task[None]]] = weakref.WeakKeyDictionary()
"""The last one of each group, which may wait for a store that does not answer."""


def remember(electorate: Electorate, session: Session, record: Record, verdict: Verdict) -> None:
    """Keep a no to the request that all ranks have read in their store: not what only this rank concluded, nor what one call had wrong."""
    voter = session.voter
    if electorate.group is None or not isinstance(voter, Voter) or not voter.from_store or not voter.attempt or not verdict.declined:
        return
    present = [one for one in verdict.records if one.vote != "absent"]
    if differences(present) or any(MISTAKE in one.facts for one in present):
        return
    known = _declined.setdefault(transport_of(electorate.group), {})
    known[request_name(record)] = verdict, voter.attempt
    for name in list(known)[:-KEPT]:
        del known[name]


def recall(electorate: Electorate, record: Record) -> Verdict | None:
    """The verdict on an equal request of the same group. A rank that has forgotten it is told, without waiting for that."""
    if electorate.group is None:
        return None
    found = _declined.get(transport_of(electorate.group), {}).get(request_name(record))
    if found is None:
        return None
    verdict, attempt = found
    refuse(electorate, record, attempt, f"this request was declined before: {verdict.reason}")
    return verdict


def refuse(electorate: Electorate, record: Record, attempt: str, reason: str) -> None:
    """Tell whoever waits for this rank, now or (if he knows the attempt) later, that it does not vote.

    It is said when this returns, or a late word would answer the next request of a peer; a store that does not answer is waited for once.
    """
    if electorate.group is None:
        return
    with contextlib.suppress(Exception):  # who is not told ends at his limit
        transport = transport_of(electorate.group)
        if transport.lock.locked():
            return  # another thread of this process votes: its cell is not to be overwritten
        grace, last = Limits().grace, _refusals.get(transport)
        voter = Voter(electorate.rank, electorate.size, secrets.token_hex(16), Limits())
        _refusals[transport] = transport.worker.start(voter.refuse(request_name(record), attempt, reason), grace)
        if last is None or last.done.is_set():
            _refusals[transport].done.wait(grace)


def reset() -> None:
    """Forget remembered declines: the next request for a workspace is voted on again."""
    for transport in list(_declined):
        transport.attempts.clear()
    _declined.clear()
    declining.SAID.clear()
