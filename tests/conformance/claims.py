"""Finds in the source of the tests which requirements they claim, without running them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parents[1]


class Claim(NamedTuple):
    """One `pytest.mark.req(...)`: the id, and where it stands."""

    id: str
    where: str


def claims(root: Path = TESTS) -> Iterator[Claim]:
    """Every claim of every file below `root`. Raises ValueError for an id that is not a plain string."""
    for path in sorted(root.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "mark.req" not in source:  # most files claim nothing, and to parse is slow
            continue
        for node in _find_nodes(source):
            if isinstance(node, ast.Call) and _is_req(node.func):
                where = f"{path.relative_to(root.parent)}:{node.lineno}"
                yield from (Claim(_text(arg, where), where) for arg in node.args)


def _find_nodes(source: str) -> Iterator[ast.AST]:
    """All that may be a claim: of the statements of a file only those that name the mark, as to walk is slow."""
    lines = source.splitlines()
    for statement in ast.parse(source).body:
        decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
        first = min(node.lineno for node in (statement, *decorators))
        if any("mark.req" in line for line in lines[first - 1 : statement.end_lineno]):
            yield from ast.walk(statement)


def _is_req(func: ast.expr) -> bool:
    match func:
        case ast.Attribute(attr="req", value=ast.Attribute(attr="mark") | ast.Name(id="mark")):
            return True
        case _:
            return False


def _text(arg: ast.expr, where: str) -> str:
    if isinstance(arg, ast.Constant) and isinstance(arg.value, str):
        return arg.value
    raise ValueError(f"{where}: req() takes ids as plain strings, so that they can be found without running the tests")
