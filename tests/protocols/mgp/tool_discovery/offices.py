"""A server with a few tools of different kinds, for tests of searching them."""

from __future__ import annotations

from typing import Any

from defserve import Security, Server, dangerous, safe
from defserve.protocols.mcp.transforms import MountPrefix
from defserve.search import Search
from tests.protocols.mgp.callers import Trail
from tests.raw import Json, Raw

META = ["mgp_tools_discover", "mgp_tools_request", "mgp_tools_call", "mgp_tools_session", "mgp_tools_evict"]


def office(search: Any = "always", *, many: int = 0, **options: Any) -> tuple[Server, Trail]:
    """Five tools with words of their own, and `many` more that are all alike."""
    trail = Trail()
    server = Server("office", "1", search=search, audit=trail, **options)

    @server.tool(tags=["mail.out"], keywords=["letter"])
    def send_mail(to: str, text: str) -> str:
        """Send an email to somebody. The text may be long."""
        return f"sent to {to}"

    @server.tool(tags=["mail.in"], security=Security("safe"))
    def read_inbox(count: int = 10) -> list[str]:
        """Show the newest emails."""
        return ["hello"] * count

    @server.tool(tags=["files"])
    @safe
    def read_file(path: str) -> str:
        """Read the contents of a file at the given path."""
        return path

    @server.tool(tags=["files"])
    @dangerous("filesystem.write")
    def delete_file(path: str) -> str:
        """Remove a file for ever."""
        return f"deleted {path}"

    @server.tool(tags=["weather"])
    def forecast(city: str) -> str:
        """Tell how the weather will be tomorrow in a city."""
        return "rain"

    for number in range(many):
        server.add_tool(hum, name=f"machine_{number}", description=f"Start the machine with number {number}.")
    return server, trail


def hum() -> str:
    return "hum"


def keyword_only(**options: Any) -> Search:
    """A search whose results do not depend on an extra."""
    return Search(**{"level": "L3", "strategy": "keyword", **options})


async def names(peer: Raw, **meta: Any) -> list[str]:
    """What the peer's list shows."""
    reply = await peer.ask("tools/list", {"_meta": meta} if meta else {})
    return [tool["name"] for tool in reply["result"]["tools"]]


async def structured(peer: Raw, tool: str, arguments: Json, **more: Any) -> Json:
    """The structured content of a tool's result."""
    result = await peer.call(tool, arguments, **more)
    assert not result.get("isError"), result
    return result["structuredContent"]


class Elsewhere:
    """A server behind this one."""

    id, prefix, timeout, state = "wiki", MountPrefix(None), None, "connected"

    async def relay(self, call: Any, method: str, params: Any) -> Any:
        return {"content": [{"type": "text", "text": "from elsewhere"}]}
