"""A hostile server on a pipe: before every reply it sends odd messages. Run as `hostile.py FIRST COUNT`."""

from __future__ import annotations

import json
import sys

from tests.attack.families.bounds.odd_ids import messages

first, count = (int(word) for word in sys.argv[1:3])
ODD = [json.dumps(each) for each in messages()[first : first + count] if "method" in each or each["id"] != "1"]
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOL = {"name": "echo", "description": "d", "inputSchema": SCHEMA}


def result(method: str, params: dict[str, object]) -> dict[str, object] | None:
    if method == "initialize":
        about = {"name": "hostile", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": True}}, "serverInfo": about}
    return {
        "ping": {},
        "tools/list": {"tools": [TOOL]},
        "tools/call": {"content": [{"type": "text", "text": "here"}]},
    }.get(method)


for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked or "method" not in asked:
        continue
    found = result(asked["method"], asked.get("params") or {})
    reply = {"result": found} if found is not None else {"error": {"code": -32601, "message": "Method not found"}}
    for each in ODD:
        print(each, flush=False)
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **reply}), flush=True)
