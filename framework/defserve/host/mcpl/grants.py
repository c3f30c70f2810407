"""MCPL 0.5 §5–6: what a server claims, and which of it this host grants.

A grant counts from the server's receipt on. What is taken back stops counting at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from defserve.errors import UsageError
from defserve.host.fields import Json
from defserve.protocols.mcpl.errors import CapabilityDenied
from defserve.protocols.mcpl.grants import covered
from defserve.protocols.mcpl.vocabulary import PATHS
from defserve.wire.jsonvalue import is_object

TOOLS: Final = "tools"


class HostGrants:
    """The grants for one server. Until `claim` is called, the server is below 0.5, and nothing is denied.

    `wish` are paths or patterns; None grants all that the server claims and this host is `able` to do.
    """

    def __init__(self, wish: Sequence[str] | None, able: frozenset[str]) -> None:
        if isinstance(wish, str) or (wish is not None and not covered(wish) and wish):
            raise UsageError(f"grants={wish!r} names no capability", fix=f"use some of {', '.join(PATHS)}")
        self.by_grant = False
        self.claimed: frozenset[str] = frozenset()
        self.active: frozenset[str] = frozenset()
        self._able = able if wish is None else able & covered(wish)

    @property
    def wanted(self) -> frozenset[str]:
        """What the server claims and may have."""
        return self.claimed & self._able

    def claim(self, claimed: frozenset[str]) -> None:
        """Take what the server claims now. What it does not claim any more is revoked."""
        self.by_grant, self.claimed = True, claimed
        self.active &= self.wanted

    def settle(self, is_accepted: bool) -> None:
        """The server has answered a policy: all that is wanted counts, or nothing does."""
        self.active = self.wanted if is_accepted else frozenset()

    def permits(self, path: str) -> bool:
        return not self.by_grant or path in self.active

    def require(self, path: str) -> None:
        """Raises CapabilityDenied."""
        if not self.permits(path):
            raise CapabilityDenied(path)

    def wire(self) -> Json:
        """The lists of a policy."""
        return {
            "effectiveCapabilities": sorted(self.wanted),
            "deniedCapabilities": sorted(self.claimed - self.wanted),
        }


def claims(block: Mapping[str, Any], capabilities: Mapping[str, Any]) -> frozenset[str]:
    """The paths that a server claims: by its block of MCPL, and for tools by its capabilities."""
    found = frozenset(path for path in PATHS if path != TOOLS and _claims(block, path))
    return found | {TOOLS} if is_object(capabilities.get(TOOLS)) else found


def _claims(node: Any, path: str) -> bool:
    """`true` claims everything below; an object at a path that has paths below it claims that path."""
    for name in path.split("."):
        if node is True:
            return True
        node = node.get(name) if isinstance(node, Mapping) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return node is True or (path == "inferenceRequest" and is_object(node))
