"""What is installed: metadata, wheel contents, the command line without torch, import cost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "drift"))
import trees

REPOSITORY = Path(__file__).parent.parent
RELEASES = 39


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(REPOSITORY)], check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """A Python with the wheel and its required dependencies only: no torch, no FlashInfer, no click."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True, capture_output=True)
    return python


def run(python: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "FI_SHIM"))}
    return subprocess.run([python, *arguments], capture_output=True, text=True, check=False, env={**environ, **variables}, cwd="/")


def test_wheel_contents_and_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = message_from_bytes(archive.read(next(n for n in names if n.endswith("METADATA"))))
        entry_points = archive.read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
    assert len([n for n in names if n.startswith("fi_shim/_compat/releases/")]) == RELEASES
    assert {"fi_shim/_compat/regimes/T4.toml", "fi_shim/_compat/patches/validator.toml", "fi_shim/py.typed"} <= set(names)
    assert not [n for n in names if n.startswith(("tests/", "tools/", "compat/"))]
    required = [r for r in metadata.get_all("Requires-Dist", []) if "extra ==" not in r]
    assert sorted(r.split(">")[0].split("<")[0].split(";")[0].strip() for r in required) == ["packaging", "tomli", "wrapt"]
    assert metadata["Requires-Python"] == ">=3.10"
    assert "fi-shim = fi_shim.__main__:main" in entry_points
    assert "[vllm.general_plugins]\nfi_shim = fi_shim_plugin:vllm\n" in entry_points
    assert "[sglang.srt.plugins]\nfi_shim = fi_shim_plugin:sglang\n" in entry_points
    assert {"fi_shim_plugin.py", "fi_shim/launch/site/sitecustomize.py"} <= set(names)


def test_the_wheel_finds_its_tables(bare: Path) -> None:
    code = "import fi_shim; p = fi_shim.plan('0.7.2', world_size=8, max_token_num=2048, hidden_dim=4096, dtype='float32'); print(p.total_bytes)"
    assert run(bare, "-c", code).stdout.strip() == "1080033280"


def test_an_editable_install_reads_the_checkouts_tables() -> None:
    from fi_shim.compatibility import folders, known_releases

    assert folders() == (REPOSITORY / "compat",)
    assert len(known_releases()) == RELEASES


def test_run_needs_no_more_than_the_package(bare: Path) -> None:
    code = "import sys, importlib.util; importlib.util.find_spec('flashinfer'); print(sys.modules['fi_shim'].status()['route'])"
    assert run(bare, "-m", "fi_shim", "run", "--", str(bare), "-c", code).stdout.strip() == "run"


def test_without_the_cli_extra_the_command_says_what_is_missing(bare: Path) -> None:
    done = run(bare, "-m", "fi_shim", "doctor")
    assert done.returncode == 2
    assert "pip install 'fi-shim[cli]'" in done.stderr


def test_the_command_line_works_without_torch(bare: Path, tmp_path: Path) -> None:
    subprocess.run([bare, "-m", "pip", "install", "--quiet", "click", "tabulate", "tqdm"], check=True, capture_output=True)
    planned = run(bare, "-m", "fi_shim", "plan", "--flashinfer-version", "0.7.2", "--world-size", "8", "--max-token-num", "2048",
                  "--hidden-dim", "4096", "--dtype", "float32", "--json")  # fmt: skip
    assert json.loads(planned.stdout)["total_bytes"] == 1_080_033_280
    doctor = run(bare, "-m", "fi_shim", "doctor", "--json")
    assert doctor.returncode == 1
    report = json.loads(doctor.stdout)
    assert report["problems"] == ["torch is not installed", "FlashInfer is not installed: there is nothing to patch"]
    assert report["patches"]["validator"]["state"] == "pending"
    text = run(bare, "-m", "fi_shim", "doctor")
    assert "FlashInfer is not installed" in text.stdout
    tree = trees.copy("0.7.4", tmp_path)
    verified = run(bare, "-m", "fi_shim", "verify", "--source", str(tree), "--json")
    assert (verified.returncode, json.loads(verified.stdout)["recognised_by"]) == (0, "files")
    trees.edit(tree, "comm/trtllm_ar.py", r"\baligned_size\b", "rounded", everywhere=True)  # so that its code must be run
    assert json.loads(run(bare, "-m", "fi_shim", "verify", "--source", str(tree), "--json").stdout)["dry_run"] == "equal"
    demo = run(bare, "-m", "fi_shim", "demo", "flood")
    assert demo.returncode == 1
    assert "flashinfer-python" in demo.stderr


def test_importing_is_cheap_and_light(bare: Path) -> None:
    heavy = ("torch", "flashinfer", "cuda", "tomllib", "asyncio", "fi_shim.drift.knowledge", "fi_shim.drift.dry_run")
    loaded = f"import fi_shim, sys; print([m for m in {heavy} if m in sys.modules])"
    assert run(bare, "-c", loaded).stdout.strip() == "[]"
    assert run(bare, "-m", "fi_shim.__main__", "--version", FI_SHIM="0").returncode == 0
