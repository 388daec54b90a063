from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from fi_shim.importing import PostImportFinder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType


class Package:
    """A package on disk whose submodule `watched` is imported by tests."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.name = name
        self.write("__init__", "")

    def write(self, module: str, source: str) -> str:
        (self.folder / f"{module}.py").write_text(source)
        importlib.invalidate_caches()
        return f"{self.name}.{module}"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Package]:
    name = f"package_{abs(hash(request.node.nodeid))}"
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Package(tmp_path, name)
    for module in [m for m in sys.modules if m.split(".")[0] == name]:
        del sys.modules[module]


@pytest.fixture
def finder() -> Iterator[PostImportFinder]:
    finder = PostImportFinder()
    yield finder
    finder.forget()


def test_calls_back_after_the_module_body_and_leaves_the_loader_as_it_was(package: Package, finder: PostImportFinder) -> None:
    name = package.write("watched", "value = 1")
    seen: list[int] = []
    finder.watch(name, lambda module: seen.append(module.value))
    assert seen == []
    module = importlib.import_module(name)
    assert seen == [1]
    plain = importlib.util.spec_from_file_location("plain", package.folder / "watched.py")
    assert plain is not None
    assert module.__spec__ is not None
    assert type(module.__loader__) is type(plain.loader) is type(module.__spec__.loader)


def test_calls_back_at_once_for_a_module_that_is_there(package: Package, finder: PostImportFinder) -> None:
    name = package.write("watched", "")
    module = importlib.import_module(name)
    seen: list[ModuleType] = []
    finder.watch(name, seen.append)
    assert seen == [module]


def test_a_failed_import_does_not_cost_the_callback(package: Package, finder: PostImportFinder) -> None:
    name = package.write("watched", "raise RuntimeError('first')")
    seen: list[ModuleType] = []
    finder.watch(name, seen.append)
    with pytest.raises(RuntimeError, match="first"):
        importlib.import_module(name)
    assert seen == []
    package.write("watched", "value = 'this body is of another length'")
    module = importlib.import_module(name)
    assert seen == [module]


def test_fires_again_for_a_second_module_object_and_for_a_reload(package: Package, finder: PostImportFinder) -> None:
    name = package.write("watched", "")
    seen: list[ModuleType] = []
    finder.watch(name, seen.append)
    first = importlib.import_module(name)
    del sys.modules[name]
    second = importlib.import_module(name)
    assert seen == [first, second]
    importlib.reload(second)
    assert seen == [first, second, second]


def test_a_module_that_is_half_imported_calls_back_at_its_end(package: Package, finder: PostImportFinder) -> None:
    seen: list[bool] = []
    sys.modules[f"{package.name}_registrar"] = registrar = type(sys)("registrar")
    name = f"{package.name}.watched"
    registrar.register = lambda: finder.watch(name, lambda module: seen.append(hasattr(module, "last")))  # type: ignore[attr-defined]
    package.write("watched", f"import {package.name}_registrar as r\nr.register()\nlast = True")
    module = importlib.import_module(name)
    del sys.modules[f"{package.name}_registrar"]
    assert seen == [True]
    assert type(module.__spec__).__name__ == "ModuleSpec"


def test_a_module_that_fails_after_it_was_watched_half_imported_does_not_call_back(package: Package, finder: PostImportFinder) -> None:
    seen: list[ModuleType] = []
    sys.modules[f"{package.name}_registrar"] = registrar = type(sys)("registrar")
    name = f"{package.name}.watched"
    registrar.register = lambda: finder.watch(name, seen.append)  # type: ignore[attr-defined]
    package.write("watched", f"import {package.name}_registrar as r\nr.register()\nraise RuntimeError('late')")
    with pytest.raises(RuntimeError, match="late"):
        importlib.import_module(name)
    assert seen == []
    package.write("watched", "value = 'now it works, and is longer than before, so that no cached bytecode is used'")
    del sys.modules[f"{package.name}_registrar"]
    assert importlib.import_module(name) is seen[0]


def test_a_search_in_one_thread_does_not_make_another_threads_import_miss_its_callback(package: Package, finder: PostImportFinder) -> None:
    name = package.write("watched", "")
    importlib.import_module(package.name)
    seen: list[ModuleType] = []
    finder.watch(name, seen.append)
    imported = threading.Event()

    class Slow:
        """A finder that, in the main thread's search, waits until the other thread has imported."""

        def find_spec(self, fullname: str, path: object, target: object = None) -> None:
            if fullname == name and threading.current_thread() is threading.main_thread():
                thread = threading.Thread(target=lambda: (importlib.import_module(name), imported.set()))
                thread.start()
                assert imported.wait(10)
                thread.join()

    slow = Slow()
    sys.meta_path.insert(sys.meta_path.index(finder) + 1, slow)  # type: ignore[arg-type]
    try:
        finder.find_spec(name, [str(package.folder)])  # called directly, as pkgutil does: importlib would hold its lock
    finally:
        sys.meta_path.remove(slow)  # type: ignore[arg-type]
    assert len(seen) == 1


def test_works_below_and_above_wrapts_finder(package: Package, finder: PostImportFinder) -> None:
    wrapt = pytest.importorskip("wrapt")
    order: list[str] = []
    for number, ours_first in enumerate([True, False]):
        name = package.write(f"watched{number}", "")
        steps = [
            lambda name=name: finder.watch(name, lambda _: order.append("ours")),
            lambda name=name: wrapt.register_post_import_hook(lambda _: order.append("wrapt"), name),
        ]
        for step in steps if ours_first else reversed(steps):
            step()
        importlib.import_module(name)
    assert sorted(order) == ["ours", "ours", "wrapt", "wrapt"]


def test_forget_leaves_no_trace(package: Package) -> None:
    before = list(sys.meta_path)
    finder = PostImportFinder()
    name = package.write("watched", "")
    seen: list[ModuleType] = []
    finder.watch(name, seen.append)
    finder.forget()
    assert sys.meta_path == before
    importlib.import_module(name)
    assert seen == []


def test_an_unknown_module_stays_unknown(finder: PostImportFinder) -> None:
    finder.watch("no_such_module_anywhere", lambda _: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_anywhere")
    assert importlib.util.find_spec("no_such_module_anywhere") is None
