"""Applies every rule and sorts what they find."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from defserve.tooling.lint.definitions import Definitions
from defserve.tooling.lint.finding import LintFinding
from defserve.tooling.lint.rules import RULES, Level


class Complaint(NamedTuple):
    """A finding, and the rule that made it."""

    rule: str
    level: Level
    finding: LintFinding

    def wire(self) -> dict[str, Any]:
        return {"rule": self.rule, "level": self.level, **self.finding._asdict()}


def complaints(found: Definitions, ignore: Collection[str] = ()) -> list[Complaint]:
    """What every rule that is not ignored finds; errors first, then in the order of the source."""
    made = [
        Complaint(name, rule.level, finding)
        for name, rule in RULES.items()
        if name not in ignore
        for finding in rule.look(found)
    ]
    return sorted(made, key=lambda complaint: (complaint.level, _place(complaint.finding.where)))


def _place(where: str) -> tuple[str, int]:
    path, _, line = where.rpartition(":")
    return path, int(line) if line.isdecimal() else 0
