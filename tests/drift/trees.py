"""Copies of a release's source, with one thing changed."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import fetch_flashinfer

if TYPE_CHECKING:
    from pathlib import Path

WANTED = ("comm/*.py", "utils.py", "cuda_utils.py", "__init__.py", "_build_meta.py")


def copy(release: str, target: Path) -> Path:
    """The files of creation, under `target`."""
    source = fetch_flashinfer.fetch(release)
    for pattern in WANTED:
        for path in (source / "flashinfer").glob(pattern):
            copied = target / path.relative_to(source)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copied)
    label(target, release)
    return target


def label(tree: Path, version: str) -> None:
    for folder in tree.glob("flashinfer_python-*.dist-info"):
        folder.rmdir()
    (tree / f"flashinfer_python-{version}.dist-info").mkdir()


def edit(tree: Path, file: str, old: str, new: str, *, everywhere: bool = False) -> None:
    """Replace the regular expression `old` in flashinfer/<file>; it must be there."""
    path = tree / "flashinfer" / file
    text = path.read_text(encoding="utf-8")
    changed, count = re.subn(old, new, text, count=0 if everywhere else 1, flags=re.MULTILINE | re.DOTALL)
    assert count, f"{file} has no {old!r}"
    assert changed != text
    path.write_text(changed, encoding="utf-8")
