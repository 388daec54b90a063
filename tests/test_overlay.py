"""FI_SHIM_COMPAT: what of an overlay can be used counts first, what cannot is told and costs nothing but itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fi_shim as package
from fi_shim import compatibility, tables
from fi_shim.compatibility import CompatibilityError, UnknownReleaseError, check_overlay, known_releases, load_patch_functions
from fi_shim.drift.fitting import regimes
from fi_shim.drift.identity import identify
from fi_shim.workspace.sizes import load_regime

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGED = compatibility.folders("")[-1]
RULES = "[rules]\nhandle_type = 'rank'\ndevice = 'current'\nlegacy_creator = 'T2'\n"
REGIMES = "[regimes]\ntrtllm = 'T4'\nmnnvl = 'M3'\n"
T4 = (PACKAGED / "regimes" / "T4.toml").read_text(encoding="utf-8")
WRONG = [
    ("releases", "0.7.2", "version = [", "0.7.2.toml"),
    ("releases", "0.7.2", "\xff", "0.7.2.toml"),
    ("releases", "0.7.2", "version = '0.7.2'", "'regimes' is missing"),
    ("releases", "0.7.2", f"version = '0.7.1'\n{REGIMES}{RULES}", "its name says"),
    ("releases", "0.7.2", f"version = 2\n{REGIMES}", "expected text"),
    ("releases", "0.7.2", f"version = '0.7.2'\n{REGIMES}", "'rules' is missing"),
    ("releases", "0.7.2", f"version = '0.7.2'\n[regimes]\ntrtllm = 'T99'\nmnnvl = 'M3'\n{RULES}", "T99.toml: no such table"),
    ("releases", "notes", "", "not a version"),
    ("regimes", "T4", "name = 'T4'", "missing"),
    ("regimes", "T4", "\0", "T4.toml"),
    ("regimes", "T4", T4.replace('name = "T4"', 'name = "T5"', 1), "says name 'T5'"),
    ("regimes", "T4", T4.replace("times = 3", "thrice = 1"), "thrice"),
    ("regimes", "T4", T4.replace("times = 3", "times = 3, add = 1"), "not one operation"),
    ("releases", "0.7.2", f"version = '0.7.2'\n{REGIMES}{RULES.replace('rank', 'rnk')}", "handle_type is 'rnk', not rank or group"),
    ("releases", "0.7.2", f"version = '0.7.2'\n{REGIMES}{RULES.replace('current', 'any')}", "device is 'any'"),
    ("releases", "0.7.2", f'version = "0.7.2"\n[regimes]\ntrtllm = "T\\u0000"\nmnnvl = "M3"\n{RULES}', "no such table"),
    ("regimes", "T4", T4.replace('"cuMemCreate"', '"cuMemcreate"'), "allocator is 'cuMemcreate'"),
    ("regimes", "T4", T4.replace('multicast = "none"', 'multicast = "nome"'), "multicast is 'nome'"),
    ("regimes", "T4", T4.replace('backend = "trtllm"', 'backend = "trtlm"'), "backend is 'trtlm'"),
    ("patches", "validator", "read_in = '0.7.2'", "'functions' is missing"),
]
IN_AN_OVERLAY = [  # which is tried before it is used
    ("releases", "0.7.2", f"version = '0.7.2'\n{REGIMES.replace('T4', 'M3')}{RULES}", "regime 'M3' is one of mnnvl, not of trtllm"),
    ("releases", "0.7.2", f"version = '0.7.2'\n{REGIMES}{RULES.replace('T2', 'M3')}", "regime 'M3' is one of mnnvl, not of trtllm"),
    ("regimes", "T4", T4.replace("times = 3", "times = -3"), "lamport of -"),
    ("regimes", "T4", T4.replace('align = "allocation_granularity"', "align = 0"), "takes 0"),
]


def plan(version: str = "0.7.2") -> package.AllocationPlan:
    return package.plan(version, world_size=2, max_token_num=2048, hidden_dim=4096, dtype="bfloat16")


@pytest.fixture
def overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], Path]:
    """Puts a file into the overlay in force; its text's characters are its bytes."""

    def write(kind: str, name: str, text: str) -> Path:
        path = tmp_path / "overlay" / kind / f"{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("latin-1"))
        return path

    monkeypatch.setenv("FI_SHIM_COMPAT", str(tmp_path / "overlay"))
    return write


def told() -> str:
    return "\n".join(package.status()["drift"].get("passed_over", ()))


@pytest.mark.parametrize(("kind", "name", "text", "complaint"), [*WRONG, *IN_AN_OVERLAY])
def test_a_file_that_cannot_be_used_is_told_and_the_packaged_one_holds(
    overlay: Any, kind: str, name: str, text: str, complaint: str
) -> None:
    without = plan()
    path = overlay(kind, name, text)
    assert plan() == without
    assert load_patch_functions("validator")["TRTLLMAllReduceFusionWorkspace.destroy"]
    assert {path.stem for path in (PACKAGED / "releases").iterdir()} == set(known_releases())
    assert complaint in told()
    assert str(path) in told()
    path.unlink()
    assert plan() == without


@pytest.mark.parametrize(("kind", "name", "text", "complaint"), [*WRONG, *IN_AN_OVERLAY])
def test_all_files_are_looked_at_for_the_doctor(overlay: Any, kind: str, name: str, text: str, complaint: str) -> None:
    path = overlay(kind, name, text)
    assert [problem for problem in check_overlay() if str(path) in problem and complaint in problem]


@pytest.mark.parametrize(("kind", "name", "text", "complaint"), [row for row in WRONG if row[1] in {"0.7.2", "T4"}])
def test_a_packaged_table_that_is_wrong_is_an_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str, text: str, complaint: str
) -> None:
    shutil.copytree(PACKAGED, tmp_path / "compat")
    (tmp_path / "compat" / kind / f"{name}.toml").write_bytes(text.encode("latin-1"))
    for module in (tables, compatibility):
        monkeypatch.setattr(module, "folders", lambda: (tmp_path / "compat",))
    with pytest.raises(CompatibilityError) as caught:
        plan()
    assert complaint in str(caught.value)


def test_what_only_the_overlay_has_and_cannot_be_used_is_not_there(overlay: Any) -> None:
    overlay("releases", "0.9.0", "version = '0.9.0'")
    overlay("regimes", "T9", "name = 'T9'")
    assert "0.9.0" not in known_releases()
    assert "T9" not in {regime.name for regime in regimes()}
    with pytest.raises(UnknownReleaseError):
        plan("0.9.0")
    with pytest.raises(CompatibilityError, match=r"T9\.toml"):
        load_regime("T9")


def test_code_is_recognised_beside_a_file_that_cannot_be_used(overlay: Any, tmp_path: Path) -> None:
    trees = pytest.importorskip("fetch_flashinfer")
    overlay("releases", "0.7.4", "\xff")
    assert identify(trees.fetch("0.7.4")).release.version == "0.7.4"


def test_a_file_that_was_mended_counts_again(overlay: Any) -> None:
    path = overlay("releases", "0.7.2", "version = [")
    before = plan()
    assert str(path) in told()
    path.write_text(f"version = '0.7.2'\n[regimes]\ntrtllm = 'T1'\nmnnvl = 'M3'\n{RULES}")
    assert plan() != before
    assert told() == ""


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda _folder: None, "is not a folder that can be read (No such file or directory)"),
        (lambda folder: folder.write_text(""), "is not a folder that can be read (Not a directory)"),
        (
            lambda folder: (folder.mkdir(), (folder / "0.7.2.toml").touch()),
            "has 0.7.2.toml where only the folders releases, regimes, patches",
        ),
    ],
)
def test_an_overlay_that_is_none_is_told_and_the_packaged_tables_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, complaint: str
) -> None:
    without = plan()
    make(tmp_path / "overlay")
    monkeypatch.setenv("FI_SHIM_COMPAT", str(tmp_path / "overlay"))
    assert plan() == without
    assert f"FI_SHIM_COMPAT={tmp_path / 'overlay'} {complaint}" in told()
    assert check_overlay() == tuple(told().splitlines())


def test_an_empty_overlay_and_an_empty_variable_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (str(tmp_path), "", "  "):
        monkeypatch.setenv("FI_SHIM_COMPAT", value)
        plan()
        assert (check_overlay(), told()) == ((), "")


def test_one_line_a_process(host: Any, tmp_path: Path) -> None:
    code = """
import fi_shim, json
shape = dict(world_size=2, max_token_num=16, hidden_dim=4096, dtype="bfloat16")
print(json.dumps([fi_shim.plan("0.7.2", **shape).total_bytes, fi_shim.plan("0.7.1", **shape).total_bytes]))
"""
    done = host.run("-c", code, FI_SHIM_COMPAT=str(tmp_path / "nowhere"))
    assert json.loads(done.stdout) == host.code(code)
    assert done.stderr.count("\n") == 1
    assert f'event=compat_unreadable reason="FI_SHIM_COMPAT={tmp_path / "nowhere"} is not a folder' in done.stderr


def test_the_doctor_says_it(fi_shim: Any, overlay: Any) -> None:
    path = overlay("releases", "0.6.3", "version = [")  # which nothing else here would look at
    code, out, _ = fi_shim("doctor", "--json")
    assert code == 1
    assert [problem for problem in json.loads(out)["problems"] if str(path) in problem]
    assert f"problem: {path}" in fi_shim("doctor")[1]


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("nowhere")])
def test_what_is_there_and_cannot_be_read_is_told(overlay: Any, make: Any) -> None:
    path = overlay("releases", "0.7.2", "")
    path.unlink()
    without = plan()
    make(path)
    assert plan() == without
    assert str(path) in told()
