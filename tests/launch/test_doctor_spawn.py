"""`fi-shim doctor --spawn`: whether the shim is active in child processes, and by which route."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from fi_shim import doctor, report, settings
from fi_shim.launch import children
from fi_shim.launch.children import Child

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Host

RUN = ("-m", "fi_shim", "run", "--")
CHILDREN = "from fi_shim.launch.children import look; import json; print(json.dumps([c.as_dict() for c in look()]))"


def routes(done: Any) -> dict[str, str | None]:
    seen = json.loads(done.stdout.splitlines()[-1])
    assert all(child["active"] is (child["route"] is not None) and child["detail"] == "" for child in seen)
    return {child["kind"]: child["route"] for child in seen}


def test_an_import_reaches_what_multiprocessing_starts(python: Any) -> None:
    done = python.run("-c", CHILDREN)
    assert routes(done) == {"spawn": "multiprocessing", "forkserver": "multiprocessing", "subprocess": None}


def test_run_reaches_all(python: Any) -> None:
    done = python.run(*RUN, sys.executable, "-c", CHILDREN)
    assert routes(done) == {"spawn": "multiprocessing", "forkserver": "multiprocessing", "subprocess": "run"}


def test_fi_shim_0_reaches_none(python: Any) -> None:
    assert set(routes(python.run("-c", CHILDREN, FI_SHIM="0")).values()) == {None}


def test_children_that_do_not_start_or_answer_are_reported(python: Any) -> None:
    code = (
        "import sys, multiprocessing.spawn; sys.executable = '/no/such/python'; multiprocessing.spawn.set_executable('/no/such/python'); "
    )
    seen = json.loads(python.run("-c", code + CHILDREN).stdout.splitlines()[-1])
    assert [child["active"] for child in seen] == [False, False, False]
    assert all("it did not answer" in child["detail"] for child in seen)


def test_the_main_module_does_not_run_in_children(python: Any, tmp_path: Path) -> None:
    """It would bring the package along, as the command line's own does."""
    (tmp_path / "main.py").write_text(f"import sys; print('main runs', file=sys.stderr)\nif __name__ == '__main__':\n    {CHILDREN}\n")
    done = python.run(str(tmp_path / "main.py"))
    assert routes(done)["spawn"] == "multiprocessing"
    assert done.stderr.count("main runs") == 1


def test_the_main_module_is_left_as_it_was(python: Any) -> None:
    code = "import sys; main = sys.modules['__main__']; " + CHILDREN + "; assert sys.modules['__main__'] is main"
    assert python.run("-c", code).returncode == 0


SEEN = [
    Child("spawn", active=True, route="multiprocessing"),
    Child("forkserver", active=False, route=None, detail="no answer within 60 s"),
    Child("subprocess", active=False, route=None),
]
PROBLEMS = [
    "the shim is not active in a forkserver child: no answer within 60 s",
    "the shim is not active in a subprocess child; only `fi-shim run` reaches those",
]


@pytest.mark.parametrize(
    ("active", "switch", "problems"), [(True, "", PROBLEMS), (False, "1", PROBLEMS), (False, "0", []), (False, "", [])]
)
def test_a_child_without_the_shim_is_bad_news_where_it_is_active_or_asked_for(
    active: bool, switch: str, problems: list[str], fi_shim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {**report.status(), "active": active, "settings": settings.read({"FI_SHIM": switch}).as_dict(), "patches": {}}
    monkeypatch.setattr(doctor, "status", lambda: state)
    monkeypatch.setattr(children, "look", lambda: SEEN)
    code, out, _ = fi_shim("doctor", "--spawn", "--json")
    shown = json.loads(out)
    assert [problem for problem in shown["problems"] if "child" in problem] == problems
    assert code == bool(shown["problems"])
    assert shown["children"] == [child.as_dict() for child in SEEN]
    _, out, _ = fi_shim("doctor", "--spawn")
    assert [line.split() for line in out.splitlines() if line.startswith(("spawn ", "forkserver ", "subprocess "))] == [
        ["spawn", "active", "multiprocessing"], ["forkserver", "not", "active", "no", "answer", "within", "60", "s"], ["subprocess", "not", "active"],
    ]  # fmt: skip


def test_children_are_started_where_asked_for_only(fi_shim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "look", lambda: pytest.fail("started"))
    assert "children" not in json.loads(fi_shim("doctor", "--json")[1])


@pytest.mark.flashinfer
@pytest.mark.matrix
@pytest.mark.parametrize("version", ["0.6.0", "0.7.4"])
def test_on_a_real_flashinfer(version: str, host_with: Callable[[str], Host]) -> None:
    host = host_with(version)
    arguments = ["fi-shim", "doctor", "--spawn", "--json"]
    aided = f"""
import sys
from fi_shim.testing import import_aids
import_aids.install()
sys.argv = {arguments}
from fi_shim.cli import run
sys.exit(run())
"""
    done = host.run("-c", aided, check=False)
    assert (done.returncode, json.loads(done.stdout)["problems"]) == (1, PROBLEMS[1:])
    done = host.run(*RUN, sys.executable, "-c", aided, check=False)
    assert (done.returncode, json.loads(done.stdout)["problems"]) == (0, [])
