"""How far a server is believed: what its trust level means (MCP §9.2)."""

from __future__ import annotations

from typing import Final

from defserve.kernel.config.entries import ServerEntry

TRUSTED: Final = frozenset({"trusted", "core"})
SANDBOXED: Final = frozenset({"sandboxed", "experimental", "untrusted"})


def level_of(entry: ServerEntry) -> str:
    return (entry.mgp.trust_level if entry.mgp is not None else None) or "standard"


def is_trusted(entry: ServerEntry) -> bool:
    """Whether the operator has said that the server's own words about its tools are true."""
    return level_of(entry) in TRUSTED


def is_sandboxed(entry: ServerEntry) -> bool:
    """Whether stricter rules hold for the server (§15.4)."""
    return level_of(entry) in SANDBOXED
