"""JSON values: what is read of a schema that anybody may have written."""

from __future__ import annotations

import ast
from typing import Any

from defserve.core.json_values import find_limit_violation, read_required_names
from tests.effort import calls_of
from tests.imports import PACKAGE
from tests.rows import for_each_row

GIVEN: dict[str, tuple[Any, set[str]]] = {
    "names": (["a", "b"], {"a", "b"}),
    "names and others": (["a", 1, None, ["b"], {}], {"a"}),
    "a text": ("ab", set()),
    "a number": (5, set()),
    "nothing": (None, set()),
}


@for_each_row("given", GIVEN)
def test_the_required_names_of_any_schema_can_be_read(given: str):
    written, expected = GIVEN[given]
    assert read_required_names({"required": written}) == expected


MANY = 10_000
MESSAGES: dict[str, tuple[list[Any], int]] = {
    "numbers": ([1] * MANY, 100),
    "texts": (["a"] * MANY, 100),
    "empty lists": ([[] for _ in range(MANY)], 2 * MANY + 100),  # each is noted once
}


@for_each_row("message", MESSAGES)
def test_the_items_of_a_message_are_looked_at_without_a_call_for_each(message: str):
    """A peer can send two million of them in one message, and all others wait meanwhile."""
    many, calls = MESSAGES[message]
    assert find_limit_violation(many, 64, MANY) is None
    assert calls_of(lambda: find_limit_violation(many, 64, MANY)) < calls


def test_nobody_looks_for_a_name_in_the_list_of_a_schema():
    """A list is walked for each name. Whoever asks for many names makes a set of it first: `read_required_names`."""
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if '"required"' in (source := path.read_text())
        for lines in [source.splitlines()]
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        if '"required"' in "".join(lines[function.lineno - 1 : function.end_lineno])
        for node in ast.walk(function)
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn)
        if _is_listed(node.comparators[0], function)
    ]
    assert found == []


def _is_listed(searched: ast.expr, function: ast.AST) -> bool:
    """Whether this is, or was assigned in the function from, `….get("required")` or `…["required"]` itself."""
    if not isinstance(searched, ast.Name):
        return _reads(searched)
    values = [pair for node in ast.walk(function) for pair in _assignments(node)]
    return any(_reads(value) for name, value in values if name == searched.id)


def _assignments(node: ast.AST) -> list[tuple[str, ast.expr]]:
    if isinstance(node, ast.NamedExpr | ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        return [(node.target.id, node.value)]
    if not isinstance(node, ast.Assign):
        return []
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = zip(target.elts, value.elts, strict=False)
        return [(one.id, its) for one, its in pairs if isinstance(one, ast.Name)]
    return [(target.id, value)] if isinstance(target, ast.Name) else []


def _reads(value: ast.expr) -> bool:
    """Whether it reads `required`, and makes no set of it."""
    text = ast.unparse(value)
    is_set = text.startswith(("frozenset(", "set(", "read_required(", "{"))
    return not is_set and ("get('required'" in text or "['required']" in text)
