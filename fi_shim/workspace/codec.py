"""Payloads as bytes and back: JSON with a tag for what JSON lacks. Nothing read from a store is ever unpickled.

Known types: None, bool, int, float, str, bytes, tuple, list, and dict with keys of any of these that can be hashed. They come back with
exactly the type they went in with. A JSON object always is a tagged value: `{"bytes": ...}`, never a plain dict.
"""

from __future__ import annotations

import base64
import json
import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_DEPTH: Final = 100
"""Levels of nesting; deeper payloads are refused on both sides, long before the interpreter's own limit."""
_PLAIN_INT_BITS: Final = 4096  # decimal digits of longer ones run into the interpreter's limit on int <-> str


def encode(value: object) -> bytes:
    """Return `value` as ASCII JSON.

    Raises:
        TypeError: a type that the codec does not know (subclasses count as unknown: they would not come back).
        ValueError: nested deeper than MAX_DEPTH.
    """
    return json.dumps(_tagged(value, 0), allow_nan=False, separators=(",", ":")).encode("ascii")


def decode(data: bytes) -> Any:
    """Return the value that `encode` was given. Raises ValueError for anything that `encode` does not write."""
    try:
        return _value(json.loads(data.decode("ascii"), parse_constant=_not_json), 0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a payload of this codec ({type(error).__name__}: {error}): {data[:80]!r}") from None


def _tagged(value: object, depth: int) -> object:
    if depth > MAX_DEPTH:
        raise ValueError(f"payload nested deeper than {MAX_DEPTH} levels")
    kind = type(value)
    if value is None or kind is bool:
        return value
    encoder = _ENCODERS.get(kind)
    if encoder is None:
        raise TypeError(f"cannot send a {kind.__module__}.{kind.__qualname__} to the other ranks")
    return encoder(value, depth + 1)


def _value(item: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(item, list):
        return [_value(element, depth + 1) for element in item]
    if isinstance(item, float) and not math.isfinite(item):
        raise ValueError("a number out of range")
    if not isinstance(item, dict):
        return item
    ((tag, content),) = item.items()
    return _DECODERS[tag](content, depth + 1)


def _int(value: int, _depth: int) -> object:
    return value if value.bit_length() <= _PLAIN_INT_BITS else {"int": hex(value)}


def _float(value: float, _depth: int) -> object:
    return value if math.isfinite(value) else {"float": repr(value)}


def _str(value: str, _depth: int) -> object:
    try:
        value.encode()
    except UnicodeEncodeError:  # surrogates: JSON would join two that stand next to each other
        return {"str": value.encode("utf-8", "surrogatepass").hex()}
    return value


_ENCODERS: Final[dict[type, Callable[[Any, int], object]]] = {
    int: _int,
    float: _float,
    str: _str,
    bytes: lambda value, _: {"bytes": base64.b64encode(value).decode("ascii")},
    list: lambda value, depth: [_tagged(element, depth) for element in value],
    tuple: lambda value, depth: {"tuple": [_tagged(element, depth) for element in value]},
    dict: lambda value, depth: {"dict": [[_tagged(key, depth), _tagged(element, depth)] for key, element in value.items()]},
}


def _dict(pairs: list[Any], depth: int) -> dict[Any, Any]:
    result = {_value(key, depth): _value(element, depth) for key, element in pairs}
    if len(result) != len(pairs):
        raise ValueError("a key comes twice")
    return result


def _special_float(text: str, _depth: int) -> float:
    return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[text]


def _list_of(content: object) -> list[Any]:
    if not isinstance(content, list):
        raise TypeError("a list was expected")
    return content


_DECODERS: Final[dict[str, Callable[[Any, int], Any]]] = {
    "int": lambda content, _: int(content, 16),
    "float": _special_float,
    "str": lambda content, _: bytes.fromhex(content).decode("utf-8", "surrogatepass"),
    "bytes": lambda content, _: base64.b64decode(content, validate=True),
    "tuple": lambda content, depth: tuple(_value(element, depth) for element in _list_of(content)),
    "dict": lambda content, depth: _dict(_list_of(content), depth),
}


def _not_json(text: str) -> object:
    raise ValueError(f"{text} is not JSON")
