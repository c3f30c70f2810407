"""What a tool may do, in the words that stand behind it in a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from defserve.cli.screen.blocks import Part
from defserve.cli.screen.styles import state
from defserve.host.mgp.security.tool_security import tool_security
from defserve.tooling.lint.definitions import security_of

# A hint of MCP → the word for it, if the tool has no mark.
HINTS: Final = {"readOnlyHint": "read-only", "destructiveHint": "destructive", "openWorldHint": "open world"}
HARMLESS: Final = frozenset(("safe", "unmarked", "read-only"))
"""Words that a short list leaves out."""


def tag_parts(words: list[str]) -> list[Part]:
    """`  [dangerous, confirmed]`, with the style of what each word says."""
    parts: list[Part] = []
    for number, word in enumerate(words):
        parts += [", " if number else "  [", state(word)]
    return [*parts, "]"] if parts else []


def tags(tool: Mapping[str, Any]) -> list[str]:
    """What a tool may do, in a few words: from its mark, or from its hints."""
    security = security_of(tool)
    if not security or not tool_security("", dict(tool)).is_marked:
        hints: Mapping[str, Any] = tool.get("annotations") or {}
        return ["unmarked", *(word for hint, word in HINTS.items() if hints.get(hint) is True)]
    validator = security.get("validator", "none")
    said = [
        security.get("risk_level"),
        *(security.get("permissions_required") or ()),
        "confirmed" if security.get("confirmation_required") else None,
        f"checked: {validator}" if validator != "none" else None,
    ]
    return [str(word) for word in said if word]


def danger(tool: Mapping[str, Any]) -> list[str]:
    """The words of a tool that a person should know before a call; empty for one that is harmless, or unmarked."""
    return [word for word in tags(tool) if word not in HARMLESS]
