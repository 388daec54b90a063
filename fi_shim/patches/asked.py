"""What a caller asked FlashInfer for, read off the arguments of whichever entry it used."""

from __future__ import annotations

import inspect
import operator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from fi_shim.workspace.request import WorkspaceShape, workspace_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fi_shim.workspace.vote import Scalar

Kind = Literal["trtllm", "mnnvl", "legacy", "cutedsl", "restore"]


@dataclass(frozen=True)
class Asked:
    """One request for a workspace, in canonical form; `request` must be equal on all ranks."""

    kind: Kind
    request: Mapping[str, Scalar]
    shape: WorkspaceShape | None
    """None where the arguments are not what FlashInfer's own code expects; `problem` says what."""
    problem: str
    world_size: int | None
    rank: int | None
    """What the caller says this rank is."""
    device_number: int | None
    """The device that releases up to 0.6.6 use, which number devices by rank."""
    group: Any
    comm_backend: Any
    use_symm_dev_mem: bool = True
    backend: str = ""
    """Of a workspace that is restored: whose."""

    @property
    def what(self) -> str:
        """For people."""
        described = ", ".join(f"{key}={value}" for key, value in self.request.items() if key != "entry")
        return f"{self.kind} workspace ({described})"


def read_arguments(kind: Kind, original: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Asked:
    """Bind the arguments as Python would and canonicalise them. Never raises for what a caller passed: `problem` then says what is odd."""
    try:
        bound = inspect.signature(original).bind(*args, **kwargs)
    except TypeError as error:
        odd = {"entry": kind, "arguments": str(error)}
        known = {key: value for key, value in kwargs.items() if key in {"group", "comm_backend"}}
        return Asked(kind, odd, None, str(error), None, None, None, known.get("group"), known.get("comm_backend"))
    bound.apply_defaults()
    return _READERS[kind](bound.arguments)


def _trtllm(given: Mapping[str, Any]) -> Asked:
    names = ("max_token_num", "hidden_dim", "dtype")
    asked = _asked("trtllm", "tp_size", "tp_rank", given, {name: given[name] for name in names})
    return _with_shape(asked, "trtllm", given["tp_size"], given["max_token_num"], given["hidden_dim"], given["dtype"])


def _legacy(given: Mapping[str, Any]) -> Asked:
    fp32, symmetric = bool(given["use_fp32_lamport"]), bool(given.get("use_symm_dev_mem", False))
    request = {name: given[name] for name in ("max_token_num", "hidden_dim")} | {"use_fp32_lamport": fp32, "use_symm_dev_mem": symmetric}
    asked = replace(_asked("legacy", "tp_size", "tp_rank", given, request), use_symm_dev_mem=symmetric)
    dtype = "float32" if fp32 else "float16"
    return _with_shape(asked, "trtllm", given["tp_size"], given["max_token_num"], given["hidden_dim"], dtype)


def _mnnvl(given: Mapping[str, Any]) -> Asked:
    mapping = given["mapping"]
    sizes = {"tp_size": getattr(mapping, "tp_size", None), "tp_rank": getattr(mapping, "tp_rank", None)}
    names = ("max_num_tokens", "hidden_dim", "dtype", "buffer_size_in_bytes")
    asked = _asked("mnnvl", "tp_size", "tp_rank", {**given, **sizes}, {name: given[name] for name in names})
    asked = replace(asked, device_number=_integer(getattr(mapping, "local_rank", None)))
    size = given["buffer_size_in_bytes"]
    if size is None:
        return _with_shape(asked, "mnnvl", sizes["tp_size"], given["max_num_tokens"], given["hidden_dim"], given["dtype"])
    asked = _with_shape(asked, "mnnvl", sizes["tp_size"], 1, 1, "bfloat16")  # FlashInfer then looks at the size only
    number = _integer(size)
    if asked.shape is None or number is None or number < 1:
        return replace(asked, shape=None, problem=asked.problem or f"buffer_size_in_bytes={size!r} is not a positive integer")
    return replace(asked, shape=replace(asked.shape, buffer_size_in_bytes=number))


def _cutedsl(given: Mapping[str, Any]) -> Asked:
    request = {name: value for name, value in given.items() if name not in {"self", "tp_size", "tp_rank", "group", "config"}}
    asked = _asked("cutedsl", "tp_size", "tp_rank", given, request)
    return replace(asked, problem="torch's symmetric memory decides how much a CuTe DSL workspace takes: it is not probed")


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Asked]] = {
    "trtllm": _trtllm,
    "legacy": _legacy,
    "mnnvl": _mnnvl,
    "cutedsl": _cutedsl,
}


def _asked(kind: Kind, size_name: str, rank_name: str, given: Mapping[str, Any], request: Mapping[str, Any]) -> Asked:
    rank = _integer(given[rank_name])
    canonical = {"entry": kind, "world_size": _scalar(given[size_name]), **{name: _scalar(value) for name, value in request.items()}}
    size = _integer(given[size_name])
    return Asked(kind, canonical, None, "", size, rank, rank, given.get("group"), given.get("comm_backend"))


def _with_shape(asked: Asked, backend: str, world_size: Any, max_token_num: Any, hidden_dim: Any, dtype: Any) -> Asked:
    try:
        shape = workspace_shape(backend=backend, world_size=world_size, max_token_num=max_token_num, hidden_dim=hidden_dim, dtype=dtype)
    except ValueError as error:
        return replace(asked, problem=str(error))
    return replace(asked, shape=shape)


def _integer(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _scalar(value: Any) -> Scalar:
    """A value that two ranks can compare: numbers as they are, a dtype's name, otherwise the kind of object it is."""
    number = _integer(value)
    if number is not None:
        return number
    if value is None or isinstance(value, (str, bool, float)):
        return value
    if type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    return f"a {type(value).__module__}.{type(value).__qualname__}"
