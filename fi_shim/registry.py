"""What is patched: one record a patch, one point a replaced attribute."""

from __future__ import annotations

import contextlib
import inspect
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

APPLIED: Final = "applied"
PENDING: Final = "pending"  # the module is not imported yet
NOT_NEEDED: Final = "not needed"
DISABLED: Final = "disabled"
UNKNOWN_CODE: Final = "unknown code"
FAILED: Final = "failed"
DISPLACED: Final = "displaced"  # somebody wrapped our function: it is still reached
REPLACED: Final = "replaced"  # somebody put something else there: ours is not seen to be reached
INACTIVE: Final = "inactive"  # deactivated, everything restored

_MISSING: Final = object()
_LONGEST_CHAIN: Final = 64
_OURS: Final[dict[int, Any]] = {}
"""id -> replacement, of all that was ever put in place. By identity: what wraps a function of ours copies its attributes."""


class NotNeededError(Exception):
    """Raised by a patch that has nothing to do on this release; the text says why."""


class UnknownCodeError(Exception):
    """Raised by a patch that does not know the code it would change; the text says what is unknown."""


class Switch:
    """Whether replaced functions do their part. Off after `deactivate()`: one that somebody wrapped stays in place, but does nothing."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = False


@dataclass
class Point:
    """One replaced attribute of a class or module."""

    owner: Any
    attribute: str
    original: Any
    replacement: Any

    @property
    def name(self) -> str:
        module = getattr(self.owner, "__module__", None)
        own_name = getattr(self.owner, "__qualname__", None) or getattr(self.owner, "__name__", repr(self.owner))
        return f"{module}.{own_name}.{self.attribute}" if module else f"{own_name}.{self.attribute}"

    def current(self) -> Any:
        """What stands there now, without binding it."""
        return vars(self.owner).get(self.attribute, _MISSING)

    def state(self) -> str:
        """applied, displaced or replaced. Two patches of ours on one attribute do not displace each other."""
        current = self.current()
        while current is not self.replacement and id(current) in _OURS:
            current = getattr(current, "__wrapped__", _MISSING)
        if current is self.replacement:
            return APPLIED
        return DISPLACED if _reaches(current, self.replacement) else REPLACED

    def displaced_by(self) -> str:
        """Who stands in our place, for people."""
        current = self.current()
        if current is _MISSING:
            return "nothing (deleted)"
        code = getattr(inspect.unwrap(current, stop=lambda f: hasattr(f, "__code__")), "__code__", None)
        where = f" from {code.co_filename}:{code.co_firstlineno}" if code is not None else ""
        return f"a {type(current).__module__}.{type(current).__qualname__}{where}"

    def restore(self) -> bool:
        """Put the original back if ours stands there; whether it does not any more."""
        current = self.current()
        if current is self.original:
            return True
        if current is not self.replacement:
            return False
        if self.original is _MISSING:
            delattr(self.owner, self.attribute)
        else:
            setattr(self.owner, self.attribute, self.original)
        return True


def _reaches(wrapper: Any, wanted: Any) -> bool:
    """Whether `wrapper` leads to `wanted` through `__wrapped__`, a descriptor's function, a partial or a closure."""
    waiting: list[Any] = [wrapper]
    seen: set[int] = set()
    while waiting and len(seen) < _LONGEST_CHAIN:
        current = waiting.pop()
        if current is wanted:
            return True
        if current is _MISSING or id(current) in seen:
            continue
        seen.add(id(current))
        waiting += [
            inner
            for name in ("__wrapped__", "__func__", "func", "fget")
            if (inner := getattr(current, name, None)) is not None and callable(inner)
        ]
        for cell in getattr(current, "__closure__", None) or ():
            try:
                content = cell.cell_contents
            except ValueError:  # an empty cell
                continue
            if callable(content) and not isinstance(content, type):
                waiting.append(content)
    return False


@dataclass
class Record:
    """What is known of one patch in this process."""

    name: str
    modules: tuple[str, ...]
    why: str
    state: str = PENDING
    reason: str = ""
    points: list[Point] = field(default_factory=list)
    switch: Switch = field(default_factory=Switch)
    waiting_for: set[str] = field(default_factory=set)
    """Modules that have not been imported yet."""

    def replace(self, owner: Any, attribute: str, make: Callable[[Any], Any]) -> None:
        """Put `make(original)` in place of `owner.attribute`. Does nothing where ours stands already, whatever was put on top of it."""
        for point in self.points:
            if point.owner is owner and point.attribute == attribute and point.state() != REPLACED:
                return
        original = vars(owner).get(attribute, _MISSING)
        replacement = make(None if original is _MISSING else original)
        _OURS[id(replacement)] = replacement
        with contextlib.suppress(AttributeError, TypeError):
            replacement.__fi_shim__ = self.name  # for people who meet it in a traceback
        setattr(owner, attribute, replacement)
        self.points = [p for p in self.points if not (p.owner is owner and p.attribute == attribute)]
        self.points.append(Point(owner, attribute, original, replacement))

    def follow(self, owner: Any, attribute: str, source: Any) -> None:
        """Let `owner.attribute`, a copy of the one that we replaced in `source`, share its fate: ours now, restored with it."""
        for point in [p for p in self.points if p.owner is source and p.attribute == attribute]:
            if vars(owner).get(attribute) in (point.original, point.replacement):
                setattr(owner, attribute, point.replacement)
                self.points = [p for p in self.points if not (p.owner is owner and p.attribute == attribute)]
                self.points.append(Point(owner, attribute, point.original, point.replacement))

    def restore(self) -> None:
        """Switch off and undo all points, last first; those that somebody wrapped stay, and are named in `reason`."""
        self.switch.on = False
        left = [point for point in reversed(self.points) if not point.restore()]
        self.points = left[::-1]
        if left:
            self.state = left[0].state()
            self.reason = "; ".join(f"{point.name} is now {point.displaced_by()}" for point in left)
        else:
            self.state, self.reason = INACTIVE, ""

    def look(self) -> None:
        """Compare what was put in place with what stands there now; while the shim is off, try again to restore it."""
        if self.state not in {APPLIED, DISPLACED, REPLACED}:
            return
        if not self.switch.on:
            self.restore()
            return
        disturbed = [point for point in self.points if point.state() != APPLIED]
        if disturbed:
            self.state = REPLACED if any(point.state() == REPLACED for point in disturbed) else DISPLACED
            self.reason = "; ".join(f"{point.name} is now {point.displaced_by()}" for point in disturbed)
        elif self.state != APPLIED:
            self.state, self.reason = APPLIED, ""


class Registry:
    """The records of all patches by name, in the order in which they are applied."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.records: dict[str, Record] = {}

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Data for `status()`: name -> state, reason, modules, targets, why."""
        with self.lock:
            for record in self.records.values():
                record.look()
            return {
                record.name: {
                    "state": record.state,
                    "reason": record.reason,
                    "modules": list(record.modules),
                    "targets": [point.name for point in record.points],
                    "why": record.why,
                }
                for record in self.records.values()
            }


REGISTRY: Final = Registry()
