"""What a rank can be told to do. Runs in a fork of the nursery; arguments and results are JSON."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import datetime as dt
import functools
import importlib
import os
import sys
import threading
import time
import types
import weakref
from typing import TYPE_CHECKING, Any

import fi_shim
from fi_shim import testing

if TYPE_CHECKING:
    from collections.abc import Callable

COMFORT = dt.timedelta(seconds=300)  # for torch's own collectives
CONNECT_SECONDS = 15.0
NOT_IN_AN_ENGINE = {"testing", "demo", "cli", "doctor", "__main__"}
groups: dict[str, Any] = {}
kept: list[Any] = []
hidden: dict[str, types.CodeType] = {}
said: list[str] = []


def host_store() -> int:
    import torch.distributed as dist

    groups["store"] = dist.TCPStore("127.0.0.1", 0, None, True, COMFORT, wait_for_workers=False)
    return int(groups["store"].port)


def join_group(port: int, size: int, subgroups: dict[str, list[int]]) -> None:
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    if "store" not in groups:
        groups["store"] = dist.TCPStore("127.0.0.1", port, None, False, COMFORT)
    dist.init_process_group("gloo", store=groups["store"], rank=rank, world_size=size, timeout=COMFORT)
    groups["world"] = dist.group.WORLD
    for name, ranks in subgroups.items():
        group = dist.new_group(ranks)
        if rank in ranks:
            groups[name] = group
    if testing.simulated():
        torch.cuda.set_device(rank)


def borrow_group(name: str) -> None:
    """Know a group by name that this process is not in, as torch hands it out."""
    import torch.distributed as dist

    groups[name] = dist.GroupMember.NON_GROUP_MEMBER


def leave_group() -> None:
    import torch.distributed as dist

    for name in set(groups) - {"store"}:
        del groups[name]
    kept.clear()
    dist.destroy_process_group()


def delete_keys_of_torch() -> None:
    """Let only the vote's keys stay in the store: gloo would connect to addresses of the group before."""
    for key in groups["store"].list_keys():
        if "fi_shim/" not in key:
            groups["store"].delete_key(key)


def connect() -> None:
    """Open the vote's own connections now: a host whose name service is slow takes seconds to accept one."""
    from fi_shim.workspace import store
    from fi_shim.workspace.ballot.operations import Read
    from fi_shim.workspace.ballot.session import _single

    for name in set(groups) - {"store"}:
        store.transport_of(groups[name]).run(_single(Read(("nothing",))), CONNECT_SECONDS, CONNECT_SECONDS)


def scale_limits(limits: dict[str, float]) -> None:
    from fi_shim.workspace.ballot import session

    module: Any = session
    module.Limits = functools.partial(module.Limits, **limits)


def create(**keywords: Any) -> dict[str, Any]:
    """Build a workspace, and tell how that went."""
    keep, keep_error = keywords.pop("keep", False), keywords.pop("keep_error", False)
    began, made, error = time.monotonic(), None, None
    try:
        made = _build(**keywords)
    except Exception as raised:  # noqa: BLE001  # it is the result
        error = raised
    result = {"began": began, "ended": time.monotonic(), **_told(error)}
    if made is not None:
        result["metadata"] = _metadata(made)
    if keep:
        kept.append(made)
    if keep_error:
        kept.append(error)
    return result


def ends_with_its_exception(**keywords: Any) -> dict[str, Any]:
    """Whether a workspace that was not made is gone with the exception, though nobody collects garbage; and what that exception followed from."""
    import gc

    workspace: Any = importlib.import_module("flashinfer.comm.allreduce").TRTLLMAllReduceFusionWorkspace
    made: list[Any] = []

    def new(owner: type, *_args: Any, **_kwargs: Any) -> Any:
        made.append(weakref.ref(instance := object.__new__(owner)))
        return instance

    workspace.__new__ = staticmethod(new)
    gc.collect()
    gc.disable()
    try:
        chain = []
        try:
            {}["what the engine is at"]
        except KeyError:
            try:
                _build(entry="class", **keywords)
            except Exception as error:  # noqa: BLE001  # it is the result
                link: Any = error
                while link is not None:
                    chain.append(type(link).__name__)
                    link = link.__context__
                del link
        return {"chain": chain, "gone": [reference() is None for reference in made]}
    finally:
        gc.enable()
        del workspace.__new__


def _told(error: Exception | None) -> dict[str, Any]:
    if error is None:
        return {"outcome": "built", "type": "", "message": "", "verdict": None}
    verdict = getattr(error, "verdict", None)
    return {
        "outcome": "declined" if isinstance(error, fi_shim.WorkspaceDeclined) else "raised",
        "type": type(error).__name__,
        "message": str(error),
        "verdict": None if verdict is None else dataclasses.asdict(verdict),
        "cause": repr(error.__cause__ or error.__context__),
    }


def _metadata(made: Any) -> Any:
    metadata = getattr(made, "metadata", None)
    return {name: value for name, value in metadata.items() if isinstance(value, (int, bool))} if isinstance(metadata, dict) else None


@dataclasses.dataclass
class Asked:
    """A workspace as FlashInfer is asked for it."""

    backend: str
    world_size: Any
    rank: Any
    tokens: Any
    hidden_dim: Any
    dtype: Any
    passed: dict[str, Any]
    """How the group is given: comm_backend, group, both or neither."""
    positional: bool
    extra: dict[str, Any]


def _build(
    *,
    entry: str = "factory",
    backend: str = "trtllm",
    via: str = "default",
    group: str = "world",
    tokens: Any = 128,
    hidden_dim: Any = 1024,
    dtype: Any = "bfloat16",
    rank: int | None = None,
    world_size: Any = None,
    positional: bool = False,
    extra: dict[str, Any] | None = None,
) -> Any:
    import torch
    import torch.distributed as dist

    given = groups.get(group)
    size = dist.get_world_size(given) if world_size is None else world_size
    number = dist.get_rank(given) if rank is None else rank
    kind = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    asked = Asked(backend, size, number, tokens, hidden_dim, kind, _passed(via, given, backend), positional, extra or {})
    with contextlib.redirect_stdout(sys.stderr):
        return {"factory": _factory, "class": _class, "legacy": _legacy, "legacy symmetric": _legacy_symmetric}[entry](asked)


def _passed(via: str, group: Any, backend: str) -> dict[str, Any]:
    """How the group is given to FlashInfer."""
    torch_backend = importlib.import_module("flashinfer.comm.mnnvl").TorchDistBackend
    ways: dict[str, Callable[[], dict[str, Any]]] = {
        "default": lambda: {"comm_backend": torch_backend()} if backend == "mnnvl" else {},
        "group": lambda: {"group": group},
        "_group": lambda: {"comm_backend": torch_backend(group=group)},
        "both": lambda: {"comm_backend": torch_backend(group=group), "group": group},
        "_cpu_group": lambda: {"comm_backend": _cpu_group_backend(torch_backend, group)},
        "own allgather": lambda: {"comm_backend": _OwnBackend(torch_backend(group=group))},
        "odd group": lambda: {"group": types.SimpleNamespace(group_name="0"), "comm_backend": torch_backend()},
        "alone": lambda: {"comm_backend": _OwnBackend(_Alone())},
    }
    return ways[via]()


def _cpu_group_backend(base: Any, cpu_group: Any) -> Any:
    class Backend(base):  # type: ignore[misc]
        """As SGLang's: the group for devices beside the one for the CPU."""

        def __init__(self) -> None:
            super().__init__(group=cpu_group)
            self._cpu_group = cpu_group
            self._group = object()  # stands for an NCCL group: whoever asks it fails

        def Get_rank(self) -> int:  # noqa: N802
            return int(self._dist.get_rank(cpu_group))

        def Get_size(self) -> int:  # noqa: N802
            return int(self._dist.get_world_size(cpu_group))

        def allgather(self, data: Any) -> Any:
            found: list[Any] = [None] * self.Get_size()
            self._dist.all_gather_object(found, data, group=cpu_group)
            return found

        def bcast(self, data: Any, root: int) -> Any:
            box = [data]
            self._dist.broadcast_object_list(box, src=self._dist.get_global_rank(cpu_group, root), group=cpu_group)
            return box[0]

        def barrier(self) -> None:
            self._dist.barrier(group=cpu_group)

    return Backend()


class _Alone:
    """A world of one rank."""

    def Get_rank(self) -> int:  # noqa: N802
        return 0

    def Get_size(self) -> int:  # noqa: N802
        return 1

    def allgather(self, data: Any) -> Any:
        return [data]

    def bcast(self, data: Any, root: int) -> Any:
        return data

    def barrier(self) -> None:
        pass


class _OwnBackend:
    """A communicator that knows no torch group, as an engine over MPI would have."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def Get_rank(self) -> int:  # noqa: N802
        return int(self._inner.Get_rank())

    def Get_size(self) -> int:  # noqa: N802
        return int(self._inner.Get_size())

    def allgather(self, data: Any) -> Any:
        return self._inner.allgather(data)

    def bcast(self, data: Any, root: int) -> Any:
        return self._inner.bcast(data, root)

    def barrier(self) -> None:
        self._inner.barrier()


def _factory(asked: Asked) -> Any:
    from flashinfer import comm

    passed = asked.passed
    if asked.positional:
        given = [
            asked.backend,
            asked.world_size,
            asked.rank,
            asked.tokens,
            asked.hidden_dim,
            asked.dtype,
            None,
            passed.get("comm_backend"),
            False,
        ]
        return comm.create_allreduce_fusion_workspace(*given, *([passed["group"]] if "group" in passed else []), **asked.extra)
    return comm.create_allreduce_fusion_workspace(
        backend=asked.backend, world_size=asked.world_size, rank=asked.rank, max_token_num=asked.tokens, hidden_dim=asked.hidden_dim,
        dtype=asked.dtype, **passed, **asked.extra,
    )  # fmt: skip


def _class(asked: Asked) -> Any:
    if asked.backend == "mnnvl":
        return _mnnvl_class(asked)
    workspace = importlib.import_module("flashinfer.comm.allreduce").TRTLLMAllReduceFusionWorkspace
    passed = asked.passed
    if asked.positional:
        given = [asked.world_size, asked.rank, asked.tokens, asked.hidden_dim, asked.dtype, passed.get("comm_backend")]
        return workspace(*given, *([passed["group"]] if "group" in passed else []), **asked.extra)
    return workspace(
        tp_size=asked.world_size, tp_rank=asked.rank, max_token_num=asked.tokens, hidden_dim=asked.hidden_dim, dtype=asked.dtype,
        **passed, **asked.extra,
    )  # fmt: skip


def _mnnvl_class(asked: Asked) -> Any:
    from flashinfer.comm import Mapping

    workspace = importlib.import_module("flashinfer.comm.trtllm_mnnvl_ar").MNNVLAllReduceFusionWorkspace
    size = asked.world_size
    mapping = Mapping(world_size=size, rank=asked.rank, gpus_per_node=size, tp_size=size)
    if asked.positional:
        buffer_size = asked.extra.get("buffer_size_in_bytes")
        return workspace(mapping, asked.tokens, asked.hidden_dim, asked.dtype, buffer_size, asked.passed["comm_backend"])
    return workspace(
        mapping=mapping, max_num_tokens=asked.tokens, hidden_dim=asked.hidden_dim, dtype=asked.dtype, **asked.passed, **asked.extra
    )


def _legacy(asked: Asked) -> Any:
    from flashinfer import comm

    create_workspace = comm.trtllm_create_ipc_workspace_for_all_reduce_fusion
    passed = asked.passed
    if asked.positional:
        return create_workspace(asked.rank, asked.world_size, asked.tokens, asked.hidden_dim, False, passed.get("group"), **asked.extra)
    return create_workspace(
        tp_rank=asked.rank, tp_size=asked.world_size, max_token_num=asked.tokens, hidden_dim=asked.hidden_dim, **passed, **asked.extra
    )


def _legacy_symmetric(asked: Asked) -> Any:
    return _legacy(dataclasses.replace(asked, extra={**asked.extra, "create_metadata": True, "use_symm_dev_mem": True}))


def create_in_threads(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Several workspaces at once, each in a thread of its own."""
    results: list[dict[str, Any]] = [{} for _ in requests]

    def one(number: int) -> None:
        import torch

        torch.cuda.set_device(int(os.environ["RANK"]))
        results[number] = create(**requests[number])

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def create_in_child(**keywords: Any) -> str:
    """What `create` does in a forked child that goes on with its parent's group."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, create(**keywords)["message"].encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return pipe.read()


def left() -> dict[str, Any]:
    """What is still allocated: by this process, and on each device by anybody."""
    import gc

    gc.collect()
    stock = testing.outstanding()
    return {"own": bool(stock), "bytes": {str(device): size for device, size in stock.bytes.items()}}


def reset() -> None:
    fi_shim.reset()


def calls() -> dict[str, int]:
    return testing.calls()


def status() -> dict[str, Any]:
    return fi_shim.status()


def reserve_cached(size: int, device: int | None = None) -> None:
    testing.reserve_cached(int(os.environ["RANK"]) if device is None else device, size)


def use_device(device: int) -> None:
    import torch

    torch.cuda.set_device(device)


def cached() -> int:
    import torch

    return int(torch.cuda.memory_reserved())


def set_version(version: str) -> None:
    sys.modules["flashinfer"].__version__ = version  # type: ignore[attr-defined]


def copies_of_a_decline() -> list[list[str]]:
    """A declined workspace's exception as text, again after copying it, and again after pickling it."""
    import pickle

    try:
        _build()
    except fi_shim.WorkspaceDeclined as error:
        copied, pickled = copy.copy(error), pickle.loads(pickle.dumps(error))
        return [[type(one).__name__, str(one), one.verdict.reason] for one in (error, copied, pickled)]
    raise AssertionError("built")


def watch_arrivals(ranks: list[int], limit: float = 20.0, group: str = "world") -> None:
    """Return when these ranks have come to the vote of a group, over a connection of its own."""
    from fi_shim.workspace import store
    from fi_shim.workspace.ballot.cell import cell_from_bytes

    transport = store.transport_of(groups[group])
    client, ends = (
        store._store_of(groups[group], importlib.import_module("torch.distributed.distributed_c10d")).clone(),
        time.monotonic() + limit,
    )
    keys = [f"{transport.prefix}cell/{rank}" for rank in ranks]
    while time.monotonic() < ends:
        cells = [cell_from_bytes(bytes(client.get(key))) for key in keys] if client.check(keys) else []
        if cells and all(cell is not None and cell.arrived for cell in cells):
            return
        time.sleep(0.005)
    raise AssertionError(f"not all of {ranks} came within {limit} s")


def record_properties() -> None:
    """Keep what cuMemCreate is asked for, to be told by `recorded`."""
    from fi_shim.testing import simulation

    driver = simulation.required().driver
    inner = driver.cuMemCreate

    def recording(size: int, properties: Any, flags: int) -> Any:
        kind, device = int(properties.requestedHandleTypes), int(properties.location.id)
        said.append(f"{int(size)} bytes on device {device}, handle type {kind}, rdma {int(properties.allocFlags.gpuDirectRDMACapable)}")
        return inner(size, properties, flags)

    driver.cuMemCreate = recording  # type: ignore[method-assign]


def recorded() -> list[str]:
    found = said[:]
    said.clear()
    return found


def fake_fabric(*, supported: bool) -> None:
    """Replace FlashInfer's fabric check, as engines do."""
    module: Any = sys.modules["flashinfer.comm.mnnvl"]
    module.is_mnnvl_fabric_supported = lambda _device: supported


def break_function(name: str) -> None:
    """Let a function of fi_shim raise, as from its own file, whoever holds a reference to it. `name` is module:qualified name."""
    function = _function(name)
    code = hidden.setdefault(name, function.__code__)
    function.__code__ = _broken.__code__.replace(co_freevars=code.co_freevars, co_filename=code.co_filename)


def mend_functions() -> None:
    while hidden:
        name, code = hidden.popitem()
        _function(name).__code__ = code
    fi_shim.reset()  # what was declined with it broken


def _broken(*_args: Any, **_kwargs: Any) -> Any:
    raise RuntimeError("broken on purpose")


def _function(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = vars(found)[part]
    found = getattr(found, "fget", None) or getattr(found, "__func__", None) or found
    while hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    return found


def reached(job: str, keywords: dict[str, Any]) -> list[str]:
    """Perform a job, and return which functions of fi_shim ran meanwhile, in any thread, as module:qualified name.

    What importlib calls is left out: there is nobody of ours above it who could catch what it raises.
    """
    codes: set[types.CodeType] = set()
    outermost: set[types.CodeType] = set()

    def watch(frame: types.FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)
            if frame.f_back is not None and "importlib" in frame.f_back.f_code.co_filename:
                outermost.add(frame.f_code)

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        globals()[job](**keywords)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted(name for name in every_function() if _function(name).__code__ in codes - outermost)


def every_function() -> list[str]:
    """All functions and methods that the loaded modules of fi_shim define, but those that only people and tests use."""
    names = []
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] != "fi_shim" or module is None or set(name.split(".")) & NOT_IN_AN_ENGINE:
            continue
        for own, value in vars(module).items():
            if isinstance(value, type) and value.__module__ == name:
                names += [f"{name}:{own}.{method}" for method in vars(value) if _is_ours(f"{name}:{own}.{method}", module)]
            elif callable(value) and getattr(value, "__module__", "") == name and _is_ours(f"{name}:{own}", module):
                names.append(f"{name}:{own}")
    return names


def _is_ours(name: str, module: Any) -> bool:
    function = _function(name)
    return isinstance(function, types.FunctionType) and function.__code__.co_filename == module.__file__ and function.__name__ != "<lambda>"


def afresh() -> None:
    """Forget what fi_shim has cached or said in this process, so that the next creation does all its work again."""
    from fi_shim import log
    from fi_shim.workspace import store

    log._SAID.clear()
    store._transports.clear()  # an old connection goes with its transport
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "fi_shim":
            for value in list(vars(module).values()):
                if isinstance(value, functools._lru_cache_wrapper):  # a class that functools does not name publicly
                    value.cache_clear()


def ask_validator() -> list[str]:
    """What the validator of the workspace that was kept last says of a few shapes, or raises."""
    import torch

    answers = []
    for tokens, dtype in [(128, torch.bfloat16), (129, torch.bfloat16), (1 << 20, torch.bfloat16), (1, torch.float32)]:
        try:
            answers.append(repr(kept[-1].is_buffer_size_sufficient(2, tokens, 1024, dtype)))
        except Exception as error:  # noqa: BLE001  # FlashInfer's own, or it is a finding
            answers.append(repr(error))
    return answers


def activate_and_import() -> str:
    """Activate, then import flashinfer.comm as if for the first time; what the import raised, or an empty text."""
    for name in [name for name in sys.modules if name.startswith("flashinfer.comm")]:
        del sys.modules[name]
    with contextlib.suppress(RuntimeError):  # `activate` itself may be what is broken
        fi_shim.activate()
    try:
        importlib.import_module("flashinfer.comm")
    except BaseException as error:  # noqa: BLE001  # it is the finding
        return repr(error)
    return ""


def is_guarded() -> bool:
    """Whether creation is patched in this process."""
    module = sys.modules.get("flashinfer.comm.allreduce")
    function = module.TRTLLMAllReduceFusionWorkspace.__init__ if module is not None else None
    while function is not None and getattr(function, "__fi_shim__", "") != "creation":
        function = getattr(function, "__wrapped__", None)
    return function is not None


def activate() -> None:
    fi_shim.activate()


def deactivate() -> None:
    fi_shim.deactivate()


def descriptors() -> int:
    """How many files this process has open."""
    import gc

    gc.collect()
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # descriptors, not a folder


def pretend_host(name: str) -> None:
    """Seem to run on another host."""
    import socket

    socket.gethostname = lambda: name  # type: ignore[assignment]


def hide_stores() -> None:
    """As with a process group that has no store."""
    from fi_shim.workspace import store

    module: Any = store
    module._store_of = lambda *_: None
    module._transports.clear()


def forget_verdicts() -> None:
    """Lose what this rank remembers, as one that never read the verdict."""
    from fi_shim.patches import remembered

    remembered._declined.clear()


def capture(*, on: bool) -> None:
    """Seem to capture a CUDA graph."""
    import torch

    torch.cuda.is_current_stream_capturing = lambda: on


def create_within(where: str, **keywords: Any) -> dict[str, Any]:
    """Build inside an inference mode, a custom op, or a worker thread."""
    import torch

    results: list[dict[str, Any]] = []

    def build() -> None:
        torch.cuda.set_device(int(os.environ["RANK"]))
        results.append(create(**keywords))

    if where == "inference mode":
        with torch.inference_mode():
            build()
    elif where == "worker thread":
        thread = threading.Thread(target=build)
        thread.start()
        thread.join()
    else:

        def body(x: Any) -> Any:
            build()
            return x.clone()

        torch.library.custom_op("fi_shim_tests::build", body, mutates_args=(), schema="(Tensor x) -> Tensor")(torch.zeros(1))
    return results[0]


def backends_kept() -> list[str]:
    """The kinds of communication backend that the last workspace holds on to."""
    found, waiting, seen = set(), [kept[-1]], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if hasattr(one, "Get_rank"):
            found.add(type(one).__name__)
        inner = list(one) if isinstance(one, (list, tuple)) else list(getattr(one, "__dict__", {}).values())
        waiting += [value for value in inner if not isinstance(value, (int, str, types.ModuleType))]
    return sorted(found)


def detach() -> None:
    kept[-1].checkpoint_prepare()


def restore(group: str = "world", *, via: str = "_group") -> dict[str, Any]:
    """Restore the last workspace, and tell how that went."""
    error = None
    began = time.monotonic()
    try:
        kept[-1].checkpoint_restore(_passed(via, groups[group], "trtllm")["comm_backend"])
    except Exception as raised:  # noqa: BLE001  # it is the result
        error = raised
    return {"began": began, "ended": time.monotonic(), **_told(error)}
