"""Source text to code, without annotations (they decide nothing, and may name what a stand-in is not) and without destructors."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from types import CodeType


def compiled(path: Path) -> CodeType:
    """Code of a module. OSError, UnicodeDecodeError or SyntaxError if it cannot be read."""
    tree = _WithoutAnnotations().visit(ast.parse(path.read_text(encoding="utf-8"), str(path)))
    code: CodeType = compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)
    return code


class _WithoutAnnotations(ast.NodeTransformer):
    """Drops annotations; in a class body they become `object`, since dataclasses count them.

    Destructors go as well: they would run whenever Python likes, and complain on stderr of what was half made.
    """

    def __init__(self) -> None:
        self._in_class = False

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> ast.AST:
        if isinstance(node, ast.FunctionDef) and node.name == "__del__" and self._in_class:
            return ast.copy_location(ast.Pass(), node)
        outside, self._in_class = self._in_class, False
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        if not isinstance(node, ast.Lambda):
            node.returns = None
        self.generic_visit(node)
        self._in_class = outside
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _function  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        outside, self._in_class = self._in_class, True
        self.generic_visit(node)
        self._in_class = outside
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if self._in_class:
            node.annotation = ast.copy_location(ast.Name("object", ast.Load()), node.annotation)
            return node
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)
