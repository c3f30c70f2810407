"""Annotations in quotes. They hide names of theirs, and need no quotes once the names come from a plain import."""

from __future__ import annotations

import libcst as cst

from defserve.tooling.migrate.facts import Facts
from defserve.tooling.migrate.tables import NAMES
from defserve.tooling.migrate.uses import uses_of


def unquoted(module: cst.Module, facts: Facts) -> cst.Module:
    """The module with `"Context | None"` as `Context | None`. Lines stay where they are."""
    return module.visit(_Unquoting(_rewritten(facts)))


def _rewritten(facts: Facts) -> set[str]:
    """The names in the program that are written as ours."""
    return {local for local, name in facts.names.items() if name in NAMES}


def quoted(text: cst.BaseExpression) -> cst.BaseExpression | None:
    """The expression in a string; None if it is no string, or if none is in it."""
    value = text.evaluated_value if isinstance(text, cst.SimpleString) else None
    try:
        return cst.parse_expression(value) if isinstance(value, str) else None
    except cst.ParserSyntaxError:
        return None


class _Unquoting(cst.CSTTransformer):
    def __init__(self, theirs: set[str]) -> None:
        super().__init__()
        self._theirs = theirs

    def leave_Annotation(self, original_node: cst.Annotation, updated_node: cst.Annotation) -> cst.Annotation:
        if (inner := quoted(updated_node.annotation)) is None:
            return updated_node
        names = {use.name for use in uses_of(inner)} - {"None"}
        return updated_node.with_changes(annotation=inner) if names and names <= self._theirs else updated_node
