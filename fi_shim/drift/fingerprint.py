"""A fingerprint of what a function does: stable over formatting, comments, docstrings, annotations, log texts and Python versions.

The tree is serialised by our own rules, not by `ast.dump`, whose output differs between Pythons.
"""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

DIGEST_CHARACTERS: Final = 24
PARAMETER_CHARACTERS: Final = 8
IMPORTS: Final = "<imports>"
"""Stands for where the watched functions of a module import the names from that they use."""

# Fields that say nothing about behaviour, or that only some Pythons have.
_SILENT_FIELDS: Final = frozenset({"annotation", "returns", "type_comment", "type_params", "type_ignores", "ctx", "kind", "simple"})
_LOG_METHODS: Final = frozenset({"debug", "info", "warning", "warn", "error", "exception", "critical", "log"})
_LOGGERS: Final = frozenset({"logger", "logging", "log", "warnings"})
_TEXT: Final = "<text>"


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hex. OSError if it cannot be read."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fingerprint(source: str, qualified_name: str) -> str | None:
    """Fingerprint of one function, class or module-level constant in `source`, or None if it is not there.

    Args:
        source: text of a module.
        qualified_name: "function", "Class.method" or "CONSTANT".

    Raises:
        SyntaxError: `source` is not Python.
    """
    node = _find(ast.parse(source), qualified_name.split("."))
    return None if node is None else node_fingerprint(node)


@dataclass(frozen=True)
class Definition:
    """One function, class head or constant as it stands in a file."""

    digest: str
    """Fingerprint; for a function followed by a colon and the fingerprint of its parameters."""
    line: int


def definitions(source: str, names: Iterable[str]) -> dict[str, Definition]:
    """All of `names` that `source` has, by qualified name; `Class.*` gives the class's head and each of its members.

    Raises:
        SyntaxError: `source` is not Python.
    """
    tree = ast.parse(source)
    nodes = {qualified: node for name in names for qualified, node in _named(tree, name)}
    found = {name: Definition(_digest(node), getattr(node, "lineno", 1)) for name, node in nodes.items()}
    if nodes:
        origins = _import_origins(tree, {name for node in nodes.values() for name in _names_used(node)})
        found[IMPORTS] = Definition(_hashed(origins), 1)
    return found


def _named(tree: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
    owner, _, member = name.rpartition(".")
    if member != "*":
        node = _find(tree, name.split("."))
        if node is not None:
            yield name, node
        return
    found = _find(tree, owner.split("."))
    if not isinstance(found, ast.ClassDef):
        return
    yield owner, ast.ClassDef(found.name, found.bases, found.keywords, [], found.decorator_list, lineno=found.lineno)
    for node in reversed(list(_statements(found))):  # the last definition of a name counts
        if _says_nothing(node):
            continue
        names = [target.id for target in getattr(node, "targets", [getattr(node, "target", None)]) if isinstance(target, ast.Name)]
        for own in [node.name] if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) else names:
            yield f"{owner}.{own}", node


def _digest(node: ast.AST) -> str:
    whole = node_fingerprint(node)
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return whole
    return f"{whole}:{node_fingerprint(node.args)[:PARAMETER_CHARACTERS]}"


def _names_used(node: ast.AST) -> Iterator[str]:
    """Names in expressions and statements, annotations left out."""
    if isinstance(node, ast.Name):
        yield node.id
    for name in node._fields:
        value = getattr(node, name, None)
        if name not in _SILENT_FIELDS:
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, ast.AST):
                    yield from _names_used(item)


def _import_origins(tree: ast.AST, used: set[str]) -> Iterator[str]:
    """Where the names in `used` come from, as far as the module imports them at its top."""
    origins = []
    for node in _statements(tree):
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            origins += [
                f"{alias.asname or alias.name} = {module}.{alias.name}" for alias in node.names if (alias.asname or alias.name) in used
            ]
        elif isinstance(node, ast.Import):
            origins += [f"{alias.asname or alias.name} = {alias.name}" for alias in node.names if (alias.asname or alias.name) in used]
    yield from sorted(origins)


def node_fingerprint(node: ast.AST) -> str:
    """Fingerprint of a syntax tree."""
    return _hashed(_serialised(node))


def _hashed(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:DIGEST_CHARACTERS]


def _find(tree: ast.AST, names: list[str]) -> ast.AST | None:
    found: ast.AST | None = tree
    for name in names:
        found = next((node for node in _statements(found) if _defines(node, name)), None)
    return found


def _statements(node: ast.AST | None) -> Iterator[ast.AST]:
    """The statements of a body, through `if` and `try` at the same level; the last definition of a name is the one that counts."""
    for statement in reversed(getattr(node, "body", [])):
        if isinstance(statement, (ast.If, ast.Try, ast.With)):
            yield from _statements(statement)
        yield statement


def _defines(node: ast.AST, name: str) -> bool:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name == name
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name and node.value is not None


def _serialised(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.AnnAssign) and node.value is not None:  # an annotation changes nothing
        node = ast.Assign(targets=[node.target], value=node.value)
    if isinstance(node, ast.Constant):
        yield f"constant {type(node.value).__name__} {node.value!r}"
        return
    silent_text = _is_log_call(node)
    yield f"({type(node).__name__}"
    for name in sorted(node._fields):
        value = getattr(node, name, None)
        if name in _SILENT_FIELDS or value is None or value == []:
            continue
        yield name
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, ast.AST):
                if not _says_nothing(item):
                    yield from _without_texts(item) if silent_text else _serialised(item)
            else:
                yield repr(item)
    yield ")"


def _without_texts(node: ast.AST) -> Iterator[str]:
    """What a log call evaluates, without what it says."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield _TEXT
    elif isinstance(node, ast.JoinedStr):
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                yield from _serialised(part.value)
    else:
        yield from _serialised(node)


def _says_nothing(node: ast.AST) -> bool:
    """A docstring, any other string that stands as a statement, or an annotation alone."""
    if isinstance(node, ast.AnnAssign) and node.value is None:
        return True
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_log_call(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id == "print"
    return (
        isinstance(node.func, ast.Attribute)
        and node.func.attr in _LOG_METHODS
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in _LOGGERS
    )
