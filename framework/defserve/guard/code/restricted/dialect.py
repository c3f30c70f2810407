"""RestrictedPython's language, with additions that everyday programs need and that its hooks can still guard.

Added: annotated assignment, `d[k] += 1` and `x.n += 1`, `nonlocal`, `_private` names, plain `print`, a few more
special methods, `__name__`. A bare `except:` becomes `except Exception:`.
"""

from __future__ import annotations

import ast
from typing import Any, cast

from RestrictedPython.transformer import INSPECT_ATTRIBUTES, IOPERATOR_TO_STR, RestrictingNodeTransformer

from defserve.guard.code.names import STRICT_METHODS, is_private


class RestrictedDialect(RestrictingNodeTransformer):
    """The compile policy. Method names are RestrictedPython's."""

    def check_name(self, node: Any, name: str | None, allow_magic_methods: bool = False) -> None:
        if name is None or is_private(name) or name in ("print", "printed"):
            return
        if allow_magic_methods and name in STRICT_METHODS and node.col_offset != 0:
            return
        super().check_name(node, name, False)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        # `print` stays a name: the namespace holds a safe one.
        if not (node.id == "__name__" and isinstance(node.ctx, ast.Load)):
            self.check_name(node, node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if not is_private(node.attr) or node.attr in INSPECT_ATTRIBUTES:
            return self._node(super().visit_Attribute(node))
        # Guarded at run time: `_getattr_` gives private attributes of the program's own objects only.
        name, node.attr = node.attr, "x"
        rewritten = self._node(super().visit_Attribute(node))
        if isinstance(rewritten, ast.Call):
            rewritten.args[1] = ast.copy_location(ast.Constant(name), node)
        elif isinstance(rewritten, ast.Attribute):
            rewritten.attr = name
        return rewritten

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        target = node.target
        if isinstance(target, ast.Name):
            return self._node(super().visit_AugAssign(node))
        load: ast.expr
        if isinstance(target, ast.Attribute):
            hook, load = "_augattr_", ast.Attribute(target.value, target.attr, ast.Load())
        else:
            hook, load = "_augitem_", ast.Subscript(target.value, target.slice, ast.Load())
        read = self.visit(ast.copy_location(load, target))
        symbol = cast(dict[type, str], IOPERATOR_TO_STR)[type(node.op)]
        arguments: list[ast.expr] = [ast.Constant(symbol), *read.args, self.visit(node.value)]
        call = ast.Call(ast.Name(hook, ast.Load()), arguments, [])
        return ast.fix_missing_locations(ast.copy_location(ast.Expr(call), node))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if isinstance(node.target, ast.Name):
            return self.node_contents_visit(node)
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return self.visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_Nonlocal(self, node: ast.Nonlocal | ast.Global) -> ast.AST:
        for name in node.names:
            self.check_name(node, name)
        return node

    visit_Global = visit_Nonlocal

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> Any:
        if node.type is None:
            node.type = ast.copy_location(ast.Name("Exception", ast.Load()), node)
        return super().visit_ExceptHandler(node)

    @staticmethod
    def _node(visited: Any) -> ast.AST:
        return visited
