"""Modules of one source tree, with an import function of their own: `sys.modules` is never asked and never told."""

from __future__ import annotations

import builtins
import importlib
import importlib.util
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from fi_shim.drift.private.inert import Inert
from fi_shim.drift.private.source import compiled

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PACKAGE: Final = "flashinfer"
CREATION: Final = ("flashinfer.comm", "flashinfer.utils", "flashinfer.cuda_utils")
"""What must run; other modules of the tree become inert if they do not."""
_INERT: Final = ("flashinfer.jit", "flashinfer.trace", "flashinfer.api_logging", "flashinfer.comm.dlpack_utils", "flashinfer.triton")
_ABSENT: Final = frozenset({"mpi4py"})  # FlashInfer asks for it in a `try`
_PURE: Final = (
    "__future__", "abc", "array", "bisect", "collections", "collections.abc", "contextlib", "copy", "dataclasses", "enum", "functools",
    "heapq", "inspect", "itertools", "math", "numbers", "operator", "packaging", "packaging.version", "re", "string", "struct", "textwrap",
    "time", "types", "typing", "weakref",
)  # fmt: skip
_REAL: Final = {name: importlib.import_module(name) for name in _PURE}  # here, so that a dry run imports nothing


class PrivateModules:
    """Executes modules of a tree on demand.

    Args:
        root: folder that contains `flashinfer/`.
        stand_ins: dotted name -> what an import of it gives.
        open_file: what the name `open` means inside.
    """

    def __init__(self, root: Path, stand_ins: Mapping[str, Any], open_file: Any) -> None:
        self._root = root
        self._stand_ins = stand_ins
        self._modules: dict[str, Any] = {}
        self._builtins = {**vars(builtins), "__import__": self._import, "print": _silent, "open": open_file, "input": _refused}

    def load(self, name: str) -> Any:
        """The module `name` of the tree. Whatever its code raises is raised."""
        if name in self._modules:
            return self._modules[name]
        if name.startswith(_INERT):
            return self._modules.setdefault(name, Inert(name))
        parent, _, own_name = name.rpartition(".")
        if parent:
            self.load(parent)
        try:
            module = self._execute(name)
        except Exception:
            self._modules.pop(name, None)
            if name.startswith(CREATION):
                raise
            module = self._modules[name] = Inert(name)
        if parent and isinstance(self._modules[parent], ModuleType):
            setattr(self._modules[parent], own_name, module)
        return module

    def loaded(self) -> list[ModuleType]:
        """All that was executed so far."""
        return [module for module in self._modules.values() if isinstance(module, ModuleType)]

    def _execute(self, name: str) -> Any:
        path = self._root.joinpath(*name.split("."))
        module = ModuleType(name)
        namespace = vars(module)
        if path.is_dir():
            namespace.update(__path__=[str(path)], __package__=name, __builtins__=self._builtins, __file__=str(path / "__init__.py"))
            self._modules[name] = module
            if name in {PACKAGE, "flashinfer.comm"}:  # they import every kernel
                module.__getattr__ = lambda attribute: self._of_package(name, attribute)  # type: ignore[method-assign]
                return module
            path /= "__init__"
        file = path.with_name(path.name + ".py")
        if not file.is_file():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if "__path__" not in namespace:
            namespace["__package__"] = name.rpartition(".")[0]
        namespace.update(__builtins__=self._builtins, __file__=str(file))
        self._modules[name] = module
        exec(compiled(file), namespace)  # noqa: S102  # the release's own code, among stand-ins
        return module

    def _of_package(self, package: str, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        try:
            return self.load(f"{package}.{attribute}")
        except ModuleNotFoundError:
            return Inert(f"{package}.{attribute}")

    def _import(self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:  # noqa: A002, ARG002
        if level:
            name = importlib.util.resolve_name("." * level + name, globals["__package__"])
        module = self._find(name)
        if not fromlist:
            return self._find(name.partition(".")[0])
        if isinstance(module, ModuleType) and name.startswith(PACKAGE) and "__path__" in vars(module):
            for wanted in fromlist:
                if wanted not in vars(module) and self._is_module(f"{name}.{wanted}"):
                    self.load(f"{name}.{wanted}")
        return module

    def _is_module(self, name: str) -> bool:
        path = self._root.joinpath(*name.split("."))
        return path.is_dir() or path.with_name(path.name + ".py").is_file()

    def _find(self, name: str) -> Any:
        root = name.partition(".")[0]
        if root == PACKAGE:
            return self.load(name)
        if root in _ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in self._stand_ins:
            return self._stand_ins[name]
        return _REAL[name] if name in _REAL else Inert(name)


def _silent(*_args: Any, **_kwargs: Any) -> None:
    """Up to 0.6.5 creation prints."""


def _refused(*_args: Any, **_kwargs: Any) -> Any:
    raise OSError("a dry run asks nobody")
