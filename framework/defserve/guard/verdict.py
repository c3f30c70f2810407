"""What every judge answers: allowed or not, and if not, why, in words a model can act on (MGP §7.4).

A judge never raises and does no I/O: whatever text it is given, it answers with a `Verdict`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
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
    """What would be allowed instead, for a peer that wants to correct itself. A refusal's text repeats two of them:
    `nearest`, the few names that are closest to what was asked, or else `form`, what to write. The rest is detail."""
    author_note: str = ""
    """What the tool's author could change. It is logged once, and never sent."""

    def __bool__(self) -> bool:
        return self.allowed


def make_refused_verdict(
    violations: Iterable[Violation], hints: Mapping[str, Any] | None = None, author_note: str = ""
) -> Verdict:
    """The verdict of a judge that found something."""
    return Verdict(False, tuple(violations), hints=hints or {}, author_note=author_note)


def require_allowed(verdict: Verdict, reason: str, guard: str) -> Verdict:
    """The verdict, if it allows the input. Raises Rejected otherwise."""
    if not verdict.allowed:
        raise make_rejection(verdict, reason, guard)
    return verdict


def make_rejection(verdict: Verdict, reason: str, guard: str) -> Rejected:
    """A refusal for whoever called. What only the tool's author can change goes to the log."""
    if verdict.author_note:
        log_author_note(verdict.author_note)
    return Rejected(reason, verdict.violations, verdict.hints, guard=guard)


@lru_cache(1_000)
def log_author_note(note: str) -> None:
    """Tell the author what to change so that such a call is not refused. Each note is logged once."""
    from defserve.base.redaction import get_logger

    get_logger().warning(note)
