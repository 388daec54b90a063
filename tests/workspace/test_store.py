"""The seam to c10d's stores: what each kind does, and how one that fails or blocks is left alone."""

from __future__ import annotations

import datetime as dt
import gc
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from fi_shim.workspace.ballot import SilentError, join
from fi_shim.workspace.ballot.operations import CompareSet, Limits, Read, Set, Sleep
from fi_shim.workspace.store import StoreTransport, transport_of
from fi_shim.workspace.vote import Record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

dist = pytest.importorskip("torch.distributed")

KINDS = ["tcp", "tcp without libuv", "file", "hash"]
YES = Record(rank=0, vote="yes")


@pytest.fixture(autouse=True)
def _name_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RES_OPTIONS", "timeout:1 attempts:1")  # c10d looks up the name of whoever it connects to


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    kind = getattr(request, "param", "hash")
    hour = dt.timedelta(hours=1)
    if kind == "file":
        return dist.FileStore(str(tmp_path / "store"), -1)
    if kind == "hash":
        return dist.HashStore()
    return dist.TCPStore("127.0.0.1", 0, None, True, hour, wait_for_workers=False, use_libuv=kind == "tcp")


def steps(*operations: Any) -> Any:
    replies = []
    for operation in operations:
        reply = yield operation
        replies += [reply]
    return replies


@pytest.mark.parametrize("prefixes", [0, 1, 3])
@pytest.mark.parametrize("store", KINDS, indirect=True)
def test_every_store_answers_alike(store: Any, prefixes: int) -> None:
    for number in range(prefixes):
        store = dist.PrefixStore(f"p{number}", store)
    transport = StoreTransport(store, [0, 3])
    replies = transport.run(
        steps(
            Read(("a", "b")),
            Read(("a",)),
            Set("a", b"1\x00\xff"),
            Read(("a", "b")),
            CompareSet("b", b"", b"first"),
            CompareSet("b", b"", b"second"),
            CompareSet("b", b"first", b"third"),
            CompareSet("b", b"first", b"fourth"),
            Read(("a", "b")),
            Read(("a", "b"), exist=True),
        ),
        limit=10,
        grace=1,
    )

    both = {"a": b"1\x00\xff", "b": b"third"}
    assert replies == [{}, {}, None, {"a": b"1\x00\xff"}, b"first", b"first", b"third", b"third", both, both]
    assert store.check([transport.prefix + "a"])


@pytest.mark.parametrize("store", KINDS, indirect=True)
def test_a_group_of_one_votes(store: Any) -> None:
    with join(StoreTransport(store, [0]), 0, 1, YES, arrival_limit=10) as session:
        assert session.verdict.outcome == "yes"
        assert session.records == (YES,)
        assert session.round("probe", Record(rank=0, vote="no", reason="x")).declined
    with pytest.raises(RuntimeError, match="this attempt is over"):
        session.set("a", b"")


@pytest.mark.parametrize(("store", "where"), [("tcp", "the store on 127.0.0.1:"), ("hash", "the store on HashStore")], indirect=["store"])
def test_a_store_has_a_name(store: Any, where: str) -> None:
    assert StoreTransport(dist.PrefixStore("a", store), [0]).where.startswith(where)


def test_groups_of_other_ranks_use_other_keys(store: Any) -> None:
    assert StoreTransport(store, [0, 1]).prefix == StoreTransport(store, [0, 1]).prefix != StoreTransport(store, [0, 2]).prefix
    assert StoreTransport(store, [0]).prefix.startswith("fi_shim/1/")


def test_no_group_no_store() -> None:
    for group in (None, object()):
        with pytest.raises(LookupError, match="no c10d store"):
            transport_of(group)


def test_a_transport_does_not_keep_the_store() -> None:
    store = dist.PrefixStore("a", dist.HashStore())
    transport = StoreTransport(store, [0])
    transport.run(steps(Set("a", b"")), limit=10, grace=1)
    late = StoreTransport(store, [0])
    del store
    gc.collect()

    assert transport.run(steps(Read(("a",))), limit=10, grace=1) == [{"a": b""}]
    with pytest.raises(SilentError, match="process group of the store on HashStore has been destroyed"):
        late.run(steps(Set("a", b"")), limit=10, grace=1)


class Store:
    """A store as somebody else may write one: no clone, nothing extended; it can fail and block."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.failures = 0
        self.calls: list[str] = []

    def _called(self, name: str) -> None:
        self.calls.append(name)
        self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise OSError("cannot\nsay")

    def check(self, keys: list[str]) -> bool:
        self._called("check")
        return all(key in self.values for key in keys)

    def get(self, key: str) -> bytes:
        self._called("get")
        return self.values[key]

    def set(self, key: str, value: bytes) -> None:
        self._called("set")
        self.values[key] = value

    def compare_set(self, key: str, expected: bytes, value: bytes) -> bytes:
        self._called("compare_set")
        if self.values.get(key, b"") == expected:
            self.values[key] = value
        return self.values.get(key, expected)

    def has_extended_api(self) -> bool:
        return False


@pytest.fixture
def odd() -> Iterator[Store]:
    store = Store()
    yield store
    store.gate.set()


def test_a_store_of_another_kind_will_do(odd: Store) -> None:
    with join(StoreTransport(odd, [0]), 0, 1, YES) as session:
        assert session.round("probe", YES).outcome == "yes"


def test_a_store_that_fails_is_a_no_in_one_line(odd: Store) -> None:
    odd.failures = 1
    verdict = join(StoreTransport(odd, [0]), 0, 1, YES).verdict

    assert verdict.reason == "the store on Store is gone (OSError: cannot)"


def test_a_store_that_blocks_costs_the_limit_and_no_more(odd: Store) -> None:
    transport = StoreTransport(odd, [0, 1])
    limits = Limits(arrival=0.2, grace=0.1, safety=0.05)
    odd.gate.clear()
    began = time.monotonic()
    first = join(transport, 0, 2, YES, limits=limits).verdict
    second = join(transport, 0, 2, YES, limits=limits).verdict

    assert time.monotonic() - began < 3.0
    assert first.reason == second.reason == "the store on Store does not answer"
    assert [record.vote for record in first.records] == ["yes", "absent"]
    odd.gate.set()
    transport.run(steps(Sleep(0)), limit=10, grace=1)  # behind what was left to do
    assert b'"left"' in odd.values[transport.prefix + "cell/0"]
    assert not [key for key in odd.values if "verdict" in key]


def test_who_is_unblocked_after_giving_up_does_nothing_but_tidy_up(odd: Store) -> None:
    transport = StoreTransport(odd, [0])
    odd.gate.clear()
    join(transport, 0, 1, YES, limits=Limits(arrival=0.1, grace=0.1))
    before = len(odd.calls)
    odd.gate.set()
    transport.run(steps(Sleep(0)), limit=10, grace=1)

    assert odd.calls[before:] == ["compare_set"]


def test_the_same_thread_may_begin_anew_without_closing(store: Any) -> None:
    transport = StoreTransport(store, [0])
    forgotten = join(transport, 0, 1, YES)

    assert join(transport, 0, 1, YES).verdict.outcome == "yes"
    with pytest.raises(RuntimeError, match="over"):
        forgotten.round("probe", YES)


def test_a_record_that_is_not_json_leaves_nothing_behind(store: Any) -> None:
    transport = StoreTransport(store, [0])
    for facts, error in (({"handles": {1}}, TypeError), ({"free": float("nan")}, ValueError)):
        with pytest.raises(error):
            join(transport, 0, 1, Record(rank=0, vote="yes", facts=facts))

    assert not store.check([transport.prefix + "cell/0"])
    assert join(transport, 0, 1, YES).verdict.outcome == "yes"


def test_another_thread_waits_and_then_declines(store: Any) -> None:
    transport = StoreTransport(store, [0])
    verdicts = []
    with join(transport, 0, 1, YES):
        other = threading.Thread(target=lambda: verdicts.append(join(transport, 0, 1, YES, arrival_limit=0.1).verdict))
        other.start()
        other.join()

    assert verdicts[0].reason == "another thread of rank 0 has been in an attempt of this group all the time"
    assert join(transport, 0, 1, YES).verdict.outcome == "yes"


def test_a_session_that_is_dropped_lets_others_vote(store: Any) -> None:
    transport = StoreTransport(store, [0])
    threading.Thread(target=lambda: join(transport, 0, 1, YES)).start()

    assert join(transport, 0, 1, YES, arrival_limit=20).verdict.outcome == "yes"
