from __future__ import annotations

from typing import Any

import httpx2
import pytest

from tests.at_address import fresh
from tests.auth.web import stateless

pytestmark = pytest.mark.anyio


async def answered(host: str, body: dict[str, Any], headers: dict[str, str]) -> httpx2.Response:
    """What a new instance answers to one request. Nobody told it that it starts, as on platforms for functions."""
    fresh("cookbook.serverless")
    from examples.cookbook import serverless

    app: Any = serverless.app
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=f"http://{host}") as http:
        return await http.post("/", json=body, headers=headers)


async def test_each_request_may_meet_another_instance(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PUBLIC_HOST", "words.example.com")
    for text, longest in (("to be or not", "not"), ("a longer word", "longer")):
        body, headers = stateless("tools/call", name="count_words", arguments={"text": text})
        found = await answered("words.example.com", body, headers)
        assert found.json()["result"]["structuredContent"]["longest"] == longest
    body, headers = stateless("tools/list")
    assert (await answered("evil.example.com", body, headers)).status_code == 421


async def test_a_client_that_needs_a_session_is_told_so():
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}
    opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    refused = await answered("localhost", opening, {"accept": "application/json, text/event-stream"})
    assert "session" in refused.json()["error"]["message"]
