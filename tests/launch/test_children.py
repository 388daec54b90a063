"""The shim in children of every kind, and the parent's settings with it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

RUN = ("-m", "fi_shim", "run", "--")

# Starts one child of each kind and prints what each saw. `activation` stands under the guard: children do not run it.
PARENT = """
import multiprocessing

def child(pipe):
    pipe.send(look())

def seen(method):
    context = multiprocessing.get_context(method)
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(sending,))
    process.start()
    sending.close()
    answer = receiving.recv()
    process.join()
    return answer

if __name__ == "__main__":
    {activation}
    result = {{method: seen(method) for method in ("spawn", "forkserver", "fork")}}
    code = "import sys; sys.path.insert(0, sys.argv[1]); import script, json; print(json.dumps(script.look()))"
    plain = subprocess.run([sys.executable, "-c", code, os.path.dirname(__file__)], capture_output=True, text=True, check=True)
    result["subprocess"] = json.loads(plain.stdout)
    result["own"] = look()
    {afterwards}
    print(json.dumps(result))
"""
GUARDED = "import fi_shim"
EXPLICIT = "import fi_shim; from fi_shim.settings import Settings; fi_shim.activate(Settings(vote_timeout=7.0, log='error'))"


@pytest.fixture
def parent(python: Any, script: Callable[[str], str]) -> Callable[..., Any]:
    def start(activation: str, afterwards: str = "", *, before: str = "", run: bool = False, **variables: str) -> Any:
        source = before + PARENT.format(activation=activation, afterwards=afterwards)
        return python.run(*((*RUN, sys.executable) if run else ()), script(source), **variables)

    def result(*arguments: Any, **variables: Any) -> Any:
        done = start(*arguments, **variables)
        assert done.returncode == 0, done.stderr
        return {**json.loads(done.stdout.splitlines()[-1]), "stderr": done.stderr}

    return result


def test_an_import_under_the_guard_reaches_children(parent: Callable[..., Any]) -> None:
    seen = parent(GUARDED, FI_SHIM_VOTE_TIMEOUT="9")
    assert seen["spawn"] == seen["forkserver"] == ["multiprocessing", 9.0]
    assert seen["fork"] == seen["own"] == ["import", 9.0]
    assert seen["subprocess"] is None
    assert seen["stderr"] == ""


def test_settings_given_in_python_reach_children_before_their_main_module(parent: Callable[..., Any]) -> None:
    """Whose own `import fi_shim`, at its top level, would take those of the environment."""
    seen = parent(EXPLICIT, before="import fi_shim\n", FI_SHIM_VOTE_TIMEOUT="9", FI_SHIM_LOG="error")
    assert seen["spawn"] == seen["forkserver"] == ["multiprocessing", 7.0]
    assert seen["fork"] == seen["own"] == ["import", 7.0]
    assert seen["subprocess"] == ["import", 9.0]


def test_a_child_is_active_when_its_main_module_runs(parent: Callable[..., Any]) -> None:
    before = "if __name__ == '__mp_main__': print('active' if sys.modules['fi_shim'].status()['active'] else 'not', file=sys.stderr)\n"
    seen = parent(EXPLICIT, before=before)
    assert seen["stderr"].split().count("active") == 2
    assert "not" not in seen["stderr"].split()


def test_run_reaches_all(parent: Callable[..., Any]) -> None:
    seen = parent("pass", run=True, FI_SHIM_VOTE_TIMEOUT="9")
    assert seen.pop("stderr") == ""
    assert seen == {kind: ["run", 9.0] for kind in ("spawn", "forkserver", "fork", "subprocess", "own")}


def test_run_with_settings_given_in_python(parent: Callable[..., Any]) -> None:
    seen = parent(EXPLICIT, run=True, FI_SHIM_VOTE_TIMEOUT="9", FI_SHIM_LOG="error")
    assert seen["spawn"] == seen["forkserver"] == ["multiprocessing", 7.0]
    assert seen["subprocess"] == ["run", 9.0]


@pytest.mark.parametrize("run", [False, True])
def test_fi_shim_0_reaches_none_and_leaves_no_trace(parent: Callable[..., Any], run: bool) -> None:
    trace = "result['trace'] = [multiprocessing.spawn.get_preparation_data.__code__.co_filename == multiprocessing.spawn.__file__, len(sys.meta_path)]"
    plain = parent("pass", "import multiprocessing.spawn; " + trace)
    seen = parent(GUARDED, "import multiprocessing.spawn; " + trace, run=run, FI_SHIM="0")
    assert seen == plain


def test_fi_shim_0_set_for_children_counts_and_settings_given_against_it_count_more(parent: Callable[..., Any]) -> None:
    for switch in ("0", "No"):
        seen = parent(GUARDED + f"; os.environ['FI_SHIM'] = {switch!r}")
        assert (seen["spawn"], seen["forkserver"], seen["own"]) == (None, None, ["import", 300.0])
    seen = parent(EXPLICIT, FI_SHIM="off")
    assert (seen["spawn"], seen["forkserver"], seen["own"]) == (["multiprocessing", 7.0], ["multiprocessing", 7.0], ["import", 7.0])


def test_after_deactivate_children_start_as_without(parent: Callable[..., Any]) -> None:
    original = "import multiprocessing.spawn as m; original = m.get_preparation_data; "
    check = "assert m.get_preparation_data is original"
    seen = parent(original + EXPLICIT + "; assert m.get_preparation_data is not original; fi_shim.deactivate(); " + check)
    assert (seen["spawn"], seen["forkserver"], seen["own"]) == (None, None, None)
    again = parent(EXPLICIT + "; fi_shim.deactivate(); fi_shim.activate(Settings(vote_timeout=8.0))", FI_SHIM_LOG="error")
    assert again["spawn"] == ["multiprocessing", 8.0]


def test_what_somebody_put_around_ours_stays_and_carries_nothing_once_we_are_off(parent: Callable[..., Any]) -> None:
    wrap = """import multiprocessing.spawn as m, fi_shim
    ours = m.get_preparation_data
    def theirs(name): return ours(name)
    m.get_preparation_data = theirs
    fi_shim.deactivate()
    assert m.get_preparation_data is theirs
    assert 'fi_shim' not in theirs('x')
    fi_shim.activate()
    assert m.get_preparation_data is theirs"""
    seen = parent(wrap, "assert [*theirs('x')].count('fi_shim') == 1", FI_SHIM_LOG="error")
    assert seen["spawn"] == seen["forkserver"] == ["multiprocessing", 300.0]


def test_a_fork_server_that_has_the_package_already_takes_over_the_settings(parent: Callable[..., Any]) -> None:
    seen = parent("multiprocessing.set_forkserver_preload(['fi_shim']); " + EXPLICIT, FI_SHIM_LOG="error")
    assert seen["forkserver"] == ["multiprocessing", 7.0]


HOME = str(Path(__file__).parents[2])
FROM_A_FOLDER = f"home = {HOME!r}; sys.path.insert(0, home); import fi_shim"


def test_the_package_travels_by_the_parents_path(parent: Callable[..., Any]) -> None:
    seen = parent(FROM_A_FOLDER, PYTHONPATH="")
    assert seen["spawn"] == seen["forkserver"] == ["multiprocessing", 300.0]


def test_where_the_package_cannot_be_imported_children_start_without_and_one_line_says_so(
    parent: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "in_front").mkdir()
    (tmp_path / "in_front" / "fi_shim.py").write_text("raise RuntimeError('another one')")
    seen = parent(FROM_A_FOLDER + f"; sys.path.insert(0, {str(tmp_path / 'in_front')!r})", PYTHONPATH="")
    assert seen["spawn"] is seen["forkserver"] is None
    assert seen["stderr"].count("event=activation_failed error=RuntimeError('another one')") == 2
