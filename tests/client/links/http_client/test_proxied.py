"""Where the environment names a proxy."""

from __future__ import annotations

import json

import pytest

from defserve.base.http_connection import BrokenHttpConnection
from defserve.client import Client, HttpLink
from defserve.client.links.http_client import ProxiedClient, RequestAddress, uses_http_proxy
from tests.client.links.http_client.script import Script, Wire, script

pytestmark = pytest.mark.anyio

VERSION = "2026-07-28"


@pytest.mark.parametrize(
    ("environment", "url", "proxied"),
    [
        ({}, "http://mcp.example/", False),
        ({"http_proxy": "http://p:1"}, "http://mcp.example/", True),
        ({"http_proxy": "http://p:1"}, "https://mcp.example/", False),
        ({"https_proxy": "http://p:1"}, "https://mcp.example/", True),
        ({"HTTPS_PROXY": "http://p:1"}, "https://mcp.example/", True),
        ({"all_proxy": "http://p:1"}, "http://mcp.example/", True),
        ({"http_proxy": "http://p:1", "no_proxy": "mcp.example"}, "http://mcp.example/", False),
        ({"http_proxy": "http://p:1", "no_proxy": ".example"}, "http://mcp.example:80/", False),
        ({"http_proxy": "http://p:1", "no_proxy": "*"}, "http://mcp.example/", False),
        ({"http_proxy": "http://p:1"}, "http://127.0.0.1/", False),
        ({"http_proxy": "http://p:1"}, "http://[::1]/", False),
        ({"http_proxy": "http://p:1"}, "http://localhost/", False),
    ],
)
def test_the_environment_says_which_addresses_have_a_proxy(
    environment: dict[str, str], url: str, proxied: bool, monkeypatch: pytest.MonkeyPatch
):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert uses_http_proxy(RequestAddress(url)) is proxied


async def test_what_http_cannot_carry_is_a_failure_of_the_connection():
    client = ProxiedClient(RequestAddress("http://mcp.example/"), {})
    for target, headers in (("/", {"mcp-session-id": "\xe9"}), ("/" + "a" * 70_000, {})):
        with pytest.raises(BrokenHttpConnection):
            await client.send("GET", target, headers)
    await client.aclose()


async def test_a_conversation_works_through_a_proxy(monkeypatch: pytest.MonkeyPatch):
    async def proxy(wire: Wire, told: Script) -> None:
        while True:
            head, _, body = (await wire.request()).partition(b"\r\n\r\n")
            told.requests.append(head)
            asked = json.loads(body)
            result = {"supportedVersions": [VERSION], "capabilities": {}, "resultType": "complete"}
            answer = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode()
            if asked["method"] == "x/events":
                event = b"data: %b\n\n" % answer
                await wire.say(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n", event
                )
                return
            kind = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(answer)
            await wire.say(kind, answer)

    async with script(proxy) as server:
        monkeypatch.setenv("http_proxy", server.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        async with Client(HttpLink("http://mcp.example/mcp?q=1", token="t"), version=VERSION, timeout=30) as client:
            assert (await client.request("x/json"))["resultType"] == "complete"
            assert (await client.request("x/events"))["resultType"] == "complete"
        assert len(server.requests) == 3
        for head in server.requests:
            assert head.startswith(b"POST http://mcp.example/mcp?q=1 HTTP/1.1\r\n")
            assert b"authorization: Bearer t" in head
