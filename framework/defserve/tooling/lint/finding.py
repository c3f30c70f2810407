"""One problem: what it is, where it is, and what to do about it."""

from __future__ import annotations

from typing import NamedTuple

from defserve.tooling.lint.definitions import Definition


class LintFinding(NamedTuple):
    """`subject` is the item with the problem (`tool 'add'`). `where` is `file.py:12`, or empty if that is not known."""

    subject: str
    where: str
    problem: str
    fix: str


def about(item: Definition, problem: str, fix: str) -> LintFinding:
    """A finding about an item."""
    return LintFinding(f"{item.kind} {item.name!r}", item.where, problem, fix)
