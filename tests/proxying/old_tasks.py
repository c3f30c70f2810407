"""Run by the tests as a process of its own: a server of 2025-11-25 with a tool that is only a task (SEP-1686)."""

from __future__ import annotations

import json
import sys
from typing import Any

INFO = {"name": "old", "version": "1"}
REQUESTS: dict[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
TOOL = {"name": "research", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}
TIME = "2026-01-01T00:00:00Z"
topics: dict[str, str] = {}


def answer(method: str, params: dict[str, Any]) -> Any:
    if method == "initialize":
        capabilities: dict[str, Any] = {"tools": {}, "tasks": REQUESTS}
        return {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": INFO}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call" and "task" in params:
        topics["t1"] = params["arguments"]["topic"]
        return {"task": {"taskId": "t1", "status": "working", "createdAt": TIME, "lastUpdatedAt": TIME, "ttl": None}}
    if method == "tasks/result":
        return {"content": [{"type": "text", "text": f"all about {topics[params['taskId']]}"}]}
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        found = answer(message["method"], message.get("params", {}))
        error = {"code": -32601, "message": f"{message['method']} cannot be called like this"}
        body = {"error": error} if found is None else {"result": found}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}), flush=True)
