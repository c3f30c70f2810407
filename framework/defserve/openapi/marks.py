"""What a tool may do, by the method of its operation: GET is safe, DELETE is dangerous, the rest is moderate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from defserve.errors import UsageError
from defserve.openapi.documents.operations import Operation
from defserve.openapi.selection import Pattern, matches
from defserve.protocols.mgp.security.security import Security

READING: Final = frozenset({"get", "head", "options"})
IDEMPOTENT: Final = READING | {"put", "delete"}

_RISKS: Final[Mapping[str, Any]] = {**dict.fromkeys(READING, "safe"), "delete": "dangerous"}


def security_of(operation: Operation, name: str, marks: Mapping[Pattern, Any]) -> Security:
    """The mark of a tool: the last of `marks` that means it, or else that of its method."""
    given: Any = _RISKS.get(operation.method, "moderate")
    for pattern, mark in marks.items():
        if matches(pattern, operation, name):
            given = mark
    if isinstance(given, Security):
        return given
    if given not in ("safe", "moderate", "dangerous"):
        raise UsageError(
            f"marks={{…: {given!r}}} is not possible", fix='use "safe", "moderate", "dangerous" or Security(…)'
        )
    return Security(given, effects=() if given == "safe" else ("network",), where=str(operation))


def hints_of(operation: Operation) -> dict[str, Any]:
    """MCP's hints that the method tells, besides those that follow from the mark."""
    hints: dict[str, Any] = {"openWorldHint": True}
    if operation.method in ("put", "delete"):
        hints["idempotentHint"] = True
    return hints
