"""A server of somebody else that says whatever could harm a page. It speaks the handshake era over stdio.

`python tests/inspector/hostile.py` serves it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

XSS = "<img src=x onerror='window.pwned=1'><script>window.pwned=1</script>"
LOOP: dict[str, Any] = {
    "type": "object",
    "properties": {
        "list": {"$ref": "#/$defs/list"},
        "union": {"$ref": "#/$defs/union"},
        "tree": {"$ref": "#/$defs/tree"},
        "slow": {"type": "string", "pattern": "^(a+)+$", "default": "a" * 40 + "!"},
    },
    "required": ["list", "union", "tree"],
    "$defs": {
        "list": {"type": "array", "items": {"$ref": "#/$defs/list"}},
        "union": {"anyOf": [{"$ref": "#/$defs/union"}] * 12 + [{"type": "string"}]},
        "tree": {
            "type": "object",
            "properties": {name: {"$ref": "#/$defs/tree"} for name in "abcdefgh"},
            "required": list("abcdefgh"),
        },
    },
}
# What every object of JavaScript has, whatever a server lists.
INHERITED = ["__proto__", "constructor", "toString", "hasOwnProperty"]
TOOLS: list[Any] = [
    {
        "name": "markup",
        "description": XSS,
        "inputSchema": {"type": "object", "properties": {XSS: {"description": XSS}}},
    },
    {"name": "loops", "description": 7, "inputSchema": LOOP},
    {
        "name": "wrong",
        "title": {},
        "inputSchema": [],
        "outputSchema": 3,
        "annotations": "x",
        "_meta": [],
        "security": [],
    },
    {
        "name": "types",
        "inputSchema": {"properties": {"a": {"type": 5}, "b": None, "c": {"enum": []}, "d": {"anyOf": []}}},
    },
    {
        "name": "constructor",
        "inputSchema": {
            "properties": {
                **{name: {"type": "string"} for name in INHERITED},
                "format": {"type": "string", "format": "constructor"},
                "ref": {"$ref": "#/constructor/name"},
            },
            "required": INHERITED,
        },
    },
    {"name": "slow", "description": "[" * 60_000 + "*" * 60_000, "inputSchema": {"type": "object"}},
    {"name": 5},
    "not even an object",
    *({"name": f"many_{number}", "inputSchema": {"type": "object"}} for number in range(2_000)),
]
RESULTS: dict[str, Any] = {
    "markup": {
        "content": [
            {"type": "text", "text": f"# {XSS}\n\n[a link](javascript:window.pwned=1) [another](https://x/{XSS})"},
            {"type": "image", "mimeType": "text/html", "data": "PHNjcmlwdD4="},
            {"type": "image", "mimeType": "image/svg+xml", "data": "PHN2ZyBvbmxvYWQ9IndpbmRvdy5wd25lZD0xIi8+"},
            {"type": "audio", "mimeType": 'audio/wav" onerror="window.pwned=1', "data": "!!"},
            {"type": "resource_link", "uri": "javascript:window.pwned=1", "name": XSS},
            {"type": "resource", "resource": {"uri": XSS, "text": XSS}},
            {"type": "no such kind", "x": XSS},
            None,
            5,
        ],
        "structuredContent": {"rows": [{"a": XSS, "b": {"c": [1]}}, {"a": None}]},
    },
    "loops": {"content": "not a list", "structuredContent": [[[]]]},
    "wrong": {"content": None, "isError": True},
    "constructor": {
        "content": [{"type": name} for name in INHERITED],
        "structuredContent": {"rows": [{"a": 1}, dict.fromkeys(INHERITED, "v")]},
    },
    "slow": {"content": [{"type": "text", "text": "\n" * 50_000 + "[" * 50_000 + "`" * 50_000}]},
}


def answer(method: str, params: dict[str, Any]) -> Any:
    if method == "initialize":
        about = {"name": XSS, "version": XSS}
        return {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}, "prompts": {}},
            "serverInfo": about,
            "instructions": XSS,
        }
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "prompts/list":
        asked = [{"name": name, "required": True} for name in INHERITED]
        return {"prompts": [{"name": name, "arguments": asked} for name in INHERITED]}
    if method == "prompts/get":
        return {"messages": [{"role": name, "content": {"type": name}} for name in INHERITED]}
    return RESULTS.get(str(params.get("name")), {"content": []}) if method == "tools/call" else None


if __name__ == "__main__":
    for line in sys.stdin:
        said = json.loads(line)
        if "id" not in said:
            continue
        found = answer(said.get("method", ""), said.get("params") or {})
        error = {"error": {"code": -32601, "message": XSS}}
        print(json.dumps({"jsonrpc": "2.0", "id": said["id"], **({"result": found} if found else error)}), flush=True)
