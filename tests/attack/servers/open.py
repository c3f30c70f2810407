"""A server for strangers: no tokens. Its times are short, so that a slow attack is over soon."""

from __future__ import annotations

from defserve import Limits, Server
from tests.attack.servers.tools import declare

server = declare(Server("open", "1", limits=Limits(header=2, body=3, question=20), granted=["memory.write"]))


@server.resource("memo://a")
async def memo() -> str:
    """A resource to watch."""
    return "a"
