"""Before a workspace is built: each rank states its facts, probes, and all come to one verdict."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from fi_shim.seams import devices
from fi_shim.seams import driver as seam
from fi_shim.workspace import handles
from fi_shim.workspace.planning import device_granularities
from fi_shim.workspace.probe import probe
from fi_shim.workspace.vote import Record, Verdict, decide

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fi_shim.workspace.ballot.session import Session
    from fi_shim.workspace.request import WorkspaceShape
    from fi_shim.workspace.sizes import AllocationPlan, Regime
    from fi_shim.workspace.vote import Scalar

SHARED_BY_HANDLE: Final = "cuMemCreate"


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
    unsupported: Callable[[], str] | None = None
    """In place of a shape, where sizes are not known: why this rank cannot build, or an empty text. Nothing is probed then."""


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
    plan: AllocationPlan | None = None


def prepare(creation: Creation, join: Callable[[Record], Session]) -> Preparation:
    """Both rounds of the vote. What a rank cannot find out makes it abstain; the vote itself is held all the same.

    Args:
        creation: what is going to be built.
        join: starts an attempt with this rank's facts and gives back the session, with the verdict on the facts.

    Returns:
        The verdict that all ranks share, with this rank's plan.
    """
    record, ground = _facts(creation)
    session, plan = join(record), None
    verdict = session.verdict
    if verdict.outcome == "yes" and ground is not None:
        record, plan = _probed(creation, record, ground, verdict.records)
        verdict = session.round("probe", record)
    with contextlib.suppress(Exception):  # the verdict holds on all ranks, also if this one cannot say goodbye
        session.close()
    return Preparation(verdict, plan)


def prepare_alone(creation: Creation) -> Preparation:
    """The same for a world of one rank, which needs no vote."""
    record, ground = _facts(creation)
    verdict = decide([record])
    if verdict.outcome != "yes" or ground is None:
        return Preparation(verdict)
    record, plan = _probed(creation, record, ground, (record,))
    return Preparation(decide([record]), plan)


def _facts(creation: Creation) -> tuple[Record, _Ground | None]:
    record = Record(
        rank=creation.rank, vote="abstain", phase="facts", host=socket.gethostname(), flashinfer=creation.flashinfer,
        request=creation.request, settings=creation.settings,
    )  # fmt: skip
    try:
        if creation.unsupported is not None and not creation.abstains:
            refused = creation.unsupported()
            return replace(record, device=devices.current_device(), vote="no" if refused else "yes", reason=refused), None
        if creation.abstains or creation.shape is None:
            return replace(record, reason=creation.abstains or creation.problem), None
        ground = _look_around(creation)
        record = replace(record, device=ground.device, regime=ground.regime.name)
        if ground.regime.multicast != "none" and not _multicast_supported(ground.device):
            return replace(record, vote="no", reason="the device does not support NVLink multicast, which this release needs"), None
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


def _multicast_supported(device: int) -> bool:
    driver = seam.bindings()
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED
    return bool(seam.checked(driver, "cuDeviceGetAttribute", attribute, device))


def _probed(creation: Creation, record: Record, ground: _Ground, records: tuple[Record, ...]) -> tuple[Record, AllocationPlan | None]:
    """This rank's record of the probe round, and its plan."""
    record, plan = replace(record, phase="probe", vote="abstain", reason="", facts={}), None
    try:
        assert creation.shape is not None
        handle_type = None
        if ground.shares_handles:
            try:
                handle_type = handles.agreed(ground.handle_rule, records)
            except ValueError as error:
                return replace(record, vote="no", reason=str(error)), None
        granularities = device_granularities(ground.regime, ground.device, creation.shape.world_size, handle_type)
        plan = ground.regime.plan(creation.shape, granularities)
        may_fall_back = ground.handle_rule == "group" and handle_type == "fabric" and len({r.host for r in records}) == 1
        finding = probe(plan, ground.device, handle_type, may_fall_back=may_fall_back)
        return replace(record, vote=finding.vote, reason=finding.reason, bytes_needed=finding.needed, bytes_free=finding.free), plan
    except Exception as error:  # noqa: BLE001  # a probe that cannot run is not "out of memory"
        return replace(record, vote="abstain", reason=f"the probe could not run: {type(error).__name__}: {error}"), plan
