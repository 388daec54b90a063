"""Run a callback after a module's body has run, whenever and however often that happens.

`wrapt.register_post_import_hook` fires once, fires at once on a module that is still half imported, and cannot be taken back.
An engine can import FlashInfer while another thread registers, can retry a failed import, and `FI_SHIM=0` must leave no trace;
so this finder is our own. It touches nothing but the modules that are watched.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    Callback = Callable[[ModuleType], None]


class _NotifyingLoader(Loader):
    """Stands in for a watched module's loader until the module is executed, then steps aside."""

    def __init__(self, loader: Any, notify: Callback) -> None:
        self._loader = loader
        self._notify = notify

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        with contextlib.suppress(Exception):
            self._notify(module)


class _WatchedSpec(ModuleSpec):
    """The spec of a module whose body is running right now; importlib clears `_initializing` when it is done."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "_initializing" and not value:
            notify = self.__dict__.pop("_fi_shim_notify", None)
            self.__class__ = ModuleSpec  # type: ignore[assignment]
            module = sys.modules.get(self.name)
            if notify is not None and module is not None and module.__spec__ is self:  # a failed import leaves no module
                with contextlib.suppress(Exception):
                    notify(module)


class PostImportFinder(MetaPathFinder):
    """A finder that calls back after each import of the modules it watches.

    A callback runs inside the import, with the module's import lock held. What it raises, and any fault of the finder, is dropped:
    the import goes on as without us.
    """

    def __init__(self) -> None:
        self._callbacks: dict[str, Callback] = {}
        self.retire: Callable[[], None] = self.forget
        """What a later copy of the package calls before it begins (somebody threw this one out of sys.modules)."""
        self._searching = threading.local()

    def watch(self, name: str, callback: Callback) -> None:
        """Call `callback(module)` after every import of `name`; at once if it is imported, at its end if it is being imported."""
        self._callbacks[name] = callback
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        module = sys.modules.get(name)
        if module is None:
            return
        spec = getattr(module, "__spec__", None)
        if type(spec) is ModuleSpec and getattr(spec, "_initializing", False):
            spec.__dict__["_fi_shim_notify"] = callback
            spec.__class__ = _WatchedSpec
            if spec.__dict__.get("_initializing") or "_fi_shim_notify" not in spec.__dict__:
                return
            # It ended in another thread between our look and our change: nobody will call back.
            del spec.__dict__["_fi_shim_notify"]
            spec.__class__ = ModuleSpec
        with contextlib.suppress(Exception):
            callback(module)

    def forget(self) -> None:
        """Watch nothing any more and leave `sys.meta_path`."""
        self._callbacks.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Let the other finders find a watched module, and lend its loader our callback. Anything else is not ours."""
        callback = self._callbacks.get(fullname)
        if callback is None:
            return None
        with contextlib.suppress(Exception):  # what another finder raised, it raises again when importlib asks it
            being_searched = self._names_being_searched()
            if fullname in being_searched:
                return None
            being_searched.add(fullname)
            try:
                spec = _first_spec(self, fullname, path, target)
            finally:
                being_searched.discard(fullname)
            if spec is not None and hasattr(spec.loader, "exec_module"):
                spec.loader = _NotifyingLoader(spec.loader, callback)
            return spec
        return None

    def _names_being_searched(self) -> set[str]:
        """Per thread: a search in one thread must not make another thread's import miss its callback."""
        names: set[str] | None = getattr(self._searching, "names", None)
        if names is None:
            names = self._searching.names = set()
        return names


def _first_spec(own: PostImportFinder, fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find_spec = getattr(finder, "find_spec", None)
        if finder is own or find_spec is None:
            continue
        spec: ModuleSpec | None = find_spec(fullname, path, target)
        if spec is not None:
            return spec
    return None
