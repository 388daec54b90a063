"""What ranks do with a FlashInfer that no table describes, and with one that does otherwise than its table says."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fetch_flashinfer
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "drift"))
import trees

from fi_shim.compatibility import folders

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Host

pytestmark = pytest.mark.flashinfer

RANKS = str(Path(__file__).parent / "programs" / "ranks.py")
TRTLLM = ["trtllm", 2048, 4096, "bfloat16"]
FLOAT32 = ["trtllm", 2048, 4096, "float32"]
SMALL = 2 << 20  # tables of pointers and flags
NIGHTLY = "0.7.5.dev20261101+cu130"


@dataclass
class Run:
    ranks: list[dict[str, Any]]
    events: str

    @property
    def outcomes(self) -> list[list[str]]:
        return [[built["outcome"] for built in rank["built"]] for rank in self.ranks]

    @property
    def states(self) -> set[str]:
        return {rank["drift"]["state"] for rank in self.ranks}

    def count(self, event: str) -> int:
        return self.events.count(f"event={event} ")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A nightly whose code is 0.7.4's."""
    copied = tmp_path / "tree"
    shutil.copytree(fetch_flashinfer.fetch("0.7.4"), copied, ignore=shutil.ignore_patterns("__pycache__", "*.dist-info"))
    trees.edit(copied, "_build_meta.py", "0.7.4", NIGHTLY)
    return copied


@pytest.fixture
def two_ranks(host_with: Callable[[str | None], Host]) -> Callable[..., Run]:
    def run(tree: Path, *requests: list[Any], devices: str = "2x8GiB", **variables: str) -> Run:
        host = host_with(None)
        path = os.pathsep.join([str(tree), host.environment()["PYTHONPATH"]])
        environment = {"FI_SHIM_SIMULATE": devices, "PYTHONPATH": path, **variables}
        done = host.run(RANKS, "2", json.dumps(requests or [TRTLLM]), **environment)
        return Run(json.loads(done.stdout.splitlines()[-1]), done.stderr)

    return run


def test_the_same_code_is_that_release(tree: Path, two_ranks: Callable[..., Run]) -> None:
    run = two_ranks(tree)
    assert run.outcomes == [["built"], ["built"]]
    assert run.states == {"same code"}
    assert run.count("release_recognised") == 1  # by the process that imported FlashInfer
    assert not run.count("preflight_skipped")
    assert not run.count("drift")


def test_changed_code_that_behaves_the_same_is_that_regime(tree: Path, two_ranks: Callable[..., Run]) -> None:
    trees.edit(tree, "comm/trtllm_ar.py", r"\baligned_size\b", "rounded", everywhere=True)
    run = two_ranks(tree)
    assert run.outcomes == [["built"], ["built"]]
    assert run.states == {"equal behaviour"}
    assert "trtllm_create_ipc_workspace_for_all_reduce_fusion changed" in run.ranks[0]["drift"]["changes"][0]
    assert run.count("drift") == 2  # once a process
    assert not run.count("preflight_skipped")


def test_new_arithmetic_is_derived_and_declined_where_it_does_not_fit(tree: Path, two_ranks: Callable[..., Run]) -> None:
    trees.edit(tree, "comm/trtllm_ar.py", r"lamport_comm_size \* 3", "lamport_comm_size * 5")
    run = two_ranks(tree)
    assert run.outcomes == [["built"], ["built"]]
    assert run.states == {"derived sizes"}
    assert [rank["drift"]["audits"] for rank in run.ranks] == [[], []]
    taken = run.ranks[0]["built"][0]["taken"]
    assert taken == sum(size + (2 << 20) for size in (32 << 20, 0, 5 * (32 << 20))) + SMALL
    short = two_ranks(tree, devices="2x8GiB;1=100MiB")
    assert short.outcomes == [["WorkspaceDeclined"], ["WorkspaceDeclined"]]
    assert f"{taken - SMALL:,}" in short.ranks[0]["built"][0]["text"]


def test_what_a_dry_run_cannot_do_makes_the_ranks_abstain(tree: Path, two_ranks: Callable[..., Run]) -> None:
    trees.edit(tree, "comm/trtllm_ar.py", r"lamport_comm_size \* 3$", "lamport_comm_size * (3 + 0 * torch.cuda.mem_get_info()[0])")
    run = two_ranks(tree)
    assert run.outcomes == [["built"], ["built"]]
    assert run.count("preflight_skipped") == 2
    assert "no value for torch.cuda.mem_get_info" in run.events


@pytest.fixture
def wrong_table(tmp_path: Path) -> str:
    """An overlay that says of 0.7.4 what is true of 0.7.1: float32 buffers of half the size."""
    overlay = tmp_path / "overlay"
    (overlay / "releases").mkdir(parents=True)
    text = (folders("")[-1] / "releases" / "0.7.4.toml").read_text(encoding="utf-8")
    (overlay / "releases" / "0.7.4.toml").write_text(text.replace('trtllm = "T4"', 'trtllm = "T3"'), encoding="utf-8")
    return str(overlay)


def test_the_audit_warns_once_of_what_was_not_planned(two_ranks: Callable[..., Run], wrong_table: str) -> None:
    run = two_ranks(fetch_flashinfer.fetch("0.7.4"), FLOAT32, FLOAT32, TRTLLM, FI_SHIM_COMPAT=wrong_table)
    assert run.outcomes == [["built"] * 3] * 2
    assert run.count("drift") == 2  # once a process
    for rank in run.ranks:
        audits = rank["drift"]["audits"]
        assert len(audits) == 2
        assert "+33,554,432 bytes" in audits[0]["difference"]
        assert "'buffer_size': 67108864" in audits[0]["difference"]


def test_in_strict_mode_all_ranks_give_it_back(two_ranks: Callable[..., Run], wrong_table: str) -> None:
    run = two_ranks(fetch_flashinfer.fetch("0.7.4"), FLOAT32, TRTLLM, FI_SHIM_COMPAT=wrong_table, FI_SHIM_ON_DRIFT="strict")
    assert run.outcomes == [["WorkspaceDeclined", "built"]] * 2
    assert all(rank["built"][0]["left"] <= SMALL for rank in run.ranks)
    assert len({rank["built"][0]["text"] for rank in run.ranks}) == 1
    assert "allocated otherwise than planned" in run.ranks[0]["built"][0]["text"]


def test_or_nobody_looks(two_ranks: Callable[..., Run], wrong_table: str) -> None:
    run = two_ranks(fetch_flashinfer.fetch("0.7.4"), FLOAT32, FI_SHIM_COMPAT=wrong_table, FI_SHIM_ON_DRIFT="ignore")
    assert run.outcomes == [["built"]] * 2
    assert not run.count("drift")


def test_an_overlay_that_is_not_there_keeps_nobody_from_voting(two_ranks: Callable[..., Run], tmp_path: Path) -> None:
    run = two_ranks(fetch_flashinfer.fetch("0.7.4"), TRTLLM, FI_SHIM_COMPAT=str(tmp_path / "nowhere"))
    assert run.outcomes == [["built"]] * 2
    assert (run.count("preflight_skipped"), run.count("compat_unreadable")) == (0, 1)  # by the process that imported it


@pytest.mark.parametrize("release", ["0.6.9", "0.6.12", "0.7.2"])
def test_a_known_release_passes_its_audit_in_strict_mode(release: str, two_ranks: Callable[..., Run]) -> None:
    requests = [TRTLLM, FLOAT32, ["mnnvl", 64, 4096, "bfloat16"]]
    run = two_ranks(fetch_flashinfer.fetch(release), *requests, FI_SHIM_ON_DRIFT="strict", FLASHINFER_DISABLE_VERSION_CHECK="1")
    assert run.outcomes == [["built"] * 3] * 2
    assert [rank["drift"] for rank in run.ranks] == [
        {"state": "known release", "detail": f"the files are those of {release}", "audits": []}
    ] * 2
