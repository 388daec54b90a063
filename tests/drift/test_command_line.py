"""`fi-shim verify` and `fi-shim record`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import trees

from fi_shim.compatibility import folders, load_release

pytestmark = pytest.mark.flashinfer


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return trees.copy("0.7.4", tmp_path / "tree")


def test_verify_is_0_without_and_1_with_drift(fi_shim: Any, tree: Path) -> None:
    code, out, _ = fi_shim("verify", "--source", str(tree))
    assert (code, "no drift (trtllm: T4, mnnvl: M3)" in out) == (0, True)
    trees.edit(tree, "comm/trtllm_ar.py", r"lamport_comm_size \* 3", "lamport_comm_size * 4")
    code, out, _ = fi_shim("verify", "--source", str(tree))
    assert code == 1
    assert "trtllm_create_ipc_workspace_for_all_reduce_fusion changed (flashinfer/comm/trtllm_ar.py:4" in out
    assert "+33,554,432 bytes" in out
    code, out, _ = fi_shim("verify", "--source", str(tree), "--json")
    report = json.loads(out)
    assert (code, report["drift"], report["release"]) == (1, True, "0.7.4")
    assert len(report["differences"]) >= 3


def test_wrong_use_is_2(fi_shim: Any, tmp_path: Path) -> None:
    assert fi_shim("verify", "--source", str(tmp_path / "nowhere"))[0] == 2
    code, _, err = fi_shim("verify", "--source", str(tmp_path))
    assert (code, "no flashinfer/comm/allreduce.py there" in err) == (2, True)
    assert fi_shim("record", "--source", str(tmp_path))[0] == 2


def test_code_that_is_not_python_is_bad_news(fi_shim: Any, tree: Path) -> None:
    trees.edit(tree, "comm/trtllm_ar.py", r"^BarrierFlagCount = 256", "BarrierFlagCount = = 256")
    assert fi_shim("verify", "--source", str(tree))[0] == 1


def test_record_writes_the_table_that_is_in_the_package(fi_shim: Any, tree: Path, tmp_path: Path) -> None:
    code, out, err = fi_shim("record", "--source", str(tree), "--output", str(tmp_path / "compat"))
    assert (code, err) == (0, "")
    written = Path(out.strip())
    assert written == tmp_path / "compat" / "releases" / "0.7.4.toml"
    assert written.read_text(encoding="utf-8") == (folders("")[-1] / "releases" / "0.7.4.toml").read_text(encoding="utf-8")


def test_a_nightly_is_recorded_in_an_overlay_and_known_then(
    fi_shim: Any, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlay = tmp_path / "overlay"
    monkeypatch.setenv("FI_SHIM_COMPAT", str(overlay))
    trees.edit(tree, "comm/trtllm_ar.py", r"\baligned_size\b", "rounded", everywhere=True)
    trees.label(tree, "0.7.5.dev20261101+cu130")
    code, out, err = fi_shim("record", "--source", str(tree))
    assert (code, err) == (0, "")
    assert Path(out.strip()) == overlay / "releases" / "0.7.5.dev20261101.toml"
    assert load_release("0.7.5.dev20261101").regimes == {"trtllm": "T4", "mnnvl": "M3"}
    report = json.loads(fi_shim("verify", "--source", str(tree), "--json")[1])
    assert (report["release"], report["recognised_by"], report["drift"]) == ("0.7.5.dev20261101", "files", False)


def test_a_tree_without_a_version_needs_one(fi_shim: Any, tree: Path, tmp_path: Path) -> None:
    next(tree.glob("*.dist-info")).rmdir()
    (tree / "flashinfer" / "_build_meta.py").unlink()
    code, _, err = fi_shim("record", "--source", str(tree), "--output", str(tmp_path))
    assert (code, "--release" in err) == (2, True)
    assert fi_shim("record", "--source", str(tree), "--output", str(tmp_path), "--release", "0.7.9")[0] == 0
    assert fi_shim("verify", "--source", str(tree))[0] == 0


def test_new_arithmetic_is_refused_with_what_a_regime_needs(fi_shim: Any, tree: Path, tmp_path: Path) -> None:
    trees.edit(tree, "comm/trtllm_ar.py", r"lamport_comm_size \* 3", "lamport_comm_size * 4")
    code, _, err = fi_shim("record", "--source", str(tree), "--output", str(tmp_path / "compat"))
    assert code == 1
    assert not list((tmp_path / "compat").rglob("*.toml"))
    assert "Nearest is T4 (T4.toml)" in err
    assert "hidden_dim=4096, dtype=bfloat16: requested [33554432, 2048, 134217728]" in err
    assert "residue [0, 0, 33554432]" in err


def test_a_folder_that_cannot_be_written_is_told(fi_shim: Any, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = fi_shim("record", "--source", str(tree), "--output", str(tmp_path / "file" / "compat"))
    assert (code, "FI_SHIM_COMPAT" in err) == (1, True)
