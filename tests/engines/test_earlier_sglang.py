"""SGLang before 0.5.14: handle types that it overrides, and the creator of 0.5.9."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from engines.driven import driven, releases
from engines.endings import SHIM_OFF, both, leaves_a_peer_waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from creation.pool import Team

pytestmark = pytest.mark.flashinfer

OVERRIDE = "SGLANG_FLASHINFER_FORCE_POSIX_FD_TRANSPORT"
POSIX, FABRIC = 1, 8
ONE_SHORT = "2x8GiB;1=4MiB"


@pytest.mark.parametrize(("forced", "kind"), [("1", POSIX), ("0", FABRIC)])
@pytest.mark.parametrize("release", driven(releases("sglang", "0.5.10", "0.5.12"), daily=("sglang-0.5.11",)))
def test_the_probe_asks_for_what_sglang_lets_flashinfer_ask_for(engine: Callable[..., Team], release: str, forced: str, kind: int) -> None:
    ranks = engine(release, simulate="2x8GiB;fabric=on", environ={OVERRIDE: forced})
    both(ranks, "record_properties")
    if release != "sglang-0.5.10":
        assert not both(ranks, "pre_initialize")["unavailable"]
    assert both(ranks, "forward") == "fused"
    asked = ranks.all("recorded")[0]
    assert asked
    assert {line.partition("handle type ")[2].partition(",")[0] for line in asked} == {str(kind)}


@pytest.mark.matrix
@pytest.mark.parametrize("release", releases("sglang", before="0.5.11", fixes=True))
def test_all_is_well_in_forward(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release)
    legacy = release == "sglang-0.5.9"  # which never grows
    assert both(ranks, "forward") == "fused"
    first = {"backend": "legacy", "tokens": None, "fp32": None} if legacy else {"backend": "trtllm", "tokens": 2048, "fp32": False}
    assert both(ranks, "told") == {"unavailable": False, "attention": first}
    assert both(ranks, "forward", tokens=4096) == "fused"
    assert both(ranks, "told")["attention"] == (first if legacy else {**first, "tokens": 4096})
    both(ranks, "clean_up")
    assert both(ranks, "told") == {"unavailable": False, "attention": None}
    assert both(ranks, "forward") == "fused"
    assert both(ranks, "all_reduce") == 2.0


@pytest.mark.matrix
@pytest.mark.parametrize("release", ["sglang-0.5.10"])
def test_what_is_built_in_forward_only_is_never_declined(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release, simulate=ONE_SHORT)
    leaves_a_peer_waiting(ranks, "forward")
    assert ranks.result(ranks.ranks[1].start("status"))["patches"]["sglang_forward"]["reason"].endswith("they are never declined")


@pytest.mark.parametrize("release", ["sglang-0.5.9"])
def test_the_creator_of_old_ends_forward_on_both_ranks(engine: Callable[..., Team], release: str) -> None:
    ranks = engine(release, simulate="2x8GiB;1=100MiB")
    for rank in ranks.start("raised_in_forward", tokens=2048, hidden_dim=8192):
        assert ranks.result(rank).startswith("WorkspaceDeclined")
    assert both(ranks, "all_reduce") == 2.0
    leaves_a_peer_waiting(engine(release, simulate="2x8GiB;1=100MiB", environ=SHIM_OFF), "raised_in_forward", tokens=2048, hidden_dim=8192)
