"""Which release a FlashInfer is by its content, whatever its version says.

Whole files first; only where one differs, the watched functions.
"""

from __future__ import annotations

import gc
import importlib.util
import re
import sys
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from fi_shim.compatibility import known_releases, load_release, release_path
from fi_shim.drift.fingerprint import IMPORTS, Definition, definitions, file_digest
from fi_shim.drift.watched import ALSO_HASHED, WATCHED, file_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fi_shim.compatibility import Release

UNLABELLED: Final = "unknown"
PACKAGE: Final = "flashinfer"


class NoSourceError(ValueError):
    """There is no FlashInfer there; the text says where was looked."""


@dataclass(frozen=True)
class Change:
    """One difference from the release that a FlashInfer is most like."""

    name: str
    """Qualified: flashinfer.comm.mnnvl.SymmDeviceMemory.__init__."""
    what: Literal["changed", "parameters changed", "gone", "new"]
    file: str
    """Path inside the tree."""
    line: int

    def __str__(self) -> str:
        return f"{self.name} {self.what} ({self.file}:{self.line})"


@dataclass(frozen=True)
class Identity:
    """A FlashInfer, recognised."""

    root: Path
    """Folder that contains `flashinfer/`."""
    label: str
    """The version that it says it is."""
    release: Release
    """The table of the release that it is, or is most like."""
    how: Literal["files", "functions", "changed"]
    changes: tuple[Change, ...] = ()

    @property
    def same_code(self) -> bool:
        """Whether all that a regime or patch relies on is as in `release`."""
        return self.how != "changed"


@dataclass
class _Tree:
    """Digests of a tree, computed when they are needed."""

    root: Path
    files: dict[str, str] = field(default_factory=dict)
    definitions: dict[str, tuple[str, Definition]] = field(default_factory=dict)
    """Qualified name -> file and definition."""

    def read_files(self) -> None:
        for module in (*WATCHED, *ALSO_HASHED):
            path = self.root / file_of(module)
            if path.is_file():
                self.files[file_of(module)] = file_digest(path)

    def read_definitions(self) -> None:
        collecting = gc.isenabled()
        gc.disable()  # its passes over fresh syntax trees cost as much as parsing does
        try:
            self._read_definitions()
        finally:
            if collecting:
                gc.enable()

    def _read_definitions(self) -> None:
        for module, names in WATCHED.items():
            file = file_of(module)
            if file in self.files:
                source = (self.root / file).read_text(encoding="utf-8")
                self.definitions |= {f"{module}.{name}": (file, found) for name, found in definitions(source, names).items()}


def identify(root: Path, label: str | None = None) -> Identity:
    """Recognise the FlashInfer in `root`.

    Args:
        root: a folder that contains `flashinfer/`: a source tree, site-packages.
        label: the version that it says it is; None: look for it there.

    Raises:
        NoSourceError: no FlashInfer there, or one without all-reduce-fusion workspaces.
        CompatibilityError: a table is missing or wrong.
        SyntaxError: its code is not Python.
    """
    tree = _Tree(root)
    tree.read_files()
    if not tree.files.keys() & {file_of("flashinfer.comm.allreduce")}:
        raise NoSourceError(f"{root}: no flashinfer/comm/allreduce.py there")
    label = label_of(root) if label is None else label
    release = _most_like(label, {file: f'"{file}" = "{digest}"' for file, digest in tree.files.items()})
    if _equal_files(tree, release):
        return Identity(root, label, release, "files")
    tree.read_definitions()
    release = _most_like(label, {name: f'"{name}" = "{found.digest}"' for name, (_, found) in tree.definitions.items()})
    changes = tuple(_changes(tree, release))
    return Identity(root, label, release, "changed" if changes else "functions", changes)


def installed_root() -> Path:
    """Folder that contains the `flashinfer` that is, or would be, imported. NoSourceError if there is none. Imports nothing."""
    module = sys.modules.get("flashinfer")
    file = getattr(module, "__file__", None)
    if file is None:
        spec = importlib.util.find_spec("flashinfer") if module is None else None
        file = spec.origin if spec is not None else None
    if file is None:
        raise NoSourceError("flashinfer-python is not installed here")
    return Path(file).parent.parent


def label_of(root: Path) -> str:
    """The version that a tree says it is, or UNLABELLED."""
    for folder in sorted(root.glob("flashinfer_python-*.dist-info")):
        return folder.name.removeprefix("flashinfer_python-").removesuffix(".dist-info")
    for path, pattern in ((root / "flashinfer" / "_build_meta.py", r"__version__\s*=\s*[\"']([^\"']+)"), (root / "version.txt", r"(\S+)")):
        if path.is_file() and (found := re.search(pattern, path.read_text(encoding="utf-8", errors="replace"))):
            return found[1]
    return UNLABELLED


def installed_label() -> str:
    """Version of the installed distribution, or UNLABELLED. A module's own word counts for more: see `label_of`."""
    try:
        return version("flashinfer-python")
    except PackageNotFoundError:
        return UNLABELLED


def _most_like(label: str, lines: Mapping[str, str]) -> Release:
    """The release whose table has most of `lines`; among equals the one that `label` names, else the newest.

    Looked for in the tables' text: parsing forty tables would take longer than everything else.
    """
    public = label.partition("+")[0]
    if public in known_releases() and _has_all(load_release(public), lines):
        return load_release(public)
    scores = {}
    for age, name in enumerate(known_releases()):
        text = release_path(name).read_text(encoding="utf-8")
        scores[name] = (sum(line in text for line in lines.values()), name == public, age)
    return load_release(max(scores, key=lambda name: scores[name]))


def _has_all(release: Release, lines: Mapping[str, str]) -> bool:
    known = {**release.files, **release.functions}
    return all(f'"{name}" = "{known.get(name)}"' == line for name, line in lines.items())


def _equal_files(tree: _Tree, release: Release) -> bool:
    return bool(release.files) and dict(release.files) == tree.files


def _changes(tree: _Tree, release: Release) -> list[Change]:
    changes = []
    for name, (file, found) in tree.definitions.items():
        known = release.functions.get(name)
        if known is None:
            if not name.endswith(IMPORTS):
                changes.append(Change(name, "new", file, found.line))
        elif known != found.digest:
            parameters = known.partition(":")[2] != found.digest.partition(":")[2]
            changes.append(Change(name, "parameters changed" if parameters else "changed", file, found.line))
    for name in release.functions:
        if name not in tree.definitions:
            module = next((module for module in WATCHED if name.startswith(f"{module}.")), PACKAGE)
            changes.append(Change(name, "gone", file_of(module), 1))
    elsewhere = {_module_of(change) for change in changes if not change.name.endswith(IMPORTS)}
    told = [change for change in changes if not change.name.endswith(IMPORTS) or _module_of(change) not in elsewhere]
    return sorted(told, key=lambda change: change.what == "new")


def _module_of(change: Change) -> str:
    return next((module for module in WATCHED if change.name.startswith(f"{module}.")), PACKAGE)
