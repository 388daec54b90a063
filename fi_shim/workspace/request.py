"""What was asked for: the shape of a workspace in canonical form, checked once."""

from __future__ import annotations

import difflib
import operator
import reprlib
from dataclasses import dataclass
from typing import Any, Final

BACKENDS: Final = ("trtllm", "mnnvl")

# bytes an element, by torch's names
ELEMENT_SIZES: Final = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
    "complex32": 4, "complex64": 8, "complex128": 16,
}  # fmt: skip
_ALIASES: Final = {
    "half": "float16", "float": "float32", "double": "float64", "long": "int64", "int": "int32", "short": "int16",
    "chalf": "complex32", "cfloat": "complex64", "cdouble": "complex128",
}  # fmt: skip


@dataclass(frozen=True)
class WorkspaceShape:
    """The numbers that decide a workspace's size. `max_token_num` tokens of `hidden_dim` elements of `dtype` on `world_size` ranks."""

    backend: str
    world_size: int
    max_token_num: int
    hidden_dim: int
    dtype: str
    force_oneshot_support: bool = False
    buffer_size_in_bytes: int | None = None
    """mnnvl: bytes of each lamport buffer, where the caller of the class gives them."""

    @property
    def element_size(self) -> int:
        """Bytes an element."""
        return ELEMENT_SIZES[self.dtype]


def workspace_shape(
    *, backend: object, world_size: object, max_token_num: object, hidden_dim: object, dtype: object, force_oneshot_support: object = False
) -> WorkspaceShape:
    """Check and canonicalise; integers may be anything with `__index__` but bool. ValueError names the argument and its value."""
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r} is not one of {', '.join(BACKENDS)}")
    if not isinstance(force_oneshot_support, bool):
        raise ValueError(f"force_oneshot_support={force_oneshot_support!r} is not True or False")  # noqa: TRY004
    return WorkspaceShape(
        backend=str(backend),
        world_size=positive_integer("world_size", world_size),
        max_token_num=positive_integer("max_token_num", max_token_num),
        hidden_dim=positive_integer("hidden_dim", hidden_dim),
        dtype=dtype_name(dtype),
        force_oneshot_support=force_oneshot_support,
    )


def positive_integer(name: str, value: Any) -> int:
    """`value` as an int of at least 1. ValueError names it."""
    try:
        number = operator.index(value)
    except Exception:  # noqa: BLE001  # TypeError, or whatever an odd object raises
        number = 0
    if isinstance(value, bool) or number < 1:
        raise ValueError(f"{name}={reprlib.repr(value)} is not a positive integer")
    return number


def dtype_name(dtype: object) -> str:
    """Name that torch gives a dtype, from a torch.dtype or a name such as "bfloat16" or "torch.float32". ValueError with the nearest names."""
    text = str(dtype).removeprefix("torch.")
    name = _ALIASES.get(text, text)
    if name in ELEMENT_SIZES and (isinstance(dtype, str) or type(dtype).__name__ == "dtype"):
        return name
    nearest = difflib.get_close_matches(text, [*ELEMENT_SIZES, *_ALIASES], n=3, cutoff=0.0)
    raise ValueError(f"dtype={dtype!r} is not a known dtype; nearest known: {', '.join(nearest)}")
