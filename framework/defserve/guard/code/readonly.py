"""R4: readonly code changes only what it made itself, as far as `ownership` can tell."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from defserve.guard.code.names import MUTATORS
from defserve.guard.code.ownership import ARGUMENT_MUTATORS, Ownership
from defserve.guard.code.references import References
from defserve.guard.code.walk import Visit
from defserve.guard.verdict import Violation

_SYMBOLS = {"Add": "+", "Sub": "-", "Mult": "*", "Div": "/", "BitOr": "|", "BitAnd": "&", "BitXor": "^"}


class ReadonlyRules:
    """The violations of R4 in one walked tree."""

    def __init__(self, references: References) -> None:
        self.references, self.walk = references, references.walk
        self._own = Ownership(references).own

    def __iter__(self) -> Iterator[Violation]:
        for visit in self.walk.visits:
            node = visit.node
            match node:
                case ast.Attribute(ctx=ast.Load()) if node.attr in MUTATORS:
                    # A module's function of that name (`heapq.merge`, `operator.add`) changes no object by itself.
                    base = self.references.refer(node.value, visit.scope)
                    if not self._own(node.value, visit.scope) and not (base is not None and base.is_module):
                        yield _write(node, f".{node.attr}(")
                case ast.Attribute(ctx=ast.Store() | ast.Del()):
                    yield _write(node, f".{node.attr} =")
                case ast.Subscript(ctx=ast.Store() | ast.Del()) if not self._own(node.value, visit.scope):
                    yield _write(node, "[…] =")
                case ast.AugAssign(target=ast.Name() as target) if not self._own(target, visit.scope):
                    yield _write(node, f"{target.id} {_SYMBOLS.get(type(node.op).__name__, '')}=")
                case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()):
                    yield from self._argument(visit, node)
                case _:
                    pass

    def _argument(self, visit: Visit, node: ast.Name | ast.Attribute) -> Iterator[Violation]:
        reference = self.references.refer(node, visit.scope)
        if reference is None or reference.dotted not in ARGUMENT_MUTATORS:
            return
        call = visit.parent.node if visit.parent else None
        if isinstance(call, ast.Call) and call.func is node and call.args:
            position = 1 if reference.dotted in ("json.dump", "struct.pack_into") else 0
            if len(call.args) > position and self._own(call.args[position], visit.scope):
                return
        yield _write(node, f"{reference.dotted}(")


def _write(node: ast.expr | ast.AugAssign, pattern: str) -> Violation:
    return Violation("write", f"Blocked write: '{pattern}' on an object the code did not make", node.lineno)
