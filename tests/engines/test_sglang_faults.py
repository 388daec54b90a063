"""A call that fails on one rank of SGLang after the vote, while FlashInfer builds; with the shim, and without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from engines.driven import SGLANG_DAILY, driven, releases, shares_through_torch
from engines.endings import SHIM_OFF, both, fusion_is_off, leaves_a_peer_waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from creation.pool import Team

pytestmark = pytest.mark.flashinfer

LATER: dict[str, str] = {
    "cuMemCreate after the probe": "call=cuMemCreate,n=4,error=CUDA_ERROR_OUT_OF_MEMORY",
    "cuMemMap": "call=cuMemMap,error=CUDA_ERROR_OUT_OF_MEMORY",
    "export": "call=cuMemExportToShareableHandle,error=CUDA_ERROR_UNKNOWN",
    "import": "call=cuMemImportFromShareableHandle,error=CUDA_ERROR_UNKNOWN",
    "pointer table": "call=cuMemAlloc,error=CUDA_ERROR_OUT_OF_MEMORY",
    "lamport kernel": "call=lamport_initialize,error=exception",
}
EVERY_DAY = "cuMemMap"
NOT_ON_SYMM_MEM = ("export", "import", "pointer table")
RELEASES = releases("sglang", "0.5.11")


def later_faults() -> list[Any]:
    return [
        parameters
        for fault in LATER
        for parameters in driven(
            (one for one in RELEASES if not (shares_through_torch(one) and fault in NOT_ON_SYMM_MEM)),
            fault,
            daily=SGLANG_DAILY if fault == EVERY_DAY else (),
        )
    ]


@pytest.mark.parametrize(("release", "fault"), later_faults())
def test_one_rank_fails_while_flashinfer_builds(engine: Callable[..., Team], release: str, fault: str) -> None:
    ranks = engine(release, faults=f"rank=1,{LATER[fault]}")
    both(ranks, "pre_initialize")
    fusion_is_off(ranks)


@pytest.mark.parametrize(("release", "fault"), later_faults())
def test_without_the_shim_that_leaves_a_peer_waiting(engine: Callable[..., Team], release: str, fault: str) -> None:
    leaves_a_peer_waiting(engine(release, faults=f"rank=1,{LATER[fault]}", environ=SHIM_OFF), "pre_initialize")


@pytest.mark.parametrize("release", ["sglang-0.5.23"])
def test_fabric_on_one_rank_only(engine: Callable[..., Team], release: str) -> None:
    how: dict[str, Any] = {"simulate": "2x8GiB;fabric=on", "each": {1: {"FI_SHIM_SIMULATE": "2x8GiB;fabric=off"}}}
    ranks = engine(release, **how)
    both(ranks, "pre_initialize")
    fusion_is_off(ranks)
    leaves_a_peer_waiting(engine(release, **how, environ=SHIM_OFF), "pre_initialize")
