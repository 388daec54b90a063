"""A workspace as a transaction: what is declared no is raised on all ranks; what all agree to is built under guard, or as FlashInfer would."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fi_shim import log
from fi_shim.engines.sglang_forward import no_decline_here
from fi_shim.patches import voting
from fi_shim.patches.after_creation import Audit
from fi_shim.patches.asked import read_arguments
from fi_shim.patches.declining import bare_decline, decline, silence_destructor
from fi_shim.seams import devices
from fi_shim.seams.groups import NoElectorateError, find_electorate
from fi_shim.state.counts import COUNTS
from fi_shim.workspace.vote import Record, Verdict, decide

if TYPE_CHECKING:
    from collections.abc import Callable

    from fi_shim.patches.asked import Asked, Kind
    from fi_shim.patches.guarded_build import GuardedBuild
    from fi_shim.seams.building import Building
    from fi_shim.seams.groups import Electorate
    from fi_shim.settings import Settings
    from fi_shim.workspace.sizes import AllocationPlan
    from fi_shim.workspace.transaction import Preparation


def transact(
    kind: Kind,
    original: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    settings: Settings,
    known: tuple[Asked, AllocationPlan] | None = None,
) -> tuple[Any, Exception | None]:
    """Call FlashInfer's own `original`, if all ranks agree. What this raises itself is a fault of ours.

    Args:
        kind: which entry it is.
        original: FlashInfer's constructor, creator, or method.
        args: its arguments.
        kwargs: its keyword arguments.
        settings: in force.
        known: what is asked for and what that allocates, where it cannot be read off the arguments.

    Returns:
        What FlashInfer returned; and what to raise instead: WorkspaceDeclined on all ranks, with nothing of the attempt left, or FlashInfer's own.
    """
    decision = Decision()
    try:
        _vote_on(decision, kind, original, args, kwargs, settings, known)
    except Exception as fault:  # noqa: BLE001  # peers cannot know: building alone would hang
        decision.declined = bare_decline(kind, fault)
    except BaseException:
        silence_destructor(kind, args)
        raise
    built, error = None, decision.declined
    if error is None and decision.build is not None:
        try:
            built, error = _built_together(decision, original, args, kwargs)
        except Exception as fault:  # noqa: BLE001  # ours; the others hear of it now, if they have not
            error = decision.declined = bare_decline(kind, fault)
            if decision.prepared is not None:
                decision.prepared.give_up(f"fi_shim failed on this rank: {type(fault).__name__}: {fault}")
    elif error is None:
        built, error = _built_alone(decision, kind, original, args, kwargs)
    if error is not None and error is decision.declined:
        with contextlib.suppress(Exception):  # noise only
            silence_destructor(kind, args)
    decision.build = decision.declined = None
    try:
        return built, error
    finally:
        del built, error  # the frames that an exception keeps must not keep it


@dataclass
class Decision:
    """What came of the votes: `declined`, a `build` under guard, or neither: FlashInfer builds as it would."""

    what: str = "workspace"
    kind: str = ""
    electorate: Electorate | None = None
    prepared: Preparation | None = None
    declined: Exception | None = None
    build: GuardedBuild | None = None
    again: bool = False
    """Declined before, and remembered: engines ask for every layer."""
    audit: Audit | None = None

    def decline(self, verdict: Verdict) -> Exception:
        """What to raise where the verdict is a no."""
        rank = self.electorate.rank if self.electorate is not None else None
        return decline(self.kind, self.what, verdict, rank, voted=self.prepared is not None, again=self.again)


def _vote_on(
    decision: Decision,
    kind: Kind,
    original: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    settings: Settings,
    known: tuple[Asked, AllocationPlan] | None,
) -> None:
    from fi_shim.patches.guarded_build import GuardedBuild  # what an engine pays for only when it builds

    decision.kind, decision.what = kind, f"{kind} workspace"
    if _stands_aside():
        return
    try:
        asked, plan = known or (read_arguments(kind, original, args, kwargs), None)
        decision.what = asked.what
        electorate = voting.with_means(find_electorate(asked.group, asked.comm_backend, asked.world_size))
        decision.electorate = electorate
        verdict = _at_once(decision, asked, electorate)
        if verdict is None:
            decision.prepared = COUNTS.timed(voting.prepared, asked, electorate, settings, plan)
            verdict = decision.prepared.verdict
            _remember(decision, verdict)
    except NoElectorateError as error:
        with contextlib.suppress(Exception):
            log.once("not_voted", f"{error}: FlashInfer builds without a vote")
        return
    except Exception as error:  # noqa: BLE001  # peers hear nothing from us and give up: building alone would hang
        verdict = Verdict("no", f"fi_shim failed on this rank before it could vote: {type(error).__name__}: {error}")
    if verdict.outcome == "no":
        decision.declined = decision.decline(verdict)
        return
    assert decision.prepared is not None
    with contextlib.suppress(Exception):  # the peers build now, and so must this rank, whatever happens to its log or its audit
        if verdict.outcome == "abstain":
            COUNTS.abstained()
            log.once("preflight_skipped", verdict.reason)
        elif decision.prepared.plan is not None and plan is None and settings.on_drift != "ignore":
            decision.audit = Audit(kind, decision.what, electorate.rank, decision.prepared.plan, _audit_vote(electorate, settings))
    if decision.prepared.under_guard:
        strict = settings.on_drift == "strict"
        try:
            workspace = None if kind == "legacy" else args[0]
            objection = functools.partial(_objection, decision, strict=strict)
            decision.build = GuardedBuild(asked, electorate, decision.prepared, workspace, objection)
        except Exception as fault:
            decision.prepared.give_up(f"fi_shim failed on this rank: {type(fault).__name__}: {fault}")
            raise


def _at_once(decision: Decision, asked: Asked, electorate: Electorate) -> Verdict | None:
    """A no that needs no vote: while a stream captures, and what the group has declined before."""
    from fi_shim.patches import remembered

    own = Record(rank=electorate.rank, vote="no", phase="facts", request=asked.request)
    if electorate.rank < 0:
        return Verdict("no", "this process is not in the group that was passed")
    capturing = False
    with contextlib.suppress(Exception):  # a torch without CUDA captures nothing
        capturing = devices.is_capturing()
    if capturing:
        reason = f"a CUDA stream is being captured on rank {electorate.rank}: workspaces are made before capture"
        remembered.refuse(electorate, own, "", reason)
        return Verdict("no", reason, (replace(own, reason=reason),))
    verdict = remembered.recall(electorate, own)
    decision.again = verdict is not None
    return verdict


def _remember(decision: Decision, verdict: Verdict) -> None:
    from fi_shim.patches import remembered

    assert decision.electorate is not None
    assert decision.prepared is not None
    if decision.prepared.session is not None and decision.kind != "restore":  # an engine restores when it has made room
        with contextlib.suppress(Exception):  # then the next request votes again
            remembered.remember(decision.electorate, decision.prepared.session, decision.prepared.record, verdict)


def _built_together(
    decision: Decision, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Exception | None]:
    """What FlashInfer built, or its own refusal, or the decline where no rank keeps anything."""
    assert decision.build is not None
    built = decision.build.make(original, args, kwargs)
    if decision.build.refusal is not None:
        return None, decision.build.refusal
    if decision.build.verdict.declined:
        _remember(decision, decision.build.verdict)
        decision.declined = decision.decline(decision.build.verdict)
    return built, decision.declined


def _objection(decision: Decision, built: Any, build: Building, *, strict: bool) -> str:
    """Why what was built is not to be kept."""
    if decision.kind == "mnnvl" and not getattr(built, "mc_ptr", True):
        return "the multicast pointer is null: this device or driver has no NVLink multicast"
    if decision.audit is None:
        return ""
    difference = decision.audit.look(built, build.journal)
    return f"allocated otherwise than planned: {difference}" if difference and strict else ""


def _built_alone(
    decision: Decision, kind: Kind, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Exception | None]:
    """FlashInfer builds as it would; an audit, if there is one, follows."""
    audit = decision.audit
    try:
        built = original(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  # FlashInfer's own; the caller gets it
        if audit is not None and decision.electorate is not None and decision.electorate.group is not None:
            with contextlib.suppress(Exception):  # without a store, the peers are in FlashInfer's own allgather, not in a vote
                audit.failed(error)
        return None, error
    if audit is not None:
        with contextlib.suppress(Exception):  # an audit that fails finds nothing; what was built stands
            return built, _audited(decision, audit, built if kind == "legacy" else args[0])
    return built, None


def _audited(decision: Decision, audit: Audit, workspace: Any) -> Exception | None:
    """Compare what was built with its plan; what to raise where all ranks gave it back."""
    verdict = audit.after(workspace)
    return None if verdict is None else decision.decline(verdict)


def _stands_aside() -> bool:
    """Whether the engine that asks could not stand a decline where it is now."""
    reason = ""
    with contextlib.suppress(Exception):  # a fault here is no reason to leave the peers without our vote
        reason = no_decline_here()
        if reason:
            log.once("not_voted", f"{reason}: FlashInfer builds without a vote")
    return bool(reason)


def _audit_vote(electorate: Electorate, settings: Settings) -> Callable[[Record], Verdict] | None:
    """In strict mode, which is then so on all ranks: how they come to one verdict on what was built."""
    if settings.on_drift != "strict":
        return None

    def vote(record: Record) -> Verdict:
        if electorate.size == 1:
            return decide([record])
        with voting.join(electorate, record, settings) as session:
            return session.verdict

    return vote
