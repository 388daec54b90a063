"""Let a release's own creation code run among stand-ins, and tell what it asked for. Leaves no trace in the process."""

from __future__ import annotations

import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fi_shim.drift.private import cuda_stand_ins, system_stand_ins
from fi_shim.drift.private.inert import StandIn
from fi_shim.drift.private.journal import RANK, Journal
from fi_shim.drift.private.modules import PrivateModules
from fi_shim.drift.private.torch_stand_in import Torch
from fi_shim.testing.loopback import LoopbackComm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONFIDENTIAL: Final = "FLASHINFER_CONFIDENTIAL_COMPUTE"
MNNVL_METADATA: Final = ("tp_size", "buffer_size_bytes", "workspace_size_bytes")
_DEFAULTS: Final = {"allocation_granularity": 2 << 20, "multicast_granularity": 512 << 20, "signal_pad_size": 2048}


@dataclass
class Outcome:
    """What one request led to. Sizes in bytes; JSON."""

    allocations: list[tuple[str, int, int]] = field(default_factory=list)
    """(allocator, requested, allocated), in order."""
    metadata: dict[str, Any] = field(default_factory=dict)
    multicast: str = "none"
    devices: list[int] = field(default_factory=list)
    refused: str = ""
    """The ValueError that FlashInfer answers such a request with."""
    failed: str = ""
    """Any other exception, with its place: the release asks for what the dry run does not know, or is broken."""
    answers: list[Any] = field(default_factory=list)
    """What the validator says to the questions given."""

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Outcome:
        """The opposite of `as_json`."""
        outcome = cls(**value)
        outcome.allocations = [(allocator, requested, allocated) for allocator, requested, allocated in outcome.allocations]
        return outcome


class ReleaseCode:
    """The creation code of one source tree.

    Args:
        root: folder that contains `flashinfer/`.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._journal = Journal()
        self._torch = Torch(self._journal)
        self._environment: dict[str, str] = {CONFIDENTIAL: "0", "HOME": "/dry-run"}
        driver, runtime = cuda_stand_ins.driver(self._journal), cuda_stand_ins.runtime()
        library = cuda_stand_ins.runtime_library(self._journal)
        bindings = StandIn("cuda.bindings", driver=driver, runtime=runtime)
        self._modules = PrivateModules(
            root,
            {
                **system_stand_ins.stand_ins(self._environment, library),
                **self._torch.modules(),
                "cuda": StandIn("cuda", bindings=bindings),
                "cuda.bindings": bindings,
                "cuda.bindings.driver": driver,
                "cuda.bindings.runtime": runtime,
                "pynvml": cuda_stand_ins.nvml(self._journal),
            },
            system_stand_ins.open_file,
        )
        self._watch(self._modules.load("flashinfer.comm.mnnvl"))
        self._allreduce = self._modules.load("flashinfer.comm.allreduce")
        self._legacy = self._modules.load("flashinfer.comm.trtllm_ar")

    def create(self, entry: str, request: Mapping[str, Any], questions: Sequence[Any] = ()) -> Outcome:
        """Create a workspace. Whatever the release raises is in the outcome.

        Args:
            entry: backend of the factory, or "legacy" for the deprecated creator with its defaults.
            request: arguments of `fi_shim.plan` but backend and version.
            questions: (fp32 mode, validator's arguments with a dtype's name in fourth place) to ask the workspace.
        """
        asked = dict(request)
        self._environment[CONFIDENTIAL] = "1" if asked.pop("confidential_computing", False) else "0"
        self._forget_caches()
        self._journal.restart(world_size=asked["world_size"], **{name: asked.pop(name, value) for name, value in _DEFAULTS.items()})
        try:
            workspace, metadata = self._create_legacy(asked) if entry == "legacy" else self._create(entry, asked)
        except ValueError as error:
            return Outcome(refused=str(error))
        except Exception as error:  # noqa: BLE001  # it is the release's code: anything may come
            return Outcome(failed=f"{type(error).__name__}: {error}{self._place(error)}")
        outcome = Outcome(list(self._journal.allocations), metadata, self._journal.multicast, sorted(self._journal.devices))
        if questions:
            outcome.answers = [self._answer(workspace, question) for question in questions]
        return outcome

    def _create(self, backend: str, asked: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        asked["dtype"] = self._torch.named(asked["dtype"])
        workspace = self._allreduce.create_allreduce_fusion_workspace(
            backend=backend, rank=RANK, comm_backend=LoopbackComm(asked["world_size"]), **asked
        )
        if backend == "mnnvl":
            return workspace, {name: getattr(workspace, name) for name in MNNVL_METADATA if hasattr(workspace, name)}
        return workspace, dict(workspace.metadata)

    def _create_legacy(self, asked: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        created = self._legacy.trtllm_create_ipc_workspace_for_all_reduce_fusion(
            RANK,
            asked["world_size"],
            asked["max_token_num"],
            asked["hidden_dim"],
            use_fp32_lamport=asked["dtype"] == "float32",
            create_metadata=True,
        )
        return created, dict(created[-1])

    def _answer(self, workspace: Any, question: Any) -> Any:
        is_fp32, (tp_size, tokens, hidden, dtype, *rest) = question
        workspace.metadata["use_fp32_lamport"] = is_fp32
        try:
            return workspace.is_buffer_size_sufficient(tp_size, tokens, hidden, self._torch.named(dtype), *rest)
        except Exception as error:  # noqa: BLE001  # an answer of another kind
            return f"{type(error).__name__}: {error}"

    def _place(self, error: BaseException) -> str:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(str(self._root))]
        return f" ({Path(frames[-1].filename).relative_to(self._root)}:{frames[-1].lineno})" if frames else ""

    def _watch(self, mnnvl: Any) -> None:
        """Note what SymmDeviceMemory is asked for."""
        memory, journal = mnnvl.SymmDeviceMemory, self._journal
        original = memory.__init__

        def noting(self: Any, buf_size: int, *args: Any, **kwargs: Any) -> None:
            journal.requested = buf_size
            original(self, buf_size, *args, **kwargs)

        memory.__init__ = noting

    def _forget_caches(self) -> None:
        for module in self._modules.loaded():
            for value in list(vars(module).values()):
                if callable(forget := getattr(value, "cache_clear", None)) and getattr(value, "__module__", "") == module.__name__:
                    forget()
