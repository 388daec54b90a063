"""Every function of fi_shim that a hook or a patch reaches, made to raise: no import fails, no rank hangs, and all ranks end alike.

The lists are discovered: what runs, in any thread, while a healthy team does the same.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any

import pytest
from creation.pool import LIMITS

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from creation.pool import Team

pytestmark = pytest.mark.flashinfer

ON_PURPOSE = "broken on purpose"  # as in rank_jobs
END_SECONDS = 6.0  # that an attempt may take
ENVIRON = {"FI_SHIM_VOTE_TIMEOUT": "1.2"}  # a slow name service does not use it up
SAMPLE = 8  # functions of each list in the everyday run; `-m matrix` breaks all
SEED = 3
SCENARIOS: dict[str, dict[str, Any]] = {
    "build": {"request": {}},
    "decline": {"request": {"each": {1: {"hidden_dim": 2048}}}},
    "abstain": {"request": {}, "environ": {"FI_SHIM_PREFLIGHT": "off"}},
}
PLACES = {"on rank 0": (0,), "on rank 1": (1,), "on all ranks": (0, 1)}
EXTENTS = ["sample", pytest.param("all", marks=pytest.mark.matrix)]


class Laboratory:
    """A team in which one function after the other is broken and mended; a new team where one did not come back."""

    def __init__(self, team: Callable[..., Team], environ: dict[str, str], **options: Any) -> None:
        self._team = team
        self._options = {"environ": {**ENVIRON, **environ}, "limits": LIMITS, **options}
        self.ranks: Team = team(2, **self._options)
        plain = team(2, environ={"FI_SHIM": "0"})
        assert [result["outcome"] for result in plain.create(keep=True)] == ["built", "built"]
        self.answers = plain.all("ask_validator")

    def start_anew(self) -> None:
        self.ranks.end()
        self.ranks = self._team(2, **self._options)

    def reached(self, job: str, keywords: list[dict[str, Any]]) -> list[str]:
        """Functions that run on any rank while all do a job."""
        self.ranks.all("afresh")
        found = self.ranks.all("reached", job=job, each={rank: {"keywords": own} for rank, own in enumerate(keywords)})
        return sorted({name for names in found for name in names})

    def finding(self, guarded: tuple[int, ...] = (0, 1), **request: Any) -> str:
        """What is wrong with an attempt in which a function is broken, or an empty text.

        A rank on which creation could not be patched at all is as one with FI_SHIM=0: the others name it, and it waits as without the shim.
        """
        began = time.monotonic()
        futures = self.ranks.start("create", keep=True, **request)
        wait([futures[rank] for rank in guarded], timeout=END_SECONDS)
        if 0 < len(guarded) < len(futures) and all(_names_a_rank_without_vote(futures[rank]) for rank in guarded):
            self.start_anew()
            return ""
        if wait(futures, timeout=END_SECONDS).not_done:
            told = [future.result()["message"].splitlines()[0] if future.done() else "does not come back" for future in futures]
            self.start_anew()
            return f"hangs: {told}"
        results = [future.result() for future in futures]
        outcomes = {result["outcome"] for result in results}
        if outcomes == {"built"}:
            answers = self.ranks.all("ask_validator")
            return "" if answers == self.answers else f"the validator answers {answers}, FlashInfer {self.answers}"
        if outcomes == {"declined"}:
            return ""
        if outcomes == {"raised"} and "FI_SHIM_PREFLIGHT" in self._options["environ"]:
            said = {result["message"] for result in results}
            if len(said) == 1 and said != {ON_PURPOSE}:
                return ""  # FlashInfer put it into words of its own on all ranks, which without preflight all are given
        seconds = time.monotonic() - began
        return f"ends differently after {seconds:.1f} s: {[(one['type'], one['message'][:200]) for one in results]}"

    def does_not_heal(self) -> str:
        """What is still wrong when the function is mended, at the second attempt at the latest; or an empty text."""
        told: list[str] = []
        for _ in range(2):
            self.ranks.all("reset")  # a decline is remembered, also one for a limit as short as here
            futures = self.ranks.start("create")
            if wait(futures, timeout=END_SECONDS).not_done:
                told.append("a rank does not come back")
                break
            results = [future.result() for future in futures]
            if {result["outcome"] for result in results} == {"built"}:
                return ""
            told += [result["message"].splitlines()[0] for result in results]
        self.start_anew()
        return f"does not heal: {told}"


def _names_a_rank_without_vote(future: Future[Any]) -> bool:
    return future.done() and "did not vote" in future.result()["message"]


def chosen(functions: list[str], extent: str) -> list[str]:
    return functions if extent == "all" or len(functions) <= SAMPLE else sorted(random.Random(SEED).sample(functions, SAMPLE))


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_function_that_raises_while_a_workspace_is_made(team: Callable[..., Team], scenario: str, where: str, extent: str) -> None:
    request, environ = SCENARIOS[scenario]["request"], SCENARIOS[scenario].get("environ", {})
    laboratory = Laboratory(team, environ)
    each = request.get("each", {})
    functions = laboratory.reached("create", [each.get(rank, {}) for rank in range(2)])
    assert len(functions) > 60
    findings = []
    for name in chosen(functions, extent):
        laboratory.ranks.all("afresh")
        laboratory.ranks.all("break_function", only=PLACES[where], name=name)
        if finding := laboratory.finding(**request):
            findings.append(f"{name}: {finding}")
        laboratory.ranks.all("mend_functions")
        if finding := laboratory.does_not_heal():
            findings.append(f"{name}: {finding}")
    assert not findings, "\n" + "\n".join(findings)


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("where", PLACES)
def test_a_function_that_raises_from_the_start(team: Callable[..., Team], where: str, extent: str) -> None:
    """Broken before fi_shim is activated: FlashInfer can still be imported, and creation ends as with any other fault."""
    laboratory = Laboratory(team, {"FI_SHIM_VOTE_TIMEOUT": "0.5"}, active=False)
    functions = laboratory.reached("activate_and_import", [{}, {}])
    assert len(functions) > 40
    findings = []
    for name in chosen(functions, extent):
        laboratory.start_anew()
        laboratory.ranks.all("break_function", only=PLACES[where], name=name)
        failures = laboratory.ranks.all("activate_and_import")
        if any(failures):
            findings.append(f"{name}: import fails: {failures}")
        elif finding := laboratory.finding(tuple(rank for rank, guarded in enumerate(laboratory.ranks.all("is_guarded")) if guarded)):
            findings.append(f"{name}: {finding}")
    assert not findings, "\n" + "\n".join(findings)
