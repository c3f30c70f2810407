"""A server with another behind it, on a pipe. That one takes whoever starts it for its user; this one knows better."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from defserve import Command, Limits, Server

CHILD = (
    "from defserve import Server\nfrom tests.attack.servers.tools import declare\ndeclare(Server('child', '1')).run()"
)
ENV = {"ATTACK_MARKS": os.environ["ATTACK_MARKS"], "PYTHONPATH": str(Path(__file__).parents[3])}

server = Server("front", "1", limits=Limits(header=2, body=3, question=20), granted=["memory.write"])
server.mount(Command(sys.executable, "-c", CHILD, env=ENV), prefix="kid")


@server.tool
def echo(text: str) -> str:
    """Say it again."""
    return text
