"""How far a server is believed: what its trust level means, and what is left of the hints of its tools (MCP §9.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from defserve.kernel.config.entries import ServerEntry

TRUSTED: Final = frozenset({"trusted", "core"})
SANDBOXED: Final = frozenset({"sandboxed", "experimental", "untrusted"})

# A hint, and the value that promises less harm. Only a trusted server's promise counts.
PROMISES: Final[Mapping[str, bool]] = {
    "readOnlyHint": True,
    "destructiveHint": False,
    "idempotentHint": True,
    "openWorldHint": False,
}


def level_of(entry: ServerEntry) -> str:
    return (entry.mgp.trust_level if entry.mgp is not None else None) or "standard"


def is_trusted(entry: ServerEntry) -> bool:
    """Whether the operator has said that the server's own words about its tools are true."""
    return level_of(entry) in TRUSTED


def is_sandboxed(entry: ServerEntry) -> bool:
    """Whether stricter rules hold for the server (§15.4)."""
    return level_of(entry) in SANDBOXED


def believed_hints(hints: Mapping[str, Any]) -> dict[str, Any]:
    """The hints of a server that nobody vouches for: its warnings, and nothing that only looks like a hint."""
    kept = {name: value for name, value in hints.items() if name in PROMISES and value is (not PROMISES[name])}
    return {"title": hints["title"], **kept} if isinstance(hints.get("title"), str) else kept
