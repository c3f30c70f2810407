"""A server whose lists and results have members of wrong types. It speaks the handshake era over stdio.

`python tests/inspector/junk.py 7` serves it; the number chooses what is wrong where.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

XSS = "<img src=x onerror='window.pwned=1'><script>window.pwned=1</script>"
# Text that runs from right to left, and the letters that turn what follows them around.
TURNED = "\u202eevil\u202c \u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u2066x\u2069"
DEEP = "[" * 20_000 + "]" * 20_000
# The last one looks like an element of the page's own library.
ELEMENT = {"constructor": None, "type": "script", "props": {"dangerouslySetInnerHTML": {"__html": XSS}}}
JUNK: list[Any] = [None, 5, True, "", XSS, TURNED, [], {}, [[]], {"a": {}}, "x" * 20_000, ["a", 5, None], ELEMENT]
WORDS = """type properties required enum items anyOf oneOf allOf $ref const default title description format examples
minLength additionalProperties contentMediaType branches optional enumNames minimum""".split()
PROGRESS: tuple[Any, ...] = (1, "x", None, {}, 1e308, -5)

chance = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 1)


def junk(*right: Any) -> Any:
    return chance.choice(right) if right and chance.random() < 0.4 else chance.choice(JUNK)


def some(*names: str) -> dict[str, Any]:
    return {name: junk("text/plain", {}) for name in names if chance.random() < 0.8}


def schema() -> dict[str, Any]:
    return {word: junk("string", "object", ["string"]) for word in WORDS if chance.random() < 0.4}


def tool(number: int) -> dict[str, Any]:
    about = some("title", "description", "annotations", "outputSchema", "security", "icons")
    about["_meta"] = {"ui": {"resourceUri": "ui://x/y"}} if number % 3 == 0 else junk()
    properties = {f"p{each}": schema() for each in range(12)}
    return {
        **about,
        "name": f"t{number}",
        "inputSchema": {"type": "object", "properties": properties, "required": junk()},
    }


def block() -> dict[str, Any]:
    inside = {"uri": junk("a://b"), "text": junk("t"), "blob": junk("aGk="), "mimeType": junk("text/plain")}
    texts = {"text": junk(DEEP, f'{{"a": {DEEP}}}'), "data": junk("aGk="), "mimeType": junk("image/png")}
    kind = chance.choice(["text", "image", "audio", "resource", "resource_link", "odd", 5, None])
    return {"type": kind, **texts, **some("uri", "name", "title", "description"), "resource": junk(inside)}


def prompt(number: int) -> dict[str, Any]:
    arguments = junk([{"name": "a", **some("description", "required")}, 5, {"name": 5}])
    return {"name": f"p{number}", **some("title", "description"), "arguments": arguments}


OFFER = {"tools": {}, "resources": {"subscribe": True}, "prompts": {}, "completions": {}, "logging": {}}
LISTED = ("name", "title", "description", "mimeType", "size", "annotations", "_meta")


def answer(method: str) -> Any:
    match method:
        case "initialize":
            about = {"name": TURNED + XSS, "version": XSS, "title": XSS}
            return {"protocolVersion": "2025-06-18", "capabilities": OFFER, "serverInfo": about, "instructions": XSS}
        case "tools/list":
            return {"tools": [*map(tool, range(12)), *JUNK]}
        case "resources/list":
            return {"resources": [*({"uri": f"a://b/{each}", **some(*LISTED)} for each in range(12)), *JUNK]}
        case "resources/templates/list":
            odd = [{"uriTemplate": f"a://{{{XSS}}}"}, {"uriTemplate": "a://{x"}, {"uriTemplate": "{?a*,b:3}" * 200}]
            return {"resourceTemplates": [*odd, *(some("uriTemplate", *LISTED) for _ in range(6)), *JUNK]}
        case "resources/read":
            return {"contents": [*(some("uri", "text", "blob", "mimeType") for _ in range(6)), *JUNK]}
        case "prompts/list":
            return {"prompts": [*map(prompt, range(8)), *JUNK]}
        case "prompts/get":
            said = [{"role": junk("user"), "content": junk(block())}, {"content": [block(), block()]}, 5, None]
            return {"description": junk(), "messages": junk(said)}
        case "tools/call":
            rows = {"rows": [some("a", "b") for _ in range(4)]}
            return {"content": [*(block() for _ in range(6)), *JUNK], "structuredContent": junk(rows), "_meta": junk()}
        case "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe":
            return {}
        case _:
            return None


def say(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


if __name__ == "__main__":
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked or "method" not in asked:
            continue
        if asked["method"] == "tools/call":
            for level in ("info", 5, None, {}):
                say(method="notifications/message", params={"level": level, "logger": junk("l"), "data": junk("d")})
            token = (asked["params"].get("_meta") or {}).get("progressToken")
            for each in PROGRESS:
                told = {"progressToken": token, "progress": each, "total": junk(3), "message": junk("m")}
                say(method="notifications/progress", params=told)
        found = answer(asked["method"])
        wrong = {"error": {"code": -32601, "message": XSS, "data": junk()}}
        say(id=asked["id"], **({"result": found} if found is not None else wrong))
