"""How an attempt of two ranks of an engine may end."""

from __future__ import annotations

from concurrent.futures import wait
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from creation.pool import Team

PROMPT_SECONDS = 6.0  # for both ranks to come back; the machine may be busy
HANG_SECONDS = 3.0  # that a peer is given to come back; it never does
SHIM_OFF = {"FI_SHIM": "0"}


def both(ranks: Team, job: str, **keywords: Any) -> Any:
    """The answer that both ranks give, promptly."""
    futures = ranks.start(job, **keywords)
    late = wait(futures, timeout=PROMPT_SECONDS).not_done
    assert not late, f"{len(late)} of 2 ranks did not come back from {job}"
    first, second = (future.result() for future in futures)
    assert first == second, f"{job}: {first} and {second}"
    return first


def fusion_is_off(ranks: Team) -> None:
    """SGLang has given fusion up on both ranks, and what remains works."""
    assert both(ranks, "told") == {"unavailable": True, "moe": None, "attention": None}
    assert both(ranks, "forward") == "fell back"
    assert both(ranks, "all_reduce") == 2.0


def leaves_a_peer_waiting(ranks: Team, job: str, **keywords: Any) -> None:
    """One rank comes back, the other one does not."""
    done, late = wait(ranks.start(job, **keywords), timeout=HANG_SECONDS)
    assert (len(done), len(late)) in {(1, 1), (0, 2)}
