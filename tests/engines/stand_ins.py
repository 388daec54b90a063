"""Stand-ins for modules that engines import and that are too heavy for a test: README.md lists them."""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Inert:
    """Answers every attribute, call and index with itself; as a decorator it leaves the function alone."""

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not keywords else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return "cpu" if name == "backend" else self  # of the target that triton compiles for

    def __getitem__(self, key: Any) -> Any:
        return self

    def __or__(self, other: Any) -> Any:  # in an annotation
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()


class _InertModule(ModuleType):
    __version__ = "0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Inert()


class _Loader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _InertModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = []


class _Finder(MetaPathFinder):
    def __init__(self, packages: tuple[str, ...]) -> None:
        self._packages = packages

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, _Loader(), is_package=True) if fullname.partition(".")[0] in self._packages else None


def install(*packages: str) -> None:
    """From now on, these packages are stand-ins, also where the real ones are installed. FlashInfer must be imported already."""
    sys.meta_path.insert(0, _Finder(packages))
