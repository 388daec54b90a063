"""Every patched callable inside torch.compile: applied where FlashInfer's own can be traced at all, without graphs of our making."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Host

pytestmark = pytest.mark.flashinfer

LEGACY = "trtllm_create_ipc_workspace_for_all_reduce_fusion"
TRTLLM = "TRTLLMAllReduceFusionWorkspace"
BUILDERS = {
    f"{TRTLLM}.__init__", "MNNVLAllReduceFusionWorkspace.__init__", f"flashinfer.comm.{LEGACY}",
    f"flashinfer.comm.allreduce.{LEGACY}", f"flashinfer.comm.trtllm_ar.{LEGACY}",
}  # fmt: skip
RESTORERS = {f"{owner}.checkpoint_restore" for owner in (TRTLLM, "MNNVLAllReduceFusionWorkspace")}
TRACED = {f"{TRTLLM}.destroy", f"{TRTLLM}.is_buffer_size_sufficient"}


@pytest.fixture(scope="module")
def seen() -> dict[str, dict[str, Any]]:
    return {}


@pytest.fixture(params=[pytest.param("0.6.18", marks=pytest.mark.matrix), "0.7.4"])
def pair(request: pytest.FixtureRequest, seen: dict[str, Any], host_with: Callable[[str], Host]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Without the shim, with the shim; each run once."""
    if request.param not in seen:
        host = host_with(request.param)

        def run(shim: str) -> Any:
            return host.program("compiled_all", FI_SHIM=shim, FI_SHIM_SIMULATE="1x4GiB", FI_SHIM_LOG="error")

        with ThreadPoolExecutor() as both:
            seen[request.param] = list(both.map(run, ("0", "1")))
    without, with_shim = seen[request.param]
    return without, with_shim


def test_no_patched_callable_is_left_out(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    without, with_shim = pair
    assert without["targets"] == []
    for target in with_shim["targets"]:
        assert any(target == name or target.endswith(f".{name}") for name in BUILDERS | RESTORERS | TRACED), target
    for seen in pair:
        assert set(seen["fullgraph"]) == set(seen["breaks"]) == BUILDERS | RESTORERS | TRACED


def test_what_flashinfer_can_trace_is_applied_under_fullgraph(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    without, with_shim = pair
    for mode in ("fullgraph", "breaks"):
        destroyed = with_shim[mode][f"{TRTLLM}.destroy"]
        assert (destroyed["outcome"], destroyed["left"]) == ("destroyed", [])
        assert destroyed["graphs"] == without[mode][f"{TRTLLM}.destroy"]["graphs"] == 1
        answered = with_shim[mode][f"{TRTLLM}.is_buffer_size_sufficient"]
        assert answered["outcome"] == [0.0]
        assert answered["graphs"] <= 2  # one for the first count of tokens, one for any


def test_what_flashinfer_cannot_trace_fails_alike_under_fullgraph(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    without, with_shim = pair
    for name in BUILDERS | RESTORERS:
        assert without["fullgraph"][name] == {"outcome": "Unsupported", "explained": False}, name
        assert with_shim["fullgraph"][name] == {"outcome": "Unsupported", "explained": True}, name
    assert without["fullgraph"][f"{TRTLLM}.is_buffer_size_sufficient"]["outcome"] == "Unsupported"  # its log call


def test_and_is_applied_where_graphs_may_break(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    without, with_shim = pair
    for name in BUILDERS:
        plain, ours = without["breaks"][name], with_shim["breaks"][name]
        assert plain["outcome"] == ours["outcome"] == "built", name
        assert ours["graphs"] <= plain["graphs"], name
        assert (plain["too_large"], ours["too_large"]) == ("RuntimeError", "WorkspaceDeclined"), name
    assert with_shim["breaks"][f"{TRTLLM}.__init__"]["has_limits"] is True
    for name in RESTORERS:
        plain, ours = without["breaks"][name], with_shim["breaks"][name]
        assert plain["outcome"] == ours["outcome"] == "restored", name
        assert ours["graphs"] <= plain["graphs"], name
        assert ours["created"] == 2 * plain["created"] > 0, name  # probed, then created


def test_dynamo_is_not_imported_for_it(host_with: Callable[[str], Host]) -> None:
    code = """
import fi_shim, flashinfer.comm.allreduce as a, sys, json, torch
held = a.TRTLLMAllReduceFusionWorkspace.__init__
before = "torch._dynamo" in sys.modules
import torch._dynamo
cells = [cell.cell_contents for cell in held.__closure__ if callable(cell.cell_contents)]
print(json.dumps([before, any(getattr(target, "_torchdynamo_disable", False) for target in cells)]))
"""
    assert host_with("0.7.4").code(code) == [False, True]
