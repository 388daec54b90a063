"""A workspace as a transaction: each rank states its facts, probes, and all come to one verdict; when all have built, they vote again."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from fi_shim.seams import devices
from fi_shim.seams import driver as seam
from fi_shim.seams.rendezvous import RENDEZVOUS
from fi_shim.workspace import handles
from fi_shim.workspace.planning import device_granularities
from fi_shim.workspace.probe import probe
from fi_shim.workspace.vote import Record, Verdict, decide

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fi_shim.seams.reserve import Reserve
    from fi_shim.workspace.ballot.session import Session
    from fi_shim.workspace.handles import HandleType
    from fi_shim.workspace.request import WorkspaceShape
    from fi_shim.workspace.sizes import AllocationPlan, Regime
    from fi_shim.workspace.vote import Scalar, Vote

SHARED_BY_HANDLE: Final = "cuMemCreate"
SYMMETRIC: Final = "symm_mem"
MISTAKE: Final = "mistake"
"""Of a record's facts: the caller's mistake, which is no part of the request."""


@dataclass(frozen=True)
class Creation:
    """What is going to be built on this rank."""

    rank: int
    """In the group that votes."""
    flashinfer: str
    request: Mapping[str, Scalar]
    shape: WorkspaceShape | None
    problem: str
    """Why there is no shape."""
    regime_of: Callable[[Any], str]
    """Names the regime, given the release's table."""
    device_number: int | None
    """For releases that number devices by rank."""
    settings: Mapping[str, Scalar]
    """Settings that must be equal on all ranks."""
    abstains: str = ""
    """A reason to vote abstain, whatever is found."""
    objection: str = ""
    """A reason to vote no, whatever is found."""
    guarded: bool = False
    """Whether this rank can build under guard."""
    plan: AllocationPlan | None = None
    """What is going to be allocated, where that is known without a shape."""
    keeps_probe: bool = False
    """Whether what the probe creates is kept for the build."""
    make_ready: Callable[[], object] | None = None
    """What may take minutes before anything is allocated: the release's kernels."""


@dataclass(frozen=True)
class _Ground:
    """What a rank found out before it probes."""

    regime: Regime
    device: int
    handle_rule: str

    @property
    def shares_handles(self) -> bool:
        return bool(self.regime.table["allocator"] == SHARED_BY_HANDLE)


@dataclass(frozen=True)
class Preparation:
    """What came of the vote, and what this rank expects to be allocated; no plan where it did not get that far."""

    verdict: Verdict
    record: Record
    plan: AllocationPlan | None = None
    session: Session | None = None
    """In which the ranks voted."""
    under_guard: bool = False
    """All ranks build under guard: the session is open, and `commit` closes it."""
    reserve: Reserve | None = None
    """What the probe has kept; the caller releases what is not used."""

    def give_up(self, reason: str) -> None:
        """Do not build after all: the other ranks learn the reason, and what the probe kept is released."""
        self.drop_reserve()
        if self.session is not None:
            self.session.close(reason)

    def drop_reserve(self) -> None:
        """Release what the probe has kept."""
        if self.reserve is not None:
            self.reserve.release()


def prepare(creation: Creation, join: Callable[[Record], Session]) -> Preparation:
    """Both rounds of the vote. What a rank cannot find out makes it abstain; the vote itself is held all the same.

    Args:
        creation: what is going to be built.
        join: starts an attempt with this rank's facts and gives back the session, with the verdict on the facts.

    Returns:
        The verdict that all ranks share, with this rank's plan.
    """
    record, ground = _facts(creation)
    session = join(record)
    prepared = Preparation(session.verdict, record, session=session)
    guarded = session.verdict.guarded  # a bare verdict of the next round has no records
    try:
        if session.verdict.outcome == "yes" and ground is not None:
            prepared = replace(_probed(creation, record, ground, session), session=session)
            prepared = replace(prepared, verdict=session.round("probe", prepared.record))
    except BaseException as error:
        with contextlib.suppress(Exception):
            prepared.give_up(f"{type(error).__name__}: {error}")
        raise
    if not session.verdict.records and not prepared.verdict.declined:
        reason = "a fault of fi_shim kept this rank from reading what all ranks said"
        prepared.give_up(reason)
        return replace(prepared, verdict=Verdict("no", reason))
    if not prepared.verdict.declined and guarded:
        return replace(prepared, under_guard=True)
    prepared.drop_reserve()
    with contextlib.suppress(Exception):  # the verdict holds on all ranks, also if this one cannot say goodbye
        session.close()
    return prepared


def commit(prepared: Preparation, failure: tuple[str, int] | None) -> Verdict:
    """The last vote: whether all ranks keep what they built. Closes the session.

    Args:
        prepared: with an open session.
        failure: what went wrong on this rank and who is to blame for it (`Record.blame`), or None.
    """
    assert prepared.session is not None
    reason, blame = failure or ("", 0)
    record = replace(prepared.record, phase="commit", vote="yes" if failure is None else "no", reason=reason, blame=blame, facts={})
    try:
        return prepared.session.round("commit", record)
    finally:
        with contextlib.suppress(Exception):
            prepared.session.close()


def without(prepared: Preparation, lost: int, reason: str) -> Verdict:
    """The no where a rank was lost while all built: nobody waits for its vote. Closes the session; who votes learns the reason by that."""
    if prepared.session is not None:
        with contextlib.suppress(Exception):
            prepared.session.close(reason)
    records = tuple(
        replace(record, phase="commit", vote="absent" if record.rank == lost else "no", reason=reason if record.rank == lost else "stopped")
        for record in prepared.verdict.records
    )
    return Verdict("no", reason, records)


def prepare_alone(creation: Creation) -> Preparation:
    """The same for a world of one rank, which needs no vote."""
    creation = replace(creation, guarded=False, keeps_probe=False)  # nothing stands between FlashInfer and the driver to hand it out
    record, ground = _facts(creation)
    verdict = decide([record])
    if verdict.outcome != "yes" or ground is None:
        return Preparation(verdict, record)
    probed = _probed(creation, record, ground, None)
    return replace(probed, verdict=decide([probed.record]))


def _facts(creation: Creation) -> tuple[Record, _Ground | None]:
    record = Record(
        rank=creation.rank, vote="abstain", phase="facts", host=socket.gethostname(), flashinfer=creation.flashinfer,
        request=creation.request, settings=creation.settings, guarded=creation.guarded,
    )  # fmt: skip
    try:
        record = replace(record, device=devices.current_device())
        if creation.objection or creation.abstains or (creation.shape is None and creation.plan is None):
            vote: Vote = "no" if creation.objection else "abstain"
            facts = {MISTAKE: True} if creation.objection else {}
            return replace(record, vote=vote, reason=creation.objection or creation.abstains or creation.problem, facts=facts), None
        ground = _look_around(creation)
        record = replace(record, device=ground.device, regime=ground.regime.name)
        if reason := _unsuitable(ground):
            return replace(record, vote="no", reason=reason), None
        if not ground.shares_handles:
            return replace(record, vote="yes"), ground
        facts = handles.local_facts(ground.handle_rule, ground.device)
        return replace(record, vote="yes", facts=facts), ground
    except Exception as error:  # noqa: BLE001  # not knowing is not the same as no
        return replace(record, vote="abstain", reason=f"no facts: {type(error).__name__}: {error}"), None


def _look_around(creation: Creation) -> _Ground:
    from fi_shim.drift.knowledge import knowledge  # the nets are loaded where a workspace is built, not with the package

    known = knowledge(creation.flashinfer)
    release = known.required_release()
    regime = known.regime(creation.regime_of(release))
    by_rank = release.rules["device"] == "rank"
    device = creation.device_number if by_rank and creation.device_number is not None else devices.current_device()
    return _Ground(regime, device, release.rules["handle_type"])


def _unsuitable(ground: _Ground) -> str:
    """Why this release cannot use this device, or an empty text."""
    if ground.device != (current := devices.current_device()):
        return f"this release allocates on device {ground.device}, the rank's number, but the current device is {current}"
    if ground.regime.table["allocator"] == SYMMETRIC and RENDEZVOUS.out_of_step:
        return "an earlier rendezvous of torch's symmetric memory failed in this process; it takes a restart to use it again"
    if ground.regime.multicast != "none" and not _multicast_supported(ground.device):
        return "the device does not support NVLink multicast, which this release needs"
    return ""


def _multicast_supported(device: int) -> bool:
    driver = seam.bindings()
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED
    return bool(seam.checked(driver, "cuDeviceGetAttribute", attribute, device))


def _probed(creation: Creation, facts: Record, ground: _Ground, session: Session | None) -> Preparation:
    """This rank's record of the probe round, its plan, and what it kept. Without a verdict yet."""
    record, plan, undecided = replace(facts, phase="probe", vote="abstain", reason="", facts={}), None, decide([facts])
    records = (facts,) if session is None else session.verdict.records
    try:
        if creation.make_ready is not None and (failure := _make_ready(creation.make_ready, session)):
            return Preparation(undecided, replace(record, vote="no", reason=failure))
        handle_type = None
        if ground.shares_handles:
            try:
                handle_type = handles.agreed(ground.handle_rule, records)
            except ValueError as error:
                return Preparation(undecided, replace(record, vote="no", reason=str(error)))
        plan = creation.plan or _planned(creation, ground, handle_type)
        may_fall_back = ground.handle_rule == "group" and handle_type == "fabric" and len({r.host for r in records}) == 1
        finding = probe(plan, ground.device, handle_type, may_fall_back=may_fall_back, keep=creation.keeps_probe)
        record = replace(record, vote=finding.vote, reason=finding.reason, bytes_needed=finding.needed, bytes_free=finding.free)
        return Preparation(undecided, record, plan, reserve=finding.reserve)
    except Exception as error:  # noqa: BLE001  # a probe that cannot run is not "out of memory"
        reason = f"the probe could not run: {type(error).__name__}: {error}"
        return Preparation(undecided, replace(record, vote="abstain", reason=reason), plan)


def _planned(creation: Creation, ground: _Ground, handle_type: HandleType | None) -> AllocationPlan:
    assert creation.shape is not None
    return ground.regime.plan(creation.shape, device_granularities(ground.regime, ground.device, creation.shape.world_size, handle_type))


def _make_ready(make_ready: Callable[[], object], session: Session | None) -> str:
    """What made it fail, or an empty text. The other ranks see signs of life meanwhile."""
    try:
        with contextlib.nullcontext() if session is None else session.working("kernel build"):
            make_ready()
    except Exception as error:  # noqa: BLE001  # FlashInfer itself would fail next
        return f"FlashInfer's kernels cannot be built: {type(error).__name__}: {error}"
    return ""
