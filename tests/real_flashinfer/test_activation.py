"""Activation and the fast path in fresh processes, on the oldest and the newest release with a logger, and the oldest of all."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "drift"))
import trees

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Host

pytestmark = pytest.mark.flashinfer


@pytest.mark.parametrize("version", ["0.6.9", "0.7.4"])
def test_orders_of_import_capture_activate_deactivate(version: str, host_with: Callable[[str], Host]) -> None:
    seen = host_with(version).program("orders")
    assert seen["failures"] == []
    assert seen["scripts"] > 30


@pytest.mark.parametrize("version", ["0.6.5", "0.7.4"])
def test_the_rejecting_path_compiles(version: str, host_with: Callable[[str], Host]) -> None:
    seen = host_with(version).program("compiled", FI_SHIM_LOG="error")
    assert seen["answers"] == [0.0]
    assert seen["fits"] == 2.0
    assert seen["graphs_for_40_counts"] <= 2  # one for the first count, one for any
    assert seen["graphs_for_40_repeats"] == 1
    assert seen["counted_while_compiled"] == 0
    assert seen["counted_eagerly"] == 1


def test_fi_shim_0_leaves_no_trace(host_with: Callable[[str], Host]) -> None:
    code = """
import sys, json
before = set(sys.meta_path)
import fi_shim, logging
import flashinfer.comm.allreduce as a
methods = [vars(a.TRTLLMAllReduceFusionWorkspace)[n].__code__.co_filename == a.__file__ for n in ("__init__", "destroy", "is_buffer_size_sufficient")]
print(json.dumps([set(sys.meta_path) - before == set(), methods, fi_shim.status()["active"], logging.getLogger("fi_shim").handlers]))
"""
    assert host_with("0.7.4").code(code, FI_SHIM="0") == [True, [True, True, True], False, []]


def test_a_disabled_patch_is_left_out_and_an_unknown_name_is_told(host_with: Callable[[str], Host]) -> None:
    done = host_with("0.7.4").run(
        "-c",
        "import fi_shim, flashinfer.comm; print(fi_shim.status()['patches']['validator']['state'])",
        FI_SHIM_DISABLE="validator,no_such_patch",
    )
    assert done.stdout.strip() == "disabled"
    assert "event=unknown_patch" in done.stderr
    assert "no_such_patch" in done.stderr


def test_one_line_when_active(host_with: Callable[[str], Host]) -> None:
    done = host_with("0.7.4").run("-c", "import fi_shim, flashinfer.comm, flashinfer.comm.allreduce")
    lines = [line for line in done.stderr.splitlines() if line.startswith("fi_shim[")]
    assert len(lines) == 1
    assert "event=active" in lines[0]
    assert "flashinfer=0.7.4" in lines[0]


def test_a_fault_of_ours_does_not_reach_the_import(host_with: Callable[[str], Host]) -> None:
    code = """
import fi_shim.patches.validator as v, json
def broken(*_):
    raise RuntimeError("ours")
v.recognise = broken
import flashinfer.comm, fi_shim
p = fi_shim.status()["patches"]["validator"]
print(json.dumps([p["state"], p["reason"], p["targets"]]))
"""
    assert host_with("0.7.4").code(code) == ["failed", "RuntimeError('ours')", []]


def test_a_release_that_only_its_version_hides_is_recognised(host_with: Callable[[str], Host]) -> None:
    code = """
import importlib.metadata as m
m.version = lambda name, real=m.version: "9.9.9" if name == "flashinfer-python" else real(name)
import flashinfer
flashinfer.__version__ = "9.9.9"
import fi_shim, flashinfer.comm
print(fi_shim.status()["drift"]["state"], fi_shim.status()["patches"]["validator"]["state"])
"""
    done = host_with("0.7.4").run("-c", code)
    assert done.stdout.strip() == "same code applied"
    assert done.stderr.count("event=release_recognised") == 1
    assert "as in 0.7.4" in done.stderr


def test_changed_code_is_told_loudly(host_with: Callable[[str], Host], tmp_path: Path) -> None:
    trees.edit(trees.copy("0.7.4", tmp_path), "comm/trtllm_ar.py", r"^BarrierFlagCount = 256", "BarrierFlagCount = 512")
    code = f"""
import fi_shim.drift.identity as identity, fi_shim.drift.knowledge as k, json, pathlib
k.installed_root = lambda: pathlib.Path({str(tmp_path)!r})
import flashinfer.comm, fi_shim
print(json.dumps(fi_shim.status()["drift"]))
"""
    done = host_with("0.7.4").run("-c", code)
    state = json.loads(done.stdout)
    assert state["state"] == "changed code"
    assert state["changes"] == ["flashinfer.comm.trtllm_ar.BarrierFlagCount changed (flashinfer/comm/trtllm_ar.py:380)"]
    assert done.stderr.count("event=changed_code") == 1


def test_tables_that_cannot_be_read_are_told_once_and_the_packaged_ones_hold(host_with: Callable[[str], Host], tmp_path: Path) -> None:
    (tmp_path / "releases").mkdir()
    (tmp_path / "releases" / "0.7.4.toml").write_text("not a table")
    code = "import fi_shim, flashinfer.comm, json; s = fi_shim.status(); print(json.dumps([s['drift'], s['regime'], s['patches']['validator']['state']]))"
    for overlay, named in ((tmp_path, "0.7.4.toml"), (tmp_path / "nowhere", "nowhere is not a folder")):
        done = host_with("0.7.4").run("-c", code, FI_SHIM_COMPAT=str(overlay))
        drift, regime, validator = json.loads(done.stdout)
        assert (drift["state"], regime, validator) == ("known release", {"trtllm": "T4", "mnnvl": "M3"}, "applied")
        assert named in drift["passed_over"][0]
        assert done.stderr.count("event=compat_unreadable") == 1
        assert named in done.stderr
