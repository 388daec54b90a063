"""State files as fresh processes write them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HEADER = """
import json, os, sys, time
import fi_shim
from pathlib import Path
FOLDER = Path(os.environ["FI_SHIM_STATE_DIR"])

def content(pid=None):
    return json.loads(next(FOLDER.glob(f"*-{pid or os.getpid()}.json")).read_text())

def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "did not come"
        time.sleep(0.005)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


def run(host: Any, folder: Path, code: str) -> Any:
    return json.loads(host.run("-c", HEADER + code, FI_SHIM_STATE_DIR=str(folder)).stdout)


def test_off_by_default(host: Any) -> None:
    code = "import fi_shim, json, sys; print(json.dumps([m for m in sys.modules if m in ('fi_shim.state.writing', 'fi_shim.report')]))"
    assert host.code(code) == []


def test_a_file_is_there_from_the_activation_on(host: Any, folder: Path) -> None:
    code = "print(json.dumps([content(), fi_shim.status(), os.getpid(), [path.name for path in FOLDER.iterdir()]], default=str))"
    written, status, pid, names = run(host, folder, code)
    assert names == [f"{socket.gethostname()}-{pid}.json"]
    assert written["active"] is True
    assert {key: written[key] for key in status if key != "process"} == {key: status[key] for key in status if key != "process"}
    assert written["process"] == {**status["process"], "heartbeat": False}
    assert written["version"]


def test_deactivation_is_written(host: Any, folder: Path) -> None:
    assert run(host, folder, "fi_shim.deactivate(); print(json.dumps(content()['active']))") is False


def test_what_matters_is_written_at_once(host: Any, folder: Path) -> None:
    code = """
from fi_shim.state.counts import COUNTS
from fi_shim.workspace.vote import Record, Verdict
seen = []
COUNTS.declined(Verdict("no", "rank 1 did not vote", (Record(rank=0, vote="yes"), Record(rank=1, vote="absent")), (1,)))
seen.append(content()["counts"]["declines"]["missing_rank"])
COUNTS.abstained()
seen.append(content()["counts"]["abstains"])
COUNTS.timed(lambda: None)
votes = content()["counts"]["votes"]
print(json.dumps([*seen, votes["count"], votes["within"]["0.01"], votes["within"]["300.0"]]))
"""
    assert run(host, folder, code) == [1, 1, 1, 1, 1]


def test_a_fork_begins_its_own(host: Any, folder: Path) -> None:
    code = """
from fi_shim.state.counts import COUNTS
from fi_shim.state.writing import STATE_FILE
COUNTS.abstained()
before = content()
STATE_FILE._lock.acquire()  # as a thread of the parent would hold it
if (child := os.fork()) == 0:
    first = content()
    COUNTS.declined(None)
    print(json.dumps([first, content()]))
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
STATE_FILE._lock.release()
assert content() == before
assert content(child)["process"]["pid"] == child
"""
    first, second = run(host, folder, code)
    assert first["process"]["pid"] == second["process"]["pid"]
    assert first["counts"]["abstains"] == 0  # the parent's
    assert second["counts"]["declines"]["failed"] == 1
    assert len(list(folder.glob("*.json"))) == 2


COUNT_WHILE_FORKING = """
import os, threading
def count():
    return [sorted(thread.name for thread in threading.enumerate()), len(os.listdir("/proc/self/task"))]
while_forking = []
os.register_at_fork(before=lambda: while_forking.append(count()))  # before ours is: those run in reverse order
"""


def test_no_thread_of_ours_is_there_while_the_process_forks(host: Any, folder: Path) -> None:
    """Which Python 3.12 and newer would warn of: they count the system's threads."""
    code = """
from fi_shim.state import heartbeat
from fi_shim.state.writing import STATE_FILE
heartbeat.PERIOD_S = 0.001  # often at work
STATE_FILE.keep_alive()
parent = []
read, write = os.pipe()
for _ in range(30):
    if (child := os.fork()) == 0:
        os.write(write, json.dumps(count()).encode() + b"\\n")
        os._exit(0)
    os.waitpid(child, 0)
    parent.append(count())
os.close(write)
STATE_FILE.publish()
print(json.dumps([while_forking, parent, [json.loads(line) for line in os.fdopen(read)], content()["process"]["heartbeat"]]))
"""
    done = host.run("-c", COUNT_WHILE_FORKING + HEADER + code, FI_SHIM_STATE_DIR=str(folder))
    during, parent, children, beats = json.loads(done.stdout)
    assert during == [[["MainThread"], 1]] * 30
    assert parent == children == [[["MainThread", "fi_shim-state"], 2]] * 30
    assert beats is True
    if sys.version_info < (3, 13):  # some of these count the threads when ours is back (cpython issue 137109)
        assert done.stderr == ""


def test_a_fork_does_not_wait_for_a_thread_that_hangs(host: Any, folder: Path) -> None:
    code = """
from fi_shim.state import heartbeat
from fi_shim.state.writing import STATE_FILE
heartbeat.PERIOD_S, heartbeat.FORK_WAITS_S = 0.001, 0.05
at_work = threading.Event()
STATE_FILE._heartbeat._beat = lambda: (at_work.set(), threading.Event().wait())  # as in a write to a folder that is gone
STATE_FILE.keep_alive()
at_work.wait()
if os.fork() == 0:
    os._exit(len(content()["process"]["host"]) == 0)
print(json.dumps([os.wait()[1], while_forking[0][0]]))
"""
    done = host.run("-c", COUNT_WHILE_FORKING + HEADER + code, FI_SHIM_STATE_DIR=str(folder))
    assert json.loads(done.stdout) == [0, ["MainThread", "fi_shim-state"]]


def test_a_fork_does_not_begin_what_was_stopped(host: Any, folder: Path) -> None:
    code = """
from fi_shim.state.writing import STATE_FILE
STATE_FILE.keep_alive()
(thread,) = (thread for thread in threading.enumerate() if thread.name == "fi_shim-state")
fi_shim.deactivate()
thread.join()
if (child := os.fork()) == 0:
    os._exit(len(count()[0]) - 1)
print(json.dumps([os.wait()[1], count()[0]]))
"""
    done = host.run("-c", COUNT_WHILE_FORKING + HEADER + code, FI_SHIM_STATE_DIR=str(folder))
    assert json.loads(done.stdout) == [0, ["MainThread"]]


def test_rejections_are_written_every_few_seconds_and_at_exit(host: Any, folder: Path) -> None:
    code = """
from fi_shim.patches.validator import REJECTIONS
from fi_shim.state import heartbeat, writing
REJECTIONS.total += 3
assert content()["counts"]["rejections"] == 0  # nothing is written on the hot path
heartbeat.PERIOD_S = 0.01
writing.STATE_FILE.keep_alive()
until(lambda: content()["counts"]["rejections"] == 3)
os.utime(next(FOLDER.glob("*.json")), (0, 0))
until(lambda: next(FOLDER.glob("*.json")).stat().st_mtime > 0)  # a sign of life without news
next(FOLDER.glob("*.json")).unlink()
until(lambda: list(FOLDER.glob("*.json")))
writing.STATE_FILE._heartbeat.stop()
REJECTIONS.total += 4
if os.fork() == 0:
    assert content()["counts"]["rejections"] == 0
    os._exit(0)
print(json.dumps(os.wait()[1]))
"""
    assert run(host, folder, code) == 0
    (kept,) = [file for path in folder.glob("*.json") if (file := json.loads(path.read_text()))["counts"]["rejections"]]
    assert kept["counts"]["rejections"] == kept["suppressed"]["rejections"] == 7


def test_a_reader_never_sees_half_a_file(host: Any, folder: Path) -> None:
    code = """
from fi_shim.state.writing import STATE_FILE
read, write = os.pipe()
if os.fork() == 0:
    os.read(read, 1)
    for _ in range(300):
        STATE_FILE.publish()
    os._exit(0)
os.write(write, b"x")
seen = 0
while os.waitpid(-1, os.WNOHANG) == (0, 0):
    for path in FOLDER.glob("*.json"):
        json.loads(path.read_text())
        seen += 1
print(json.dumps(seen))
"""
    assert run(host, folder, code) > 10


def test_a_write_that_hangs_holds_nobody_up(host: Any, folder: Path) -> None:
    code = """
from fi_shim.state import writing
from fi_shim.state.counts import COUNTS
writing.LOCK_LIMIT_S = 0.01
writing.STATE_FILE._lock.acquire()  # for ever, as by a thread in a write to a folder that is gone
COUNTS.abstained()
print(json.dumps(fi_shim.status()["counts"]["abstains"]))
"""
    assert run(host, folder, code) == 1


def test_a_folder_that_cannot_be_written_is_told_once(host: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code = (
        "import fi_shim; from fi_shim.state.counts import COUNTS; COUNTS.abstained(); COUNTS.abstained(); print(fi_shim.status()['active'])"
    )
    done = host.run("-c", code, FI_SHIM_STATE_DIR=str(tmp_path / "file" / "state"))
    assert done.stdout.strip() == "True"
    assert done.stderr.count("event=state_not_written") == 1


@pytest.mark.parametrize(
    "arguments", [["-m", "fi_shim"], ["-W", "default", "-m", "fi_shim"], [str(Path(sys.executable).with_name("fi-shim"))]]
)
def test_the_command_line_is_no_engine(host: Any, folder: Path, tmp_path: Path, arguments: list[str]) -> None:
    if arguments[0].endswith("fi-shim"):  # as the installed script, wherever it lies
        script = tmp_path / "fi-shim"
        script.write_text("import sys; from fi_shim.__main__ import main; sys.exit(main())")
        arguments = [str(script)]
    folder.mkdir()
    environment = host.environment(FI_SHIM_STATE_DIR=str(folder))
    done = subprocess.run([sys.executable, *arguments, "status"], env=environment, capture_output=True, text=True, check=True)
    assert "no state files" in done.stdout
    assert os.listdir(folder) == []  # noqa: PTH208


@pytest.mark.flashinfer
def test_ranks_tell_what_became_of_their_workspaces(host_with: Any, folder: Path) -> None:
    program = str(Path(__file__).parents[1] / "real_flashinfer" / "programs" / "ranks.py")
    too_large = ["trtllm", 2048, 4096, "bfloat16"]
    requests = [too_large, too_large, ["trtllm", 16, 4096, "bfloat16"]]
    devices = {"FI_SHIM_SIMULATE": "2x8GiB;1=100MiB", "FI_SHIM_STATE_DIR": str(folder)}
    host_with("0.7.4").run(program, "2", json.dumps(requests), **devices)
    files = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    ranks = {file["process"]["rank"]: file for file in files}
    assert sorted(ranks) == ["", "0", "1"]  # the first process forked the ranks
    for rank in ("0", "1"):
        assert ranks[rank]["counts"]["declines"] == {**dict.fromkeys(ranks[""]["counts"]["declines"], 0), "memory": 1, "remembered": 1}
        assert ranks[rank]["counts"]["votes"]["count"] == 2
        assert ranks[rank]["patches"]["creation"]["state"] == "applied"
        assert ranks[rank]["process"]["heartbeat"] is True
        assert "memory" in ranks[rank]["declines"][0]["reason"]
    assert ranks[""]["counts"]["votes"]["count"] == 0
