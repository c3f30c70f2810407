"""MGP §5.4: asks and changes who may use which tool of a server."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from defserve.host.fields import Json

if TYPE_CHECKING:
    from defserve.host.mgp.peer import MgpPeer


class AccessEntry(TypedDict, total=False):
    """The optional fields of an entry."""

    permission: Literal["allow", "deny"]
    expires_at: datetime
    justification: str


async def query(peer: MgpPeer, agent_id: str, tool: str | None) -> Json:
    return await _request(peer, "mgp/access/query", agent_id, tool)


async def grant(peer: MgpPeer, agent_id: str, tool: str | None, **entry: Unpack[AccessEntry]) -> Json:
    from defserve.protocols.mgp import instants

    fields = {"entry_type": _type(tool), "permission": "allow"} | dict(entry)
    if "expires_at" in entry:
        fields["expires_at"] = instants.wire(entry["expires_at"])
    return await _request(peer, "mgp/access/grant", agent_id, tool, **fields)


async def revoke(peer: MgpPeer, agent_id: str, tool: str | None) -> Json:
    return await _request(peer, "mgp/access/revoke", agent_id, tool, entry_type=_type(tool))


def _type(tool: str | None) -> str:
    return "server_grant" if tool is None else "tool_grant"


async def _request(peer: MgpPeer, method: str, agent_id: str, tool: str | None, **fields: Any) -> Json:
    """Raises PeerError if the server offers no access control to this client."""
    params: Json = {"agent_id": agent_id, "server_id": peer.server_id, **fields}
    return await peer.request("access_control", method, params if tool is None else params | {"tool_name": tool})
