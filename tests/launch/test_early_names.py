"""Which names are pointed to a replacement, among made-up modules."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from fi_shim.launch.early_names import EarlyNames, replaced_functions
from fi_shim.registry import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., Any]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(name: str, source: str = "", **names: Any) -> Any:
        made = ModuleType(name)
        exec(source, vars(made))
        vars(made).update(names)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    return make


def ours(original: Any) -> Any:
    def replacement() -> Any:
        return original()

    return replacement


def test_a_constant_and_a_borrowed_function_are_left_to_the_others_that_hold_them(module: Make) -> None:
    owner = module("owner", "import os.path\ndef own(): pass\nborrowed = os.path.join\nconstant = 256")
    engine = module("engine", own=owner.own, borrowed=owner.borrowed, constant=owner.constant)
    record = Record("patch", ("owner",), "why")
    for name in ("own", "borrowed", "constant"):
        record.replace(owner, name, ours)
    assert [point.attribute for point in replaced_functions([record])] == ["own"]
    names = EarlyNames()
    names.repoint([record])
    assert names.as_dict() == {"repointed": 1, "names": ["engine.own"]}
    assert engine.own is owner.own
    assert (engine.borrowed, engine.constant) == (os.path.join, 256)


def test_where_two_patches_replace_one_function_names_lead_to_the_last_and_back_to_the_first(module: Make) -> None:
    owner = module("owner", "def own(): return 'original'")
    original = owner.own
    engine = module("engine", own=original)
    first, second = Record("first", ("owner",), "why"), Record("second", ("owner",), "why")
    names = EarlyNames()

    def as_original(function: Any) -> Any:
        replacement = ours(function)
        replacement.__module__ = "owner"  # as functools.wraps says
        return replacement

    first.replace(owner, "own", as_original)
    names.repoint([first])
    assert engine.own is owner.own
    second.replace(owner, "own", as_original)
    names.repoint([first, second])
    assert engine.own is owner.own is not original
    assert names.as_dict() == {"repointed": 1, "names": ["engine.own"]}
    points = replaced_functions([first, second])
    second.restore()
    first.restore()
    names.give_back(points)
    assert engine.own is owner.own is original
    assert names.as_dict()["repointed"] == 0


def test_a_module_that_is_gone_is_not_counted_for_ever(module: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = module("owner", "def own(): pass")
    module("engine", own=owner.own)
    record = Record("patch", ("owner",), "why")
    record.replace(owner, "own", ours)
    names = EarlyNames()
    names.repoint([record])
    monkeypatch.delitem(sys.modules, "engine")
    points = replaced_functions([record])
    record.restore()
    names.give_back(points)
    assert names.as_dict() == {"repointed": 0, "names": []}
