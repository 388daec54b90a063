"""Names that an engine bound before the shim came: `from flashinfer.comm import <function>` keeps the original, whatever is patched later.

Methods are reached through their class, whoever holds it. A function that is replaced in its own module is not; so every module's names
are compared with what was replaced, by identity, and pointed to what stands there now.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fi_shim.registry import Point, Record

OWN_PACKAGE: Final = __name__.partition(".")[0]


class EarlyNames:
    """The names of other modules that were pointed elsewhere, in this process."""

    def __init__(self) -> None:
        self._originals: dict[str, Any] = {}
        """`module.name` -> what it held."""

    def as_dict(self) -> dict[str, Any]:
        """Data for `status()`: how many, and which (`module.name`)."""
        return {"repointed": len(self._originals), "names": list(self._originals)}

    def repoint(self, records: Iterable[Record]) -> None:
        """Point names that hold an original to its replacement."""
        replacements = {id(point.original): point.replacement for point in replaced_functions(records)}
        for where, namespace, name, original in _names_of(replacements):
            self._originals.setdefault(f"{where}.{name}", original)
            namespace[name] = _last(original, replacements)

    def give_back(self, points: Iterable[Point]) -> None:
        """Point names that hold one of these replacements to its original: those that were repointed, and those bound since."""
        points = list(points)
        originals = {id(point.replacement): point.original for point in points}
        for _, namespace, name, replacement in _names_of(originals):
            namespace[name] = _last(replacement, originals)
        undone = {id(point.original) for point in points}
        self._originals = {name: held for name, held in self._originals.items() if id(held) not in undone}


def replaced_functions(records: Iterable[Record]) -> list[Point]:
    """Functions and classes replaced in the module that defines them. A constant, or what another library lends, is held by many others."""
    points = [point for record in records for point in record.points if isinstance(point.owner, ModuleType) and callable(point.original)]
    return [point for point in points if getattr(point.original, "__module__", None) == point.owner.__name__]


def _last(value: Any, successors: Mapping[int, Any]) -> Any:
    """Follow `value` to its end: one patch may have replaced what another had put there."""
    while id(value) in successors:
        value = successors[id(value)]
    return value


def _names_of(wanted: Mapping[int, Any]) -> Iterator[tuple[str, dict[str, Any], str, Any]]:
    """Module, namespace, name and value of every module-level name whose value is one of `wanted`, by identity."""
    seen: set[int] = set()
    if not wanted:
        return
    for where, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or where.partition(".")[0] == OWN_PACKAGE:
            continue
        namespace = object.__getattribute__(module, "__dict__")  # a lazy module would load itself if it was asked
        if id(namespace) in seen:  # `__mp_main__` is `__main__`
            continue
        seen.add(id(namespace))
        for name, value in list(namespace.items()):
            if id(value) in wanted:
                yield where, namespace, name, value


EARLY_NAMES: Final = EarlyNames()
