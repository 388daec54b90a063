"""Names in FlashInfer's modules, put in place while a workspace is built, and which build a thread is in.

The names are the process's, the builds are threads': what stands in a name asks `current()`, and outside of a build it is what stood there before.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fi_shim.seams.building import Building

_MISSING: Final = object()
_thread = threading.local()


def current() -> Building | None:
    """The build that the calling thread is in."""
    return getattr(_thread, "building", None)


@contextlib.contextmanager
def building(build: Building) -> Iterator[None]:
    """The calling thread is in `build`."""
    _thread.building = build
    try:
        yield
    finally:
        _thread.building = None


class Window:
    """Replaced names, in place while at least one build of the process needs them."""

    def __init__(self, replacements: Callable[[], dict[tuple[Any, str], Callable[[Any], Any]]]) -> None:
        """`replacements` gives (owner, attribute) -> what makes the stand-in from the original; asked when the window opens."""
        self._replacements = replacements
        self._lock = threading.Lock()
        self._open = 0
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Keep it open. Names that somebody else has replaced meanwhile stay his when it closes."""
        with self._lock:
            if not self._open:
                self._put_in_place()
            self._open += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1
                if not self._open:
                    self._put_back()

    def _put_in_place(self) -> None:
        try:
            for (owner, attribute), make in self._replacements().items():
                original = vars(owner).get(attribute, _MISSING)
                if original is _MISSING:
                    continue
                stand_in = make(original)
                setattr(owner, attribute, stand_in)
                self._replaced.append((owner, attribute, original, stand_in))
        except BaseException:
            self._put_back()
            raise

    def _put_back(self) -> None:
        while self._replaced:
            owner, attribute, original, stand_in = self._replaced.pop()
            if vars(owner).get(attribute) is stand_in:
                setattr(owner, attribute, original)
