"""Before a workspace is built, whoever builds it and however: facts, probe and vote; then all build, or all raise the same."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from fi_shim import log
from fi_shim.engines.sglang_forward import no_decline_here
from fi_shim.patches.after_creation import Audit
from fi_shim.patches.asked import Asked, read_arguments
from fi_shim.patches.definition import Patch
from fi_shim.seams.groups import NoElectorateError, find_electorate
from fi_shim.workspace.decline import WorkspaceDeclined
from fi_shim.workspace.transaction import Creation, prepare, prepare_alone
from fi_shim.workspace.vote import Record, Verdict, decide

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from fi_shim.compatibility import Release
    from fi_shim.patches.asked import Kind
    from fi_shim.patches.definition import Context
    from fi_shim.seams.groups import Electorate
    from fi_shim.settings import Settings
    from fi_shim.workspace.ballot.session import Session
    from fi_shim.workspace.ballot.transport import AllgatherTransport
    from fi_shim.workspace.transaction import Preparation
    from fi_shim.workspace.vote import Scalar

LEGACY: Final = "trtllm_create_ipc_workspace_for_all_reduce_fusion"
KEPT_DECLINES: Final = 16
_transports: Final[weakref.WeakKeyDictionary[Any, AllgatherTransport]] = weakref.WeakKeyDictionary()

DECLINES: Final[list[dict[str, Any]]] = []
"""The last declined requests of this process, for `status()`."""

_building = threading.local()
"""`yes` while FlashInfer's own code builds in this thread: its inner steps are not requests of their own."""
_said: Final[set[str]] = set()


def make_guard(kind: Kind, original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    """FlashInfer's constructor or creator, behind the vote. Everything but the vote is FlashInfer's."""
    switch, settings = context.record.switch, context.settings

    @functools.wraps(original, updated=())
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not switch.on or getattr(_building, "yes", False):
            return original(*args, **kwargs)
        audit = None
        try:
            declined, audit = _vote_on(kind, original, args, kwargs, settings)
        except Exception as error:  # noqa: BLE001  # peers cannot know: building alone would hang
            declined = _bare_decline(kind, error)
        if declined is not None:
            if kind != "legacy":
                args[0]._destroyed = True  # or the destructor of what was never built complains  # noqa: SLF001
            raise declined
        _building.yes = True
        try:
            built = original(*args, **kwargs)
        except Exception as error:
            if audit is not None:
                with contextlib.suppress(Exception):
                    audit.failed(error)
            raise
        finally:
            _building.yes = False
        refused = None
        if audit is not None:
            with contextlib.suppress(Exception):  # an audit that fails finds nothing; what was built stands
                refused = _audited(audit, built if kind == "legacy" else args[0])
        if refused is not None:
            raise refused
        return built

    return guarded


def _audited(audit: Audit, workspace: Any) -> WorkspaceDeclined | None:
    """Compare what was built with its plan; what to raise where all ranks gave it back."""
    verdict = audit.after(workspace)
    if verdict is None:
        return None
    try:
        return _declined(audit.what, verdict, audit.rank)
    except Exception as error:  # noqa: BLE001  # it has been given back: no reason to hand it out after all
        return _bare_decline(audit.kind, error)


def _stands_aside() -> bool:
    """Whether the engine that asks could not stand a decline where it is now."""
    reason = ""
    with contextlib.suppress(Exception):  # a fault here is no reason to leave the peers without our vote
        reason = no_decline_here()
        if reason:
            _say_once("not_voted", f"{reason}: FlashInfer builds without a vote")
    return bool(reason)


def _vote_on(
    kind: Kind, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], settings: Settings
) -> tuple[WorkspaceDeclined | None, Audit | None]:
    """What to raise, or None to build; and what to compare afterwards."""
    if _stands_aside():
        return None, None
    what, rank, audit = f"{kind} workspace", None, None
    try:
        asked = read_arguments(kind, original, args, kwargs)
        what = asked.what
        electorate = find_electorate(asked.group, asked.comm_backend, asked.world_size)
        rank = electorate.rank
        prepared = _prepared(asked, electorate, settings)
        verdict = prepared.verdict
    except NoElectorateError as error:
        with contextlib.suppress(Exception):
            _say_once("not_voted", f"{error}: FlashInfer builds without a vote")
        return None, None
    except Exception as error:  # noqa: BLE001  # peers hear nothing from us and give up: building alone would hang
        verdict = Verdict("no", f"fi_shim failed on this rank before it could vote: {type(error).__name__}: {error}")
    if verdict.outcome == "no":
        return _declined(what, verdict, rank), None
    with contextlib.suppress(Exception):  # the peers build now, and so must this rank, whatever happens to its log or its audit
        if verdict.outcome == "abstain":
            _say_once("preflight_skipped", verdict.reason)
        elif prepared.plan is not None and settings.on_drift != "ignore":
            audit = Audit(kind, what, electorate.rank, prepared.plan, _audit_vote(electorate, settings))
    return None, audit


def _audit_vote(electorate: Electorate, settings: Settings) -> Callable[[Record], Verdict] | None:
    """In strict mode, which is then so on all ranks: how they come to one verdict on what was built."""
    if settings.on_drift != "strict":
        return None

    def vote(record: Record) -> Verdict:
        if electorate.size == 1:
            return decide([record])
        with _join(electorate, record, settings) as session:
            return session.verdict

    return vote


def _prepared(asked: Asked, electorate: Electorate, settings: Settings) -> Preparation:
    creation = _creation(asked, electorate, settings)
    if electorate.size == 1:
        return prepare_alone(creation)
    return prepare(creation, lambda record: _join(electorate, record, settings))


def _creation(asked: Asked, electorate: Electorate, settings: Settings) -> Creation:
    from fi_shim.activation import flashinfer_version

    agreed: dict[str, Scalar] = {"preflight": settings.preflight, "on_drift": settings.on_drift}
    abstains = "FI_SHIM_PREFLIGHT=off" if settings.preflight == "off" else ""
    patch = "cutedsl" if asked.kind == "cutedsl" else PATCH.name
    if patch in settings.disable:
        agreed, abstains = {}, f"FI_SHIM_DISABLE names {patch} on this rank"
    return Creation(
        rank=electorate.rank,
        flashinfer=flashinfer_version(),
        request=asked.request,
        shape=asked.shape,
        problem=asked.problem,
        regime_of=functools.partial(_regime_name, asked),
        device_number=asked.device_number,
        settings=agreed,
        abstains=abstains,
        unsupported=asked.unsupported,
    )


def _regime_name(asked: Asked, release: Release) -> str:
    """The regime of this entry: the legacy creator's defaults and confidential computing allocate in their own ways."""
    if asked.kind == "mnnvl":
        return release.regime_name("mnnvl", confidential_computing=False)
    if not asked.use_symm_dev_mem:
        return release.rules["legacy_creator"]
    from flashinfer.comm import allreduce

    ask = getattr(allreduce, "is_confidential_compute", None) if asked.kind == "trtllm" else None
    return release.regime_name("trtllm", confidential_computing=bool(ask is not None and ask()))


def _join(electorate: Electorate, record: Record, settings: Settings) -> Session:
    from fi_shim.workspace.ballot.session import join
    from fi_shim.workspace.store import transport_of

    def waiting(missing: tuple[int, ...], seconds: float) -> None:
        log.event(
            "warning", "waiting_for_ranks", missing=",".join(map(str, missing)), seconds=round(seconds), hint="is fi_shim active there?"
        )

    transport = _transport_without_store(electorate.comm_backend) if electorate.group is None else transport_of(electorate.group)
    return join(transport, electorate.rank, electorate.size, record, arrival_limit=settings.vote_timeout, on_waiting=waiting)


def _transport_without_store(comm_backend: Any) -> AllgatherTransport:
    """The one transport over a communicator's own allgather: one that still waits for peers must not be asked a second time."""
    from fi_shim.workspace.ballot.transport import AllgatherTransport

    with contextlib.suppress(TypeError):  # an object that cannot be a weak key
        if (known := _transports.get(comm_backend)) is not None:
            return known
    allgather = _weakly(comm_backend)
    transport = AllgatherTransport(allgather, lambda text: _say_once("vote_without_store", text))
    with contextlib.suppress(TypeError):
        _transports[comm_backend] = transport
    return transport


def _weakly(comm_backend: Any) -> Callable[[str], Any]:
    """The backend's allgather, without keeping the backend alive."""
    try:
        reference = weakref.ref(comm_backend)
    except TypeError:
        return comm_backend.allgather  # type: ignore[no-any-return]

    def allgather(text: str) -> Any:
        backend = reference()
        if backend is None:
            raise RuntimeError("the communication backend is gone")
        return backend.allgather(text)

    return allgather


def _declined(what: str, verdict: Verdict, rank: int | None) -> WorkspaceDeclined:
    """The exception, told once (by the group's first rank that is there) and kept for `status()`."""
    error = WorkspaceDeclined(what, verdict)
    records = [{"rank": r.rank, "host": r.host, "vote": r.vote, "reason": r.reason} for r in verdict.records]
    DECLINES.append({"what": what, "reason": verdict.reason, "missing": list(verdict.missing), "records": records})
    del DECLINES[:-KEPT_DECLINES]
    present = [r.rank for r in verdict.records if r.vote != "absent"]
    speaks = rank is None or not present or rank == present[0]
    log.event("error" if speaks else "debug", "declined", what=what, reason=verdict.reason)
    return error


def _bare_decline(kind: str, error: Exception) -> WorkspaceDeclined:
    """A decline that needs nothing of ours to work."""
    text = f"fi_shim: declined the FlashInfer {kind} workspace: fi_shim failed on this rank: {type(error).__name__}: {error}"
    declined = WorkspaceDeclined.__new__(WorkspaceDeclined, text)
    declined.verdict, declined.what = Verdict.__new__(Verdict), f"{kind} workspace"
    vars(declined.verdict).update(outcome="no", reason=text, records=(), missing=())
    return declined


def _say_once(name: str, text: str) -> None:
    if (key := f"{name} {text}") not in _said:
        _said.add(key)
        log.event("warning", name, reason=text)


def _apply_to_allreduce(module: ModuleType, context: Context) -> str:
    context.record.replace(module.TRTLLMAllReduceFusionWorkspace, "__init__", lambda original: make_guard("trtllm", original, context))
    _point_to_guard(module, context)
    return "entries found"


def _apply_to_mnnvl(module: ModuleType, context: Context) -> str:
    context.record.replace(module.MNNVLAllReduceFusionWorkspace, "__init__", lambda original: make_guard("mnnvl", original, context))
    return "entries found"


def _apply_to_legacy(module: ModuleType, context: Context) -> str:
    context.record.replace(module, LEGACY, lambda original: make_guard("legacy", original, context))
    return "entries found"


def _point_to_guard(module: ModuleType, context: Context) -> str:
    """A module that imported the legacy creator, before we replaced it or after, shares its fate."""
    source = sys.modules.get("flashinfer.comm.trtllm_ar")
    if source is not None:
        context.record.follow(module, LEGACY, source)
    return "entries found"


PATCH: Final = Patch(
    name="creation",
    modules={
        "flashinfer.comm.trtllm_ar": _apply_to_legacy,
        "flashinfer.comm.trtllm_mnnvl_ar": _apply_to_mnnvl,
        "flashinfer.comm.allreduce": _apply_to_allreduce,
        "flashinfer.comm": _point_to_guard,
    },
    why="a rank that cannot allocate its workspace raises, and its peers wait in a collective until a watchdog kills the job, minutes later",
    how="all ranks probe and vote before FlashInfer's code builds; any no, and all raise WorkspaceDeclined",
    upstream="flashinfer/comm/mnnvl.py; 0.7.4 tells peers of three kinds of failure",
    plan="stays: FlashInfer does not ask whether the whole group can",
    stays_when_disabled=True,
)
