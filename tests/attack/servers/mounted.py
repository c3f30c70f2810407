"""A server in which the open one is mounted: what is refused there is refused here."""

from __future__ import annotations

from defserve import Limits, Server
from tests.attack.servers.tools import declare

child = declare(Server("child", "1"))
server = Server("parent", "1", limits=Limits(header=2, body=3, question=20), granted=["memory.write"])
server.mount(child, prefix="kid")


@server.tool
def echo(text: str) -> str:
    """Say it again."""
    return text
