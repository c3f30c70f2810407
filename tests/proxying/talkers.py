"""Programs that speak MCP by hand, to do what a server of ours would not."""

from __future__ import annotations

import sys
from typing import Any

from defserve import Command

START = """
import json, sys

def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

def told():
    for line in sys.stdin:
        said = json.loads(line)
        method = said.get("method")
        if method == "initialize":
            about = {"tools": {}, "logging": {}}
            info = {"name": "talker", "version": "1"}
            say(id=said["id"], result={"protocolVersion": "2025-11-25", "capabilities": about, "serverInfo": info})
        elif method == "tools/list":
            say(id=said["id"], result={"tools": [{"name": "talk", "inputSchema": {"type": "object"}}]})
        elif method == "tools/call" or "result" in said or "error" in said:
            yield said
        elif method and "id" in said:
            say(id=said["id"], result={})

def answer(id, text, **more):
    say(id=id, result={"content": [{"type": "text", "text": text}], **more})
"""


def talker(body: str, **options: Any) -> Command:
    """A child of the handshake era with one tool, `talk`. `body` reads calls, and answers to it, from `told()`."""
    return Command(sys.executable, "-I", "-S", "-c", START + body, version="handshake", **options)
