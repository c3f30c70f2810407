"""MGP §5.4 from the client's side: asking about and changing who may use which tool of a server."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack

from defserve.errors import PeerError

if TYPE_CHECKING:
    from defserve.host.client import Client

Json: TypeAlias = dict[str, Any]


class Entry(TypedDict, total=False):
    """What an entry may say besides whom and what it is about."""

    permission: Literal["allow", "deny"]
    expires_at: datetime
    justification: str


async def query(client: Client, agent_id: str, tool: str | None) -> Json:
    return await client.request("mgp/access/query", _about(client, agent_id, tool))


async def grant(client: Client, agent_id: str, tool: str | None, **entry: Unpack[Entry]) -> Json:
    from defserve.protocols.mgp import instants

    params = _about(client, agent_id, tool, entry_type=_type(tool), permission="allow") | dict(entry)
    if "expires_at" in entry:
        params["expires_at"] = instants.wire(entry["expires_at"])
    return await client.request("mgp/access/grant", params)


async def revoke(client: Client, agent_id: str, tool: str | None) -> Json:
    return await client.request("mgp/access/revoke", _about(client, agent_id, tool, entry_type=_type(tool)))


def _type(tool: str | None) -> str:
    return "server_grant" if tool is None else "tool_grant"


def _about(client: Client, agent_id: str, tool: str | None, **more: Any) -> Json:
    """Raises PeerError where the server offers no access control."""
    if client.mgp is None or "access_control" not in client.mgp.sections:
        raise PeerError("this server offers no access control to this client")
    about: Json = {"agent_id": agent_id, "server_id": client.mgp.server_id, **more}
    return about if tool is None else about | {"tool_name": tool}
