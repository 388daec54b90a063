"""Steps in a thread of their own, and a caller that gives up at the worst moment."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fi_shim.workspace.ballot.operations import GaveUpError, Read, Set, Steps
from fi_shim.workspace.ballot.worker import SilentError, Task, Worker

LIMIT = 30.0


def test_who_gives_up_while_the_steps_end_hears_their_result() -> None:
    ending, go_on = threading.Event(), threading.Event()

    def steps() -> Steps[str]:
        yield Read(("key",))
        ending.set()
        go_on.wait(LIMIT)
        return "yes"

    task = Worker(lambda operation, task: {}).start(steps(), LIMIT)
    assert ending.wait(LIMIT)
    threading.Timer(0.05, go_on.set).start()
    assert not task.give_up()
    assert task.result() == "yes"


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_connection_lost_after_giving_up_does_not_keep_the_steps_from_saying_so(gives_up: bool) -> None:
    done: list[Any] = []

    def steps() -> Steps[None]:
        try:
            yield Read(("key",))
        except GaveUpError:
            yield Set("doubt", b"1")

    def perform(operation: Any, task: Task[Any]) -> Any:
        done.append(operation)
        if isinstance(operation, Read):
            if gives_up:
                assert task.give_up()
            raise SilentError("gone")

    task = Worker(perform).start(steps(), LIMIT)
    assert task.done.wait(LIMIT)
    if gives_up:
        assert done == [Read(("key",)), Set("doubt", b"1")]
    else:
        with pytest.raises(SilentError, match="gone"):
            task.result()
