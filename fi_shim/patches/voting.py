"""How the ranks of a request come to vote: what each says, and what the vote goes over."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from fi_shim import log
from fi_shim.workspace.transaction import Creation, Preparation, prepare, prepare_alone

if TYPE_CHECKING:
    from collections.abc import Callable

    from fi_shim.compatibility import Release
    from fi_shim.patches.asked import Asked
    from fi_shim.seams.groups import Electorate
    from fi_shim.settings import Settings
    from fi_shim.workspace.ballot.session import Session
    from fi_shim.workspace.ballot.transport import AllgatherTransport
    from fi_shim.workspace.sizes import AllocationPlan
    from fi_shim.workspace.vote import Record, Scalar

_transports: Final[weakref.WeakKeyDictionary[Any, AllgatherTransport]] = weakref.WeakKeyDictionary()


def prepared(asked: Asked, electorate: Electorate, settings: Settings, plan: AllocationPlan | None = None) -> Preparation:
    """The votes before the build. `plan`: what is going to be allocated, where a shape does not say."""
    creation = replace(creation_of(asked, electorate, settings), plan=plan)
    if electorate.size == 1:
        return prepare_alone(creation)
    return prepare(creation, lambda record: join(electorate, record, settings))


def with_means(electorate: Electorate) -> Electorate:
    """The electorate as it can vote: a group without a store (MPI) votes by a communicator's own allgather."""
    from fi_shim.workspace.store import transport_of

    if electorate.group is None:
        return electorate
    try:
        transport_of(electorate.group)
    except LookupError:
        backend = electorate.comm_backend or sys.modules["flashinfer.comm.mnnvl"].TorchDistBackend(group=electorate.group)
        return replace(electorate, group=None, comm_backend=backend)
    return electorate


def creation_of(asked: Asked, electorate: Electorate, settings: Settings) -> Creation:
    """What this rank knows of a request without asking a device."""
    from fi_shim.activation import flashinfer_version

    agreed: dict[str, Scalar] = {"preflight": settings.preflight, "on_drift": settings.on_drift}
    abstains = "FI_SHIM_PREFLIGHT=off" if settings.preflight == "off" else ""
    patch = "cutedsl" if asked.kind == "cutedsl" else "creation"
    disabled = patch in settings.disable
    if disabled:
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
        objection="" if disabled else objection(asked, electorate),
        guarded=electorate.group is not None and not disabled,
        keeps_probe=settings.preflight == "reserve" and electorate.group is not None,
        make_ready=None if {"mnnvl", "cutedsl"} & {asked.kind, asked.backend} else _kernels_to_build(),
    )


def objection(asked: Asked, electorate: Electorate) -> str:
    """What of a request cannot come true in this group, or an empty text."""
    if asked.world_size is not None and asked.world_size != electorate.size:
        return f"the group has {electorate.size} ranks, the workspace {asked.world_size}: pass the group of exactly the workspace's ranks"
    if asked.rank is not None and asked.rank != electorate.rank:
        return f"rank {asked.rank} was passed, but this process is rank {electorate.rank} of the group"
    return ""


def _kernels_to_build() -> Callable[[], object] | None:
    """FlashInfer's own function that builds or loads its kernels, unless it has."""
    get = getattr(sys.modules.get("flashinfer.comm.trtllm_ar"), "get_trtllm_comm_module", None)
    built = getattr(get, "cache_info", None)
    return get if built is None or not built().currsize else None


def _regime_name(asked: Asked, release: Release) -> str:
    """The regime of this entry: the legacy creator's defaults and confidential computing allocate in their own ways."""
    if "mnnvl" in {asked.kind, asked.backend}:
        return release.regime_name("mnnvl", confidential_computing=False)
    if not asked.use_symm_dev_mem:
        return release.rules["legacy_creator"]
    from flashinfer.comm import allreduce

    ask = getattr(allreduce, "is_confidential_compute", None) if asked.kind == "trtllm" else None
    return release.regime_name("trtllm", confidential_computing=bool(ask is not None and ask()))


def join(electorate: Electorate, record: Record, settings: Settings) -> Session:
    """Begin an attempt of the group."""
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
    transport = AllgatherTransport(allgather, lambda text: log.once("vote_without_store", text))
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
