"""How the changes to SGLang's modules are applied, recognised and undone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from engines.driven import releases, version
from engines.endings import both
from packaging.version import Version

if TYPE_CHECKING:
    from collections.abc import Callable

    from creation.pool import Team

pytestmark = pytest.mark.flashinfer

RELEASE = "sglang-0.5.23"
PREFLIGHT = {
    "_preflight_check_workspace_memory",
    "_make_flashinfer_workspace_allocation_prop",
    "_flashinfer_trtllm_workspace_allocation_sizes",
    "_probe_cumem_create_sequence",
}
FP32 = {"_create_allreduce_fusion_workspace"}
FORWARD = {"ensure_workspace_initialized", "pre_initialize_workspaces"}


def ours(ranks: Team) -> set[str]:
    return {name for name, own in both(ranks, "own_code").items() if not own}


def states(ranks: Team) -> dict[str, str]:
    patches = ranks.all("status")[0]["patches"]
    return {name: patch["state"] for name, patch in patches.items() if name.startswith("sglang")}


@pytest.mark.parametrize("release", [RELEASE])
def test_only_what_is_needed_and_all_is_undone(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release)
    assert ours(ranks) == PREFLIGHT | FP32
    assert states(ranks) == {"sglang_preflight": "applied", "sglang_fp32": "applied", "sglang_forward": "not needed"}
    assert "event=engine_patched module=sglang.srt.layers.flashinfer_comm_fusion" in ranks.ranks[0].said()
    both(ranks, "deactivate")
    assert ours(ranks) == set()
    both(ranks, "activate")
    assert ours(ranks) == PREFLIGHT | FP32


def expected(release: str) -> dict[str, str]:
    """Why each change to this release is needed or not."""
    number, is_needed = version(release), {True: "applied", False: "not needed"}
    return {
        "sglang_preflight": is_needed[number >= Version("0.5.11")],
        "sglang_forward": is_needed[Version("0.5.10") <= number < Version("0.5.21")],
        "sglang_fp32": is_needed[number >= Version("0.5.14")],
    }


@pytest.mark.matrix
@pytest.mark.parametrize("release", releases("sglang", fixes=True))
def test_what_each_release_needs(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release)
    assert states(ranks) == expected(release)
    changed = {"sglang_preflight": PREFLIGHT, "sglang_forward": FORWARD, "sglang_fp32": FP32}
    there = both(ranks, "own_code").keys()
    assert ours(ranks) == {name for patch, state in expected(release).items() if state == "applied" for name in changed[patch]} & there
    patches = ranks.all("status")[0]["patches"]
    assert all(patches[name]["reason"].startswith(f"SGLang {version(release)}") for name in changed)
    assert {patches[name]["state"] for name in ("creation", "validator")} == {"applied"}
    assert "event=patch_not_applied" not in ranks.ranks[0].said()
    both(ranks, "deactivate")
    assert ours(ranks) == set()


@pytest.mark.parametrize("release", ["sglang-0.5.20"])
def test_where_forward_must_be_told_apart(engine: Callable[..., Team], release: str) -> None:
    assert ours(engine(release)) == PREFLIGHT | FP32 | FORWARD


@pytest.mark.parametrize("release", [RELEASE])
def test_the_shim_before_the_engine(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release)
    both(ranks, "import_again")
    assert ours(ranks) == PREFLIGHT | FP32


@pytest.mark.parametrize("release", [RELEASE])
def test_unknown_code_is_left_alone_and_said_once(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release, active=False)
    both(ranks, "change_code", name="_probe_cumem_create_sequence")
    both(ranks, "activate")
    assert ours(ranks) == FP32
    assert states(ranks)["sglang_preflight"] == "unknown code"
    said = ranks.ranks[0].said()
    assert said.count("event=patch_not_applied patch=sglang_preflight") == 1
    assert "_probe_cumem_create_sequence changed; SGLang's own preflight stays in force" in said


@pytest.mark.parametrize("name", ["sglang_preflight", "sglang_fp32"])
@pytest.mark.parametrize("release", [RELEASE])
def test_one_patch_can_be_switched_off(engine: Callable[..., Team], release: str, name: str) -> None:
    ranks = engine(release, environ={"FI_SHIM_DISABLE": name})
    assert states(ranks)[name] == "disabled"
    assert ours(ranks) == (FP32 if name == "sglang_preflight" else PREFLIGHT)
