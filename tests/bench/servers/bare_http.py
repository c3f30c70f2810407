"""The yardstick over HTTP: an ASGI app with the JSON work of one call and nothing else.

It reads the body, decodes it, validates the arguments, awaits the tool and encodes the reply. It looks at no header,
keeps no session, and has no limits: what it takes is what uvicorn and JSON take.
"""

from __future__ import annotations

import sys

from arithmetic import add
from http_options import serve
from pydantic_core import SchemaValidator, core_schema, from_json, to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FIELD = core_schema.typed_dict_field(core_schema.int_schema())
ARGUMENTS = SchemaValidator(core_schema.typed_dict_schema({"a": FIELD, "b": FIELD}, extra_behavior="forbid"))
OPENED: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "bench"},
}


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    status, headers, answer = await reply_to(from_json(body))
    headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


async def reply_to(message: dict[str, Any]) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    id, params = message.get("id"), message.get("params", {})
    if message["method"] == "tools/call":
        text = str(await add(**ARGUMENTS.validate_python(params["arguments"])))
        result = {"content": [{"type": "text", "text": text}]}
        return 200, [], to_json({"jsonrpc": "2.0", "id": id, "result": result})
    if id is None:
        return 202, [], b""
    return 200, [(b"mcp-session-id", b"bare")], to_json({"jsonrpc": "2.0", "id": id, "result": OPENED})


if __name__ == "__main__":
    port, workers = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    serve(app if workers == 1 else "bare_http:app", port, workers)
