"""What a backend says against its own tools: that one is dangerous, needs permissions, or has to be confirmed.

A backend takes every call for ours, and us for its user. So its warnings hold here, where the caller is known: nobody
gets by a mount what the backend would refuse it. What it says in favour of a tool counts for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from defserve.host.mgp.security.tool_security import tool_security
from defserve.protocols.mgp.agreed import NAME
from defserve.protocols.mgp.security.security import Security
from defserve.protocols.mgp.security.tool_security import ToolSecurity
from defserve.protocols.mgp.security.vocabulary import is_permission

if TYPE_CHECKING:
    from defserve.proxying.catalogue.items import RemoteTool


def apply_warnings(tool: RemoteTool) -> None:
    """Treat a tool as one of ours that says the same. Raises UsageError if it contradicts itself."""
    listed = tool_security(tool.inner, tool.raw)
    permissions = tuple(name for name in listed.permissions or () if is_permission(name))
    if not listed.security or not (listed.risk == "dangerous" or permissions or listed.confirmation_required):
        return
    risk: Any = "moderate" if listed.risk == "safe" else listed.risk
    security = Security(risk, permissions, confirm=listed.confirmation_required or None, where=tool.where)
    tool.facets[NAME] = ToolSecurity(security, ())
    tool.is_dangerous = risk == "dangerous"
