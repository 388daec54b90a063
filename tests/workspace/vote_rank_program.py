"""A nursery of rank processes: torch is imported once, then every connection to the socket is served by a fork of its own.

A request is one line of JSON, `{"call": name of a function below, ...keywords}`, and so is the answer. Requests of one process run in threads.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any

import torch.distributed as dist

from fi_shim.workspace.ballot import AllgatherTransport, Limits, join
from fi_shim.workspace.store import StoreTransport, transport_of
from fi_shim.workspace.vote import Record, Verdict

HOUR = dt.timedelta(hours=1)
stores: dict[Any, Any] = {}
transports: dict[str, Any] = {}
sessions: dict[str, Any] = {}
heard: list[Any] = []


class Faulty(StoreTransport):
    """Sends a signal to some process before (or after) its operation number so-and-so."""

    performed = 0
    plan: tuple[str, int, int, int] | None = None

    def perform(self, operation: Any, task: Any) -> Any:
        self.performed += 1
        when, number, pid, what = self.plan or ("", 0, 0, 0)
        hit = number == self.performed
        if hit and when == "before":
            os.kill(pid, what)
        reply = super().perform(operation, task)
        if hit and when == "after":
            os.kill(pid, what)
        return reply


def host(*, libuv: bool = True) -> int:
    stores["host"] = dist.TCPStore("127.0.0.1", 0, None, True, HOUR, wait_for_workers=False, use_libuv=libuv)
    return int(stores["host"].port)


def group(name: str, port: int, ranks: list[int], kind: str = "tcp", path: str = "") -> None:
    """Know a group by name, over its own part of the store."""
    if kind == "tcp":
        base = stores["host"] if port == 0 else dist.TCPStore("127.0.0.1", port, None, False, HOUR)
    else:
        base = dist.FileStore(path, -1)
    stores[name] = dist.PrefixStore("outer", dist.PrefixStore(name, base))
    transports[name] = Faulty(stores[name], ranks)


def fault(name: str, plan: list[Any] | None) -> None:
    transports[name].performed = 0
    transports[name].plan = tuple(plan) if plan else None


def init(port: int, rank: int, world_size: int, subgroups: dict[str, list[int]] | None = None, backend: str = "gloo") -> list[str]:
    store = dist.TCPStore("127.0.0.1", port, None, False, HOUR)
    if backend == "fake":
        import torch.testing._internal.distributed.fake_pg  # noqa: F401  # registers it
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    transports["world"] = transport_of()
    for name, ranks in (subgroups or {}).items():
        made = dist.new_group(ranks)
        if rank in ranks:
            transports[name] = transport_of(made)
            assert transport_of(made) is transports[name]
    return [transports["world"].where]


def destroy() -> None:
    dist.destroy_process_group()
    transports.clear()


def use_allgather(name: str) -> None:
    def allgather(text: str) -> list[str]:
        texts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(texts, text)
        return texts

    transports[name] = AllgatherTransport(allgather, heard.append)


def record_of(rank: int, said: dict[str, Any] | None) -> Record:
    return Record(**{"rank": rank, "vote": "yes", "host": f"host{rank}", "device": rank, **(said or {})})


def told(verdict: Verdict) -> dict[str, Any]:
    rows = [[r.rank, r.vote, r.host, r.phase] for r in verdict.records]
    return {"outcome": verdict.outcome, "reason": verdict.reason, "missing": list(verdict.missing), "records": rows}


def vote(
    name: str,
    rank: int,
    size: int,
    limits: dict[str, float],
    record: dict[str, Any] | None = None,
    rounds: dict[str, dict[str, Any]] | None = None,
    keep: bool = False,
) -> dict[str, Any]:
    began = time.monotonic()
    waited: list[Any] = []
    session = join(
        transports[name],
        rank,
        size,
        record_of(rank, record),
        limits=Limits(**limits),
        on_waiting=lambda *it: waited.append(it) or heard.append(it),
    )
    verdicts = [session.verdict]
    for label, said in (rounds or {}).items():
        if verdicts[-1].declined:
            break
        verdicts.append(session.round(label, record_of(rank, said)))
    operations = getattr(transports[name], "performed", 0)
    if keep:
        sessions[name] = session
    else:
        session.close()
    took = {"seconds": time.monotonic() - began, "operations": operations}
    return {**told(verdicts[-1]), **took, "rounds": len(verdicts), "waited": waited, "pid": os.getpid()}


def round_in(name: str, label: str, rank: int, record: dict[str, Any] | None = None) -> dict[str, Any]:
    began = time.monotonic()
    verdict = sessions[name].round(label, record_of(rank, record))
    return {**told(verdict), "seconds": time.monotonic() - began}


def times(name: str, rank: int, size: int, limits: dict[str, float], votes: int) -> list[float]:
    """Seconds of each of so many votes of two rounds."""
    result = []
    for number in range(votes):
        answer = vote(name, rank, size, limits, rounds={"probe": {}})
        assert answer["outcome"] == "yes", (number, answer)
        result.append(answer["seconds"])
    return result


def work(name: str, until: str) -> None:
    """Be at work until the file exists."""
    with sessions[name].working("kernel build"):
        while not os.path.exists(until):  # noqa: PTH110
            time.sleep(0.01)


def keys(name: str, write: dict[str, str], read: list[str], claim: str) -> Any:
    session = sessions[name]
    for key, value in write.items():
        session.set(key, value.encode())
    return {k: v.decode() for k, v in session.read(read).items()}, session.compare_set("claim", claim.encode()).decode()


def close(name: str, reason: str) -> None:
    sessions.pop(name).close(reason)


def raw_set(name: str, key: str, value: str) -> None:
    stores[name].set(transports[name].prefix + key, value)


def raw_get(name: str, key: str) -> str:
    return str(stores[name].get(transports[name].prefix + key).decode())


def whoever_waits() -> list[Any]:
    """Blocks until a vote here has told that it waits."""
    while not heard:
        time.sleep(0.005)
    return heard


def fork_and_vote(name: str, **vote_keywords: Any) -> dict[str, Any]:
    """A child process votes in place of this one, over what it inherited."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        transports[name] = StoreTransport(stores[name], transports[name].ranks)
        os.write(theirs, json.dumps(vote(name, **vote_keywords)).encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as answer:
        result = json.load(answer)
    return {**result, "exit": os.waitpid(pid, 0)[1], "is_child": result["pid"] == pid}


def fork_in_session(name: str) -> str:
    """What a child process gets that goes on with its parent's session."""
    ours, theirs = os.pipe()
    if os.fork() == 0:
        os.write(theirs, sessions[name].round("probe", Record(rank=0, vote="yes")).reason.encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as answer:
        return answer.read()


def leave_process() -> None:
    """End like a program, with interpreter shutdown."""
    finish.set()


finish = threading.Event()


def _serve(connection: socket.socket) -> None:
    lock = threading.Lock()

    def answer(number: int, request: dict[str, Any]) -> None:
        try:
            result = {"number": number, "value": globals()[request.pop("call")](**request)}
        except BaseException:  # noqa: BLE001
            result = {"number": number, "error": traceback.format_exc()}
        with lock:
            connection.sendall(json.dumps(result).encode() + b"\n")

    def listen() -> None:
        with connection.makefile() as lines:
            for number, line in enumerate(lines):
                threading.Thread(target=answer, args=(number, json.loads(line)), daemon=True).start()
        os._exit(0)  # the test is over

    connection.sendall(f"{os.getpid()}\n".encode())
    threading.Thread(target=listen, daemon=True).start()
    finish.wait()


def main() -> None:
    """Serve the socket named in argv until standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(64)
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listener.close()
                _serve(connection)
                return
            connection.close()


if __name__ == "__main__":
    main()
