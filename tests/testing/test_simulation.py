from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fi_shim.testing import simulation

ROOT = Path(__file__).parents[2]


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FI_SHIM")}
    environ |= {"FI_SHIM": "0", "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(ROOT)]), **variables}
    return subprocess.run(  # the programs are ours
        [sys.executable, "-Werror", "-c", code], env=environ, text=True, capture_output=True, timeout=120, check=False
    )


def test_devices_as_torch_sees_them(child: Any, outcome: Any) -> None:
    pytest.importorskip("torch")
    assert outcome(child("devices.py")) == "done\n"


def test_importing_the_package_imports_nothing_heavy() -> None:
    done = run("import sys, fi_shim.testing; print([name for name in ('torch', 'flashinfer', 'cuda', 'numpy') if name in sys.modules])")
    assert done.stdout == "[]\n", done.stderr


ACTIVATE = "import os; from fi_shim.testing import simulation; simulation.activate(os.environ);"


def test_children_share_the_machine_and_the_last_removes_it(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.driver")
    code = f"{ACTIVATE} import subprocess, sys; print(os.environ['FI_SHIM_SIMULATE_STATE'], flush=True);"
    code += f"subprocess.run([sys.executable, '-c', {ACTIVATE + 'print(simulation.required().machine.process)'!r}], check=True)"
    done = run(code, FI_SHIM_SIMULATE="2x1GiB", TMPDIR=str(tmp_path))
    folder, number = done.stdout.split()
    assert number == "2"  # the second process of the same machine
    assert Path(folder).parent == tmp_path
    assert not Path(folder).exists()
    assert done.stderr.count("event=simulated_devices devices=2x1GiB") == 2


@pytest.mark.parametrize(
    "variables", [{"FI_SHIM_SIMULATE": "many"}, {"FI_SHIM_SIMULATE": "2x1GiB", "FI_SHIM_SIMULATE_FAULTS": "call=cuNothing,error=exception"}]
)
def test_a_switch_that_is_not_understood_fails_loudly(variables: dict[str, str]) -> None:
    pytest.importorskip("cuda.bindings.driver")
    done = run(ACTIVATE, **variables)
    assert done.returncode == 1
    assert "ValueError: FI_SHIM_SIMULATE" in done.stderr


NOT_SIMULATED = """
import fi_shim, fi_shim.testing
asked = []
for ask in (fi_shim.testing.calls, fi_shim.testing.outstanding, lambda: fi_shim.testing.reserve_cached(0, 1)):
    try:
        ask()
    except RuntimeError as error:
        asked.append(str(error))
print(fi_shim.testing.simulated(), fi_shim.status()["active"], len(asked), len(set(asked)), asked[0])
"""


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"FI_SHIM_SIMULATE": "many"}, "FI_SHIM_SIMULATE: 'many' is not a number of devices"),
        ({"FI_SHIM_SIMULATE": "2x1GiB", "FI_SHIM_SIMULATE_FAULTS": "call=cuNothing,error=exception"}, "FI_SHIM_SIMULATE_FAULTS: "),
        ({"FI_SHIM_SIMULATE": "2x1GiB", "FI_SHIM_SIMULATE_STATE": "/dev/null/state"}, "Not a directory"),
    ],
)
def test_an_import_goes_on_without_and_whoever_asks_is_told_why(variables: dict[str, str], reason: str) -> None:
    """A rank on which the import failed would be one without the shim, and its peers would wait for it."""
    pytest.importorskip("cuda.bindings.driver")
    done = run(NOT_SIMULATED, FI_SHIM="1", **variables)
    assert done.stdout.startswith("False True 3 1 No CUDA devices are simulated in this process: "), done.stderr
    assert reason in done.stdout
    (line,) = [line for line in done.stderr.splitlines() if "event=not_simulated" in line]
    assert reason in line.replace('\\"', '"')


def test_the_doctor_says_that_nothing_is_simulated() -> None:
    done = run("import sys; from fi_shim.__main__ import main; sys.argv[1:] = ['doctor']; sys.exit(main())", FI_SHIM_SIMULATE="many")
    assert done.returncode == 1
    assert "problem: nothing is simulated: FI_SHIM_SIMULATE: 'many'" in done.stdout


def test_a_real_device_is_not_hidden_behind_simulated_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.bindings.driver")
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(simulation, "DEVICE_FILES", tmp_path)
    with pytest.raises(RuntimeError, match="nvidia0"):
        simulation.activate({"FI_SHIM_SIMULATE": "2x1GiB"})
    assert simulation._visible_device({"CUDA_VISIBLE_DEVICES": "-1"}) is None
    assert simulation._visible_device({"CUDA_VISIBLE_DEVICES": "0"}) == tmp_path / "nvidia0"


def test_without_a_simulation_the_questions_say_so() -> None:
    from fi_shim import testing

    assert not testing.simulated()
    for ask in (testing.calls, testing.outstanding, lambda: testing.reserve_cached(0, 1)):
        with pytest.raises(RuntimeError, match="FI_SHIM_SIMULATE"):
            ask()


def test_a_missing_cuda_runtime_is_named(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.driver")
    (tmp_path / "flashinfer_python-0.6.9.dist-info").mkdir()
    (tmp_path / "flashinfer_python-0.6.9.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: flashinfer-python\nVersion: 0.6.9\n"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from fi_shim.testing import import_aids;"
    done = run(code + "import_aids._folders = lambda _package: (); import_aids.install()")
    assert "ImportError: FlashInfer up to 0.6.12" in done.stderr
    assert "pip install nvidia-cuda-runtime" in done.stderr
