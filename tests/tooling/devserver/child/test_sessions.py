"""A session of an earlier child is opened again by requests of our own, made of the one that came."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from defserve.serve.sockets import WHOLE
from defserve.tooling.devserver.child_http import SessionReopener, SessionSetups

pytestmark = pytest.mark.anyio

INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "version"}}


async def test_what_is_repeated_for_a_client_is_not_taken_for_the_request_that_came(tmp_path: Path):
    SessionSetups(tmp_path).note("old", INITIALIZE)
    seen: list[tuple[Any, bool]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((json.loads((await receive())["body"]), WHOLE in scope))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"mcp-session-id", b"new")]})
        await send({"type": "http.response.body", "body": b"{}"})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(CALL).encode(), "more_body": False}

    async def send(message: Any) -> None: ...

    scope = {"type": "http", "method": "POST", "headers": [(b"mcp-session-id", b"old")], WHOLE: object()}
    await SessionReopener(app, tmp_path, lambda: None, lambda: None)(scope, receive, send)
    assert seen == [(INITIALIZE, False), (CALL, False)]
