"""One call fails on one rank while all build, after the vote: no rank hangs, all raise and name the same culprit, nothing is left."""

from __future__ import annotations

import json
import time
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any

import pytest
from creation.faults import BACKENDS, CALLS_FILE, MOST, RELEASES, SIZES, Case, all_cases, cover, known_calls
from creation.outcomes import all_built
from creation.pool import LIMITS

if TYPE_CHECKING:
    from collections.abc import Callable

    from creation.pool import Team

pytestmark = pytest.mark.flashinfer

END_SECONDS = 5.0
TOLERATED = {
    "cuCtxSynchronize": "FlashInfer does not look at its answer",
    "cuCtxGetDevice": "FlashInfer only logs that the context is another device's",
    "cuDeviceGetAttribute": "an unknown attribute counts as unsupported in some places",
    "cudaSetDevice": "torch has set the device already",
}
ENVIRON = {"FI_SHIM_VOTE_TIMEOUT": "10"}


class Ranks:
    """A team in which one fault after the other happens; a new one when a rank did not come back."""

    def __init__(self, team: Callable[..., Team], release: str, size: int) -> None:
        self._start = lambda: team(size, release=release, environ=ENVIRON, limits={**LIMITS, "silence": 4.0})
        self.team = self._start()
        self.team.all("watch_builds")

    def start_anew(self) -> None:
        self.team.end()
        self.team = self._start()
        self.team.all("watch_builds")

    def finding(self, case: Case) -> str:
        """What is wrong with how a case ends, or an empty text."""
        calls = known_calls()[case.release][case.backend][case.call]
        self.team.all("reset")
        self.team.all("fail_in_build", only=(case.victim,), name=case.call, n=calls[case.last_rank] if case.last_call else 1, how=case.how)
        began = time.monotonic()
        futures = self.team.start("create", backend=case.backend)
        if wait(futures, timeout=END_SECONDS).not_done:
            stacks = self.team.stacks()
            self.start_anew()
            return f"hangs\n{stacks[-4000:]}"
        seconds = time.monotonic() - began
        return self._judged(case, [future.result() for future in futures]) or (f"takes {seconds:.1f} s" if seconds > END_SECONDS else "")

    def _judged(self, case: Case, results: list[dict[str, Any]]) -> str:
        outcomes = {result["outcome"] for result in results}
        if outcomes == {"built"} and case.call in TOLERATED:
            self.start_anew()  # FlashInfer loses the memory of what is dropped
            return ""
        if outcomes != {"declined"}:
            return f"ends as {[(result['outcome'], result['message'][:300]) for result in results]}"
        if any(result["verdict"] != results[0]["verdict"] for result in results):
            return f"different verdicts {[result['verdict']['reason'] for result in results]}"
        if f"rank {case.victim} (" not in results[0]["verdict"]["reason"]:
            return f"names somebody else: {results[0]['verdict']['reason']}"
        left = self.team.all("left")
        if any(one["own"] for one in left):
            return f"leaves {left}"
        if any(self.team.all("out_of_step")):
            self.start_anew()
        noise = [line for rank in self.team.ranks for line in rank.said().splitlines() if "ignored in" in line or "Destructor" in line]
        return f"says {noise[:3]}" if noise else ""


def check(team: Callable[..., Team], cases: list[Case]) -> None:
    for size in SIZES:
        own = [case for case in cases if case.size == size]
        if own:
            ranks = Ranks(team, own[0].release, size)
            findings = [f"{case}: {finding}" for case in own if (finding := ranks.finding(case))]
            assert not findings, "\n" + "\n".join(findings)
            ranks.team.all("reset")
            all_built(ranks.team.create())


CHOSEN = cover(all_cases()) if CALLS_FILE.exists() else []


def test_the_cover_is_small_and_has_every_call() -> None:
    assert len(CHOSEN) <= MOST
    assert {case.call for case in CHOSEN} == {case.call for case in all_cases()}
    assert {(case.release, case.backend) for case in CHOSEN} == {(case.release, case.backend) for case in all_cases()}


@pytest.mark.parametrize("release", RELEASES)
def test_a_call_fails_after_the_vote(team: Callable[..., Team], release: str) -> None:
    check(team, [case for case in CHOSEN if case.release == release])


@pytest.mark.parametrize("call", ["cuMemMap", "recvmsg", "lamport_initialize"])
def test_a_call_fails_among_eight_ranks(team: Callable[..., Team], call: str) -> None:
    ranks = Ranks(team, "0.7.2.post1", 8)
    for last_rank in (False, True):
        case = Case("0.7.2.post1", "trtllm", 8, last_rank, "code", call, last_call=False)
        assert not (finding := ranks.finding(case)), f"{case}: {finding}"


@pytest.mark.matrix
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("release", RELEASES)
def test_any_call_fails_after_the_vote(team: Callable[..., Team], release: str, backend: str) -> None:
    check(team, [case for case in all_cases() if (case.release, case.backend) == (release, backend)])


@pytest.mark.parametrize(
    "release", [pytest.param(release, marks=pytest.mark.matrix) if release in RELEASES[1:-1] else release for release in RELEASES]
)
def test_the_calls_of_a_build_are_the_known_ones(team: Callable[..., Team], release: str, request: pytest.FixtureRequest) -> None:
    """`--record-calls` writes them down."""
    found: dict[str, dict[str, list[int]]] = {}
    ranks = team(2, release=release)
    ranks.all("watch_builds")
    for backend in BACKENDS:
        all_built(ranks.create(backend=backend))
        first, last = ranks.all("calls_of_build")
        calls = sorted({*first, *last} - {"gather", "commit"})
        found[backend] = {call: [first.get(call, 0), last.get(call, 0)] for call in calls}
    if request.config.getoption("--record-calls"):
        known = known_calls() if CALLS_FILE.exists() else {}
        CALLS_FILE.write_text(json.dumps({**known, release: found}, indent=1, sort_keys=True) + "\n")
    assert found == known_calls()[release]
