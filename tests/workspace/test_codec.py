from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fi_shim.workspace.codec import MAX_DEPTH, decode, encode

ANY_TEXT = st.text(st.characters(exclude_categories=()))  # with surrogates, alone and in pairs
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | st.binary()
KEYS = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


def same(left: Any, right: Any) -> bool:
    """Equal, of the same types, in the same order; nan equals nan, -0.0 is not 0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left.items()), list(right.items()))
    return repr(left) == repr(right) if isinstance(left, float) else bool(left == right)


@given(VALUES)
def test_what_goes_in_comes_out(value: object) -> None:
    data = encode(value)

    assert data.isascii()
    assert same(decode(data), value)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(2**20_000, id="huge"),
        pytest.param(-(10**5000), id="huge negative"),
        pytest.param({1: True, (1, b"\0"): [(), {}]}, id="odd keys"),
        pytest.param("\ud83d\ude00", id="two surrogates"),
        pytest.param("\ude00", id="one surrogate"),
        math.nan,
        -0.0,
        1e308,
    ],
)
def test_awkward_values(value: object) -> None:
    assert same(decode(encode(value)), value)


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize("value", [object(), {1, 2}, bytearray(b"x"), Text("x"), 1j, [range(3)], {(1, frozenset()): 1}])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match="cannot send a"):
        encode(value)


def test_depth_has_a_limit_on_both_sides() -> None:
    deep: Any = 0
    for _ in range(MAX_DEPTH):
        deep = [deep]

    assert decode(encode(deep)) == deep
    with pytest.raises(ValueError, match="deeper"):
        encode([deep])
    with pytest.raises(ValueError, match="deeper"):
        decode(json.dumps([deep]).encode())
    with pytest.raises(ValueError, match="not a payload"):
        decode(b"[" * 100_000 + b"]" * 100_000)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        "é".encode(),
        b"{}",
        b'{"plain": 1}',
        b'{"tuple": [], "dict": []}',
        b'{"tuple": 1}',
        b'{"tuple": "ab"}',
        b'{"bytes": "no base64!"}',
        b'{"bytes": 1}',
        b'{"int": 1}',
        b'{"int": "zz"}',
        b'{"float": "1.5"}',
        b'{"float": ["nan"]}',
        b'{"str": "f"}',
        b'{"dict": [[1]]}',
        b'{"dict": [[[], 1]]}',
        b'{"dict": [[1, 1], [true, 2]]}',
        b"NaN",
        b"[Infinity]",
        b"1e999",
        b"1 2",
        b"9" * 10_000,
    ],
)
def test_malformed_data_is_one_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a payload of this codec"):
        decode(data)


@given(
    st.binary() | st.text().map(str.encode) | VALUES.map(encode).flatmap(lambda data: st.integers(0, len(data)).map(lambda cut: data[:cut]))
)
def test_nothing_but_value_errors(data: bytes) -> None:
    try:
        decode(data)
    except ValueError:
        return
