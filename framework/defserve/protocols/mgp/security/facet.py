"""MGP §4: what a registered tool keeps of its security. Light: every server imports it, marks or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from defserve.protocols.mcp.failures import VENDOR
from defserve.protocols.mgp.agreed import NAME

if TYPE_CHECKING:
    from defserve.protocols.mgp.security.tool_security import ToolSecurity

SECURITY_KEY = VENDOR + "security"


def tool_security(item: Any) -> ToolSecurity | None:
    """What a tool declared, as it was read at registration. None for a tool that declared nothing."""
    return item.facets.get(NAME)
