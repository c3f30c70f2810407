"""Which calls of a program are awaited, read from its source: their answer is a future, that of others a value."""

from __future__ import annotations

import ast
import re
from functools import cached_property

# Functions whose arguments are awaited together or later.
GATHERING = frozenset({"gather", "create_task", "ensure_future", "wait_for", "wait", "as_completed", "shield"})
# Of the host's functions, the one that is asynchronous by its contract.
ASYNCHRONOUS = "call_tool"

_AWAIT = re.compile(rb"\bawait[\s(\\]*\Z")
_LINE = re.compile(rb"\r\n|\r|\n")


class AwaitedCalls:
    """Reads a source when its first call is asked about. Positions are offsets in its UTF-8 bytes."""

    def __init__(self, source: str) -> None:
        self._source = source.encode("utf-8", "replace")

    def is_deferred(self, start: int, name: str) -> bool:
        """Whether the call at this position is awaited: there, by a function that gathers, or by its contract."""
        if name == ASYNCHRONOUS or start in self._gathered:
            return True
        return _AWAIT.search(self._source, max(0, start - 64), start) is not None

    def line(self, start: int) -> int:
        """The line of a position, from 1."""
        return 1 + len(_LINE.findall(self._source, 0, start))

    @cached_property
    def _gathered(self) -> frozenset[int]:
        """Where calls stand that are arguments of a gathering function, at any depth."""
        if not any(word.encode() in self._source for word in GATHERING):
            return frozenset()
        try:
            tree = compile(self._source, "", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return frozenset()  # Monty reads newer syntax
        starts = [0, *(found.end() for found in _LINE.finditer(self._source))]
        outer = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node.func) in GATHERING]
        inner = (call for node in outer for part in (*node.args, *node.keywords) for call in ast.walk(part))
        return frozenset(
            starts[call.lineno - 1] + call.col_offset
            for call in inner
            if isinstance(call, ast.Call) and call.lineno <= len(starts)
        )


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
