"""What every judge answers: allowed or not, and if not, why, in words a model can act on (MGP §7.4).

A judge never raises and does no I/O: whatever text it is given, it answers with a `Verdict`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from defserve.errors import Rejected


@dataclass(frozen=True, slots=True)
class Violation:
    """One reason for a refusal. `str()` gives the line a peer reads."""

    rule: str
    """The rule's short, stable name: `import`, `metacharacter`, `private-address`."""
    message: str
    """What was found, in the wording of MGP §7.4: `Blocked import: 'subprocess'`."""
    line: int | None = None
    """The line of the source, from 1; None if there are no lines."""

    def __str__(self) -> str:
        return self.message if self.line is None else f"{self.message} (line {self.line}, {self.rule})"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judgement. It is true if the input is allowed, so you can write `if judge(x)`."""

    allowed: bool
    violations: tuple[Violation, ...] = ()
    argv: tuple[str, ...] | None = None
    """Of a shell command that is allowed: its words, safe to run with `shell=False`."""
    url: str | None = None
    """Of a URL that is allowed: the URL as it was understood."""
    hints: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What would be allowed instead, for a peer that wants to correct itself."""

    def __bool__(self) -> bool:
        return self.allowed


def make_refused_verdict(violations: Iterable[Violation], hints: Mapping[str, Any] | None = None) -> Verdict:
    """The verdict of a judge that found something."""
    return Verdict(False, tuple(violations), hints=hints or {})


def require_allowed(verdict: Verdict, reason: str, guard: str) -> Verdict:
    """The verdict, if it allows the input. Raises Rejected otherwise."""
    if not verdict.allowed:
        raise Rejected(reason, verdict.violations, verdict.hints, guard=guard)
    return verdict
