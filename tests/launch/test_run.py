"""`fi-shim run`: what the command sees of it, and what its Python children pay."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fi_shim_plugin
from fi_shim.launch.run import SITE, environment, run
from fi_shim.settings import OFF, ON

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).parents[2]
RUN = ("-m", "fi_shim", "run", "--")
MODULES = "import sys; print(sorted(sys.modules))"
LOOK = "import importlib.util, sys; importlib.util.find_spec('flashinfer'); print('fi_shim' in sys.modules and sys.modules['fi_shim'].status()['active'])"


@pytest.mark.parametrize("arguments", [[], ["--"], ["--no-such-option"], ["--", "-x"]])
def test_without_a_command_it_is_wrong_use(fi_shim: Any, arguments: list[str]) -> None:
    assert run(arguments) == 2
    code, out, err = fi_shim("run", *arguments)
    assert (code, out) == (2, "")
    assert "usage: fi-shim run [--] COMMAND" in err


def test_a_command_that_cannot_be_started_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["no-such-command-anywhere"]) == 127
    assert "no-such-command-anywhere: No such file" in capsys.readouterr().err
    file = tmp_path / "not-executable"
    file.touch()
    assert run([str(file)]) == 126
    assert "Permission denied" in capsys.readouterr().err


def test_nothing_stands_between(python: Any) -> None:
    assert python.run(*RUN, "sh", "-c", "exit 7").returncode == 7
    assert python.run(*RUN, "sh", "-c", "kill -TERM $$").returncode == -15
    assert python.run(*RUN, "sh", "-c", "kill -PIPE $$; exit 3").returncode == -13  # this Python ignored it, the command does not
    command = [sys.executable, *RUN, "sh", "-c", "echo $$"]
    with subprocess.Popen(command, env=python.environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.read()) == process.pid


def test_options_of_the_command_are_the_commands(python: Any) -> None:
    shown = "import sys; print(sys.argv[1:])"
    for dashes in ([], ["--"]):
        done = python.run("-m", "fi_shim", "run", *dashes, sys.executable, "-c", shown, "--json", "--", "-h")
        assert done.stdout.strip() == "['--json', '--', '-h']"


@pytest.mark.parametrize("switch", ["0", "Off", " no "])
def test_fi_shim_0_leaves_the_environment_as_it_was(python: Any, switch: str) -> None:
    shown = "import json, os; print(json.dumps(dict(os.environ)))"
    plain = python.run("-c", shown, FI_SHIM=switch)
    assert json.loads(python.run(*RUN, sys.executable, "-c", shown, FI_SHIM=switch).stdout) == json.loads(plain.stdout)


def test_what_is_set() -> None:
    assert environment({}) == {"FI_SHIM": "1", "PYTHONPATH": str(SITE)}
    prepared = environment({"PYTHONPATH": f"/a{os.pathsep}/b", "FI_SHIM": "1"})
    assert prepared == {"FI_SHIM": "1", "PYTHONPATH": os.pathsep.join([str(SITE), "/a", "/b"])}
    assert environment(prepared) == prepared, "a run within a run"
    assert environment({"FI_SHIM": "0"}) == {"FI_SHIM": "0"}
    assert "PYTHONPATH" in environment({"FI_SHIM": "0", "FI_SHIM_SIMULATE": "2x1GiB"}), "simulated devices do not depend on FI_SHIM"


def test_a_child_that_never_imports_flashinfer_pays_for_one_small_file(python: Any) -> None:
    without = python.run("-c", MODULES)
    within = python.run(*RUN, sys.executable, "-c", MODULES)
    assert set(eval(within.stdout)) - set(eval(without.stdout)) == {"sitecustomize"}
    assert within.stderr == without.stderr == ""


def test_the_path_is_as_without_until_flashinfer_is_imported(python: Any) -> None:
    shown = "import sys; print(sys.path, [type(f).__name__ for f in sys.meta_path if 'Until' not in type(f).__name__])"
    assert python.run(*RUN, sys.executable, "-c", shown).stdout == python.run("-c", shown).stdout


def test_importing_flashinfer_activates_and_the_waiting_ends(python: Any, flashinfer_alone: Path) -> None:
    code = "import flashinfer, sys; print(flashinfer.imported, sys.modules['fi_shim'].status()['route'], [f for f in sys.meta_path if 'Until' in str(f)])"
    done = python.run(*RUN, sys.executable, "-c", code, path=(flashinfer_alone,))
    assert done.stdout.strip() == "True run []"
    assert done.stderr == ""


@pytest.mark.parametrize(("switch", "reached"), [("0", "False"), ("off", "False"), ("False", "False"), ("on", "True"), ("maybe", "True")])
def test_a_child_can_be_left_out(python: Any, switch: str, reached: str) -> None:
    look = "import importlib.util, sys; importlib.util.find_spec('flashinfer'); print('fi_shim' in sys.modules)"
    start = "subprocess.check_output([sys.executable, '-c', sys.argv[1]], text=True, env={**os.environ, 'FI_SHIM': sys.argv[2]})"
    done = python.run(*RUN, sys.executable, "-c", f"import os, subprocess, sys; print({start})", look, switch)
    assert done.stdout.strip() == reached
    assert done.stderr.count("event=setting_not_understood") == (switch == "maybe")


def test_all_that_read_the_switch_know_the_same_words() -> None:
    known = runpy.run_path(str(SITE / "sitecustomize.py"), run_name="looked at")
    assert set(known["OFF"]) == set(fi_shim_plugin.OFF) == OFF
    assert set(fi_shim_plugin.ON) == ON


@pytest.mark.parametrize(
    "source", ["import builtins; builtins.seen = __name__, __file__", "raise ValueError('theirs')", "import no_such_module", "1/"]
)
def test_the_users_own_sitecustomize_runs_as_without(python: Any, tmp_path: Path, source: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(source)
    code = "import builtins, sys; print(getattr(builtins, 'seen', None), getattr(sys.modules.get('sitecustomize'), '__file__', None))"
    without = python.run("-c", code, path=(tmp_path,))
    within = python.run(*RUN, sys.executable, "-c", code, path=(tmp_path,))
    assert within.stdout == without.stdout
    assert within.stderr.splitlines()[-1:] == without.stderr.splitlines()[-1:]
    assert python.run(*RUN, sys.executable, "-c", LOOK, path=(tmp_path,)).stdout.strip() == "True"


def test_a_fault_of_ours_costs_one_line(python: Any, tmp_path: Path, flashinfer_alone: Path) -> None:
    """Also where the finder behind ours is the only one that knows FlashInfer: a list changed under importlib's feet would lose it."""
    (tmp_path / "fi_shim").mkdir()
    (tmp_path / "fi_shim" / "__init__.py").write_text("raise RuntimeError('broken')")
    (tmp_path / "sitecustomize.py").write_text(
        f"""
import sys
from importlib.machinery import PathFinder
class Only:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{str(flashinfer_alone)!r}]) if name == "flashinfer" else None
sys.meta_path.insert(1, Only)
"""
    )
    environment_of_run = environment(python.environment(tmp_path))
    done = python.run("-c", "import flashinfer; print(flashinfer.imported)", **environment_of_run)
    assert done.stdout.strip() == "True"
    assert done.stderr.count("\n") == 1
    assert "event=activation_failed error=RuntimeError('broken')" in done.stderr


def test_a_closed_stderr_and_an_odd_environment_break_nothing(python: Any, tmp_path: Path) -> None:
    prepared = environment(python.environment(tmp_path, RANK="%d"))
    done = subprocess.run(["sh", "-c", f"{sys.executable} -c 'print(1)' 2>&-"], env=prepared, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_a_python_that_does_not_have_the_package_gets_it_when_it_imports_flashinfer(python: Any, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    import packaging

    borrowed = tmp_path / "borrowed"
    borrowed.mkdir()
    for name in ("packaging", "tomli"):  # an engine's environment has these
        if (folder := Path(packaging.__file__).parents[1] / name).is_dir():
            (borrowed / name).symlink_to(folder)
    code = f"import sys; before = {str(REPOSITORY)!r} in sys.path; {LOOK}; print(before, sys.path[-1])"
    launcher = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); from fi_shim.launch.run import run; sys.exit(run(sys.argv[1:]))"
    command = [sys.executable, "-c", launcher, str(tmp_path / "bare" / "bin" / "python"), "-c", code]
    environ = {**python.environment(), "PYTHONPATH": str(borrowed)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split() == ["True", "False", str(REPOSITORY)], done.stderr


def test_simulated_devices_come_along_also_under_fi_shim_0(python: Any, tmp_path: Path) -> None:
    code = "import importlib.util, sys; importlib.util.find_spec('torch'); fi = sys.modules['fi_shim']; print(fi.status()['active'], fi.testing.simulated())"
    simulated = {"FI_SHIM_SIMULATE": "2x1GiB", "FI_SHIM_SIMULATE_STATE": str(tmp_path), "CUDA_VISIBLE_DEVICES": "-1"}
    assert python.run(*RUN, sys.executable, "-c", code, FI_SHIM="0", **simulated).stdout.strip() == "False True"


@pytest.mark.parametrize("flag", ["-S", "-I", "-E"])
def test_flags_that_shut_it_out_are_as_documented(python: Any, flag: str) -> None:
    shown = "import sys; print([type(f).__name__ for f in sys.meta_path if 'Until' in type(f).__name__])"
    assert python.run(*RUN, sys.executable, flag, "-c", shown).stdout.strip() == "[]"


def test_the_help_names_it(fi_shim: Callable[..., tuple[int, str, str]]) -> None:
    assert "in every Python process" in " ".join(fi_shim("run", "--help")[1].split())
