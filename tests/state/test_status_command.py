"""`fi-shim status` over state files of this process, of processes that ended, of other hosts, and of nobody."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import fi_shim as package
from fi_shim.state.processes import start_time, this_process
from fi_shim.state.reading import FORGOTTEN_AFTER_S, STALE_AFTER_S, read_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Write = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FI_SHIM_STATE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def write(folder: Path) -> Write:
    """A file as this process would write it, with changes: `process` and others; `age` in seconds."""

    def write(*, age: float = 0, process: dict[str, Any] | None = None, **changes: Any) -> Path:
        own = {**this_process(), "rank": "0", **(process or {})}
        state = {**package.status(), "active": True, "flashinfer": "0.7.4", "version": "0.1.0", **changes, "process": own}
        path = folder / f"{own['host']}-{own['pid']}.json".replace("/", "_").replace("\n", "_")
        path.write_text(json.dumps(state, default=str), encoding="utf-8")
        os.utime(path, (time.time() - age,) * 2)
        return path

    return write


def states(folder: Path) -> list[str]:
    return [file.state for file in read_folder(folder)]


def test_without_the_variable_it_says_what_to_set(fi_shim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FI_SHIM_STATE_DIR", raising=False)
    code, out, err = fi_shim("status")
    assert (code, out) == (2, "")
    assert "FI_SHIM_STATE_DIR" in err


@pytest.mark.parametrize(
    "arguments", [["--json", "--prometheus"], ["--expect", "-1"], ["--expect", "x"], ["--applied", "creation"], ["--applied", "nothing"]]
)
def test_wrong_use(fi_shim: Any, folder: Path, arguments: list[str]) -> None:
    assert fi_shim("status", *arguments)[0] == 2


def test_nobody(fi_shim: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fi_shim("status", "--expect", "0")[0] == 0
    assert fi_shim("status", "--expect", "1")[0] == 1
    code, out, err = fi_shim("status")
    assert (code, "no state files" in out, err) == (0, True, "")
    (folder / "file").write_text("")
    monkeypatch.setenv("FI_SHIM_STATE_DIR", str(folder / "file"))
    code, _, err = fi_shim("status")
    assert (code, "cannot be read" in err) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], 1),
        (["--json"], 1),
        (["--expect", "0"], 1),
        (["--expect", "1"], 1),
        (["--prometheus"], 0),
        (["--prometheus", "--expect", "1"], 1),
    ],
)
def test_a_folder_that_does_not_exist_is_bad_news(
    fi_shim: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: int
) -> None:
    """But for a collector of metrics, whose file would stay as it was: nobody runs, and that is what it gets."""
    monkeypatch.setenv("FI_SHIM_STATE_DIR", str(folder / "not" / "there"))
    code, out, err = fi_shim("status", *arguments)
    assert code == expected
    assert err.count("\n") == 1
    assert f"{folder / 'not' / 'there'} does not exist" in err
    if "--json" in arguments:
        assert json.loads(out)["processes"] == []
    assert ("# TYPE fi_shim_active gauge" in out) == ("--prometheus" in arguments)


def test_active_processes_are_counted(fi_shim: Any, write: Write) -> None:
    applied = {"state": "applied", "reason": "", "targets": [], "modules": [], "why": ""}
    write(patches={"creation": applied, "validator": {**applied, "state": "unknown code"}})
    parent = os.getppid()
    write(process={"pid": parent, "start_time": start_time(parent), "program": "", "rank": "1"}, active=False)
    code, out, _ = fi_shim("status", "--expect", "1")
    assert code == 0
    assert "2 running, 1 active" in out
    assert "validator: unknown code in rank 0" in out
    assert "1 of 2" in out
    code, _, err = fi_shim("status", "--expect", "2")
    assert code == 1
    assert "1 running processes are active, 2 expected" in err
    assert fi_shim("status", "--expect", "1", "--applied", "creation")[0] == 0
    assert fi_shim("status", "--expect", "1", "--applied", "creation", "--applied", "validator")[0] == 1
    code, out, _ = fi_shim("status", "--json", "--expect", "2")
    shown = json.loads(out)
    assert (code, shown["live"], shown["active"], shown["expected"]) == (1, 2, 1, 2)
    assert [process["process"]["rank"] for process in shown["processes"]] == ["0", "1"]


REASONS = {"pending": "SGLang is not imported yet", "unknown code": "its code is as in no table: " + "changed, " * 30}


@pytest.mark.parametrize("host", ["node7", "sglang-prefill-7c9f8d5b6c-x2x4q.inference.svc.cluster.example"])
def test_it_fits_a_line_of_120_characters(fi_shim: Any, write: Write, folder: Path, host: str) -> None:
    names = ("creation", "cutedsl", "sglang_forward", "sglang_fp32", "sglang_preflight", "validator")
    states = dict.fromkeys(names, "pending") | {"creation": "applied"}
    large = {**package.status()["counts"], "rejections": 1_234_567, "abstains": 1_000}
    for rank in range(8):
        patches = {name: {"state": state, "reason": REASONS.get(state, "")} for name, state in states.items()}
        patches["validator"] = {"state": "unknown code", "reason": REASONS["unknown code"]} if rank == 3 else {"state": "applied"}
        who = {"host": host, "pid": 4_194_300 - rank, "boot": "another", "rank": str(rank)}
        write(process=who, patches=patches, counts=large, flashinfer="0.6.16.post4", age=59)
    (folder / "odd.json").write_text("")
    code, out, _ = fi_shim("status")
    lines = out.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 120
    assert [line.split()[0] for line in lines[2:10]] == [*"01234567"]
    assert all(host[-7:] in line and ("2 of 6" in line) != (rank == 3) for rank, line in enumerate(lines[2:10]))
    assert "  cutedsl, sglang_forward, sglang_fp32, sglang_preflight: pending in all: SGLang is not imported yet" in lines
    assert [line for line in lines if line.startswith("  validator: unknown code in rank 3: its code")]
    assert "unreadable: odd.json" in lines


def test_a_pid_that_was_given_again_is_another_process(folder: Path, write: Write) -> None:
    write(process={"start_time": this_process()["start_time"] - 1})
    assert states(folder) == ["dead"]


def test_a_zombie_is_dead(folder: Path, write: Write) -> None:
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has taken notice
    assert start_time(child) is None
    write(process={"pid": child, "start_time": 1})
    assert states(folder) == ["dead"]
    os.waitpid(child, 0)


def test_a_fork_that_runs_another_program_is_dead(folder: Path, write: Write) -> None:
    write(process={"program": "/usr/bin/another"})
    assert states(folder) == ["dead"]


def test_processes_of_elsewhere_go_by_age(folder: Path, write: Write, fi_shim: Any) -> None:
    elsewhere = {"host": "node8", "pid": 7, "boot": "another"}
    write(process=elsewhere, age=STALE_AFTER_S - 30)
    patched = {"creation": {"state": "applied"}}
    write(process={"host": "container", "pid": 8, "pid_namespace": "pid:[1]"}, patches=patched, age=STALE_AFTER_S + 30)
    assert sorted(states(folder)) == ["live", "stale"]
    assert fi_shim("status", "--expect", "1")[0] == 0
    assert fi_shim("status", "--expect", "2")[0] == 1


def test_what_ended_long_ago_is_removed_and_what_runs_is_not(folder: Path, write: Write) -> None:
    old, patched = FORGOTTEN_AFTER_S + 60, {"creation": {"state": "applied"}}
    write(age=old)
    write(process={"pid": 1 << 22, "start_time": 5}, patches=patched, age=STALE_AFTER_S + 60)  # no such pid
    write(process={"pid": (1 << 22) + 1, "start_time": 5}, patches=patched, age=old)
    write(process={"pid": (1 << 22) + 2, "start_time": 5}, age=STALE_AFTER_S + 60)  # one of many short-lived helpers
    write(process={"host": "node8", "boot": "another"}, patches=patched, age=old)
    (folder / "notes.json").write_text("{}")
    assert sorted(states(folder)) == ["dead", "live", "unreadable"]
    assert len(list(folder.glob("*.json"))) == 3


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{}", '{"active": 1', '{"active": true, "process": {"pid": "x"}, "counts": {}}', "\x00\xff"]
)
def test_a_file_that_is_none_of_ours_does_no_harm(folder: Path, write: Write, fi_shim: Any, text: str) -> None:
    write()
    (folder / "odd.json").write_bytes(text.encode("latin-1"))
    assert sorted(states(folder)) == ["live", "unreadable"]
    for arguments in ([], ["--json"], ["--prometheus"]):
        assert fi_shim("status", *arguments, "--expect", "1")[0] == 0


def test_every_field_that_is_read_is_checked(folder: Path, write: Write) -> None:
    path = write()
    good = json.loads(path.read_text())
    for break_it in (
        lambda state: state["counts"].pop("abstains"),
        lambda state: state["counts"]["declines"].update(memory="many"),
        lambda state: state["counts"]["votes"]["within"].update({"soon": 1}),
        lambda state: state["process"].update(rank=None),
        lambda state: state.update(patches={"creation": None}),
    ):
        state = json.loads(json.dumps(good))
        break_it(state)
        path.write_text(json.dumps(state))
        assert states(folder) == ["unreadable"]


def test_prometheus_reads_it(fi_shim: Any, write: Write) -> None:
    counts = package.status()["counts"]
    counts["declines"] |= {"memory": 2, "a reason of a newer version": 9}
    counts |= {"abstains": 1, "rejections": 28_032, "drift_events": 3}
    counts["votes"] |= {"count": 3, "seconds": 1.5, "within": {**counts["votes"]["within"], "1.0": 2, "3.0": 3, "300.0": 3}}
    odd = 'no"de\\8\n'
    applied = {"state": "applied"}
    write(
        counts=counts,
        patches={"creation": applied, "validator": {"state": "displaced"}},
        process={"rank": "3"},
        drift={"state": "known release"},
    )
    write(process={"host": odd, "pid": 7, "boot": "another"})
    write(process={"pid": 1 << 22, "start_time": 5})  # dead
    code, out, _ = fi_shim("status", "--prometheus")
    assert code == 0
    families = {family.name: family for family in text_string_to_metric_families(out)}
    assert {name: family.type for name, family in families.items()} == {
        "fi_shim_info": "gauge", "fi_shim_active": "gauge", "fi_shim_patch_active": "gauge", "fi_shim_declines": "counter",
        "fi_shim_abstains": "counter", "fi_shim_rejections": "counter", "fi_shim_drift_events": "counter", "fi_shim_vote_seconds": "histogram",
    }  # fmt: skip
    own = {"host": socket.gethostname(), "pid": str(os.getpid()), "rank": "3"}

    def value(name: str, **labels: str) -> float:
        (found,) = [s.value for f in families.values() for s in f.samples if s.name == name and s.labels == {**own, **labels}]
        return found

    assert value("fi_shim_info", version="0.1.0", flashinfer="0.7.4", drift="known release") == 1
    assert value("fi_shim_patch_active", patch="creation") == 1
    assert value("fi_shim_patch_active", patch="validator") == 0
    assert value("fi_shim_declines_total", reason="memory") == 2
    assert value("fi_shim_declines_total", reason="other") == 0
    assert value("fi_shim_abstains_total") == 1
    assert value("fi_shim_rejections_total") == 28_032
    assert value("fi_shim_drift_events_total") == 3
    assert value("fi_shim_vote_seconds_bucket", le="1.0") == 2
    assert value("fi_shim_vote_seconds_bucket", le="+Inf") == value("fi_shim_vote_seconds_count") == 3
    assert value("fi_shim_vote_seconds_sum") == 1.5
    assert {s.labels["host"] for s in families["fi_shim_active"].samples} == {own["host"], odd}
    assert len(families["fi_shim_active"].samples) == 2  # the dead one is not told
    assert "newer version" not in out
