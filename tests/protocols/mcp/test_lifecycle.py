"""Opening a conversation, message by message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module, reload
from typing import Any

import pytest

from defserve import Server
from defserve.client import ClientLink
from defserve.serve.lifespans import connect_in_memory
from tests.raw import HANDSHAKE, PREFIX, VERSIONS, raw
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

ENVELOPE: dict[str, Any] = {"_meta": {PREFIX + "protocolVersion": "2026-07-28", PREFIX + "clientCapabilities": {}}}


class Pipe:
    """Lines in, lines out."""

    def __init__(self, link: ClientLink) -> None:
        self.link = link

    async def send(self, **message: Any) -> None:
        await self.link.send(json.dumps({"jsonrpc": "2.0", **message}).encode())

    async def receive(self) -> dict[str, Any]:
        return json.loads(await self.link.receive() or b"null")

    async def ask(self, id: Any, method: str, params: Any = None) -> dict[str, Any]:
        """The very next message has to be the reply."""
        await self.send(id=id, method=method, **({} if params is None else {"params": params}))
        reply = await self.receive()
        assert reply["id"] == id and type(reply["id"]) is type(id)
        return reply


@asynccontextmanager
async def pipe_to(server: Server | None = None) -> AsyncGenerator[Pipe]:
    served: Server = server or reload(import_module("examples.hello")).server
    async with connect_in_memory(served.composition) as link:
        yield Pipe(link)


def offer(version: str, **capabilities: Any) -> dict[str, Any]:
    return {"protocolVersion": version, "capabilities": capabilities, "clientInfo": {"name": "t", "version": "1"}}


@pytest.mark.req("MCP-4.1v")
@for_each_row("version", HANDSHAKE)
async def test_a_known_version_is_confirmed(version: str):
    async with pipe_to() as pipe:
        opened = (await pipe.ask(1, "initialize", offer(version)))["result"]
        assert opened["protocolVersion"] == version
        assert opened["serverInfo"] == {"name": "calculator", "version": "1.0.0"}


@pytest.mark.req("MCP-4.1v")
@for_each_row("version", ["2023-01-01", "2026-07-28", "2099-12-31", "one"])
async def test_an_unknown_version_or_one_without_handshake_is_answered_with_our_newest(version: str):
    async with pipe_to() as pipe:
        assert (await pipe.ask(1, "initialize", offer(version)))["result"]["protocolVersion"] == "2025-11-25"


@pytest.mark.req("MCP-4.1i", "MCP-4.4p")
async def test_before_initialize_there_is_only_ping():
    async with pipe_to() as pipe:
        assert (await pipe.ask(1, "ping"))["result"] == {}
        for method in ("tools/list", "tools/call", "resources/read", "logging/setLevel"):
            assert (await pipe.ask(method, method, {}))["error"]["code"] == -32602
        assert (await pipe.ask(2, "no/such/method"))["error"]["code"] == -32601
        assert "result" in await pipe.ask(3, "initialize", offer("2025-11-25"))
        assert "result" in await pipe.ask(4, "tools/list")
        assert (await pipe.ask(5, "initialize", offer("2025-11-25")))["error"]["code"] == -32600


@for_each_row("params", [{}, {"protocolVersion": 1}, {**offer("2025-11-25"), "capabilities": []}])
async def test_a_malformed_initialize_is_refused_and_may_be_repeated(params: dict[str, Any]):
    async with pipe_to() as pipe:
        assert (await pipe.ask(1, "initialize", params))["error"]["code"] == -32602
        assert "result" in await pipe.ask(2, "initialize", offer("2025-11-25"))


@pytest.mark.req("MCP-2.3")
async def test_a_kernel_of_2024_11_05_probes_falls_back_and_sends_notifications_with_a_null_id():
    async with pipe_to() as pipe:
        assert (await pipe.ask(1, "server/discover"))["error"]["code"] == -32601
        opened = (await pipe.ask(2, "initialize", offer("2024-11-05")))["result"]
        assert opened["protocolVersion"] == "2024-11-05"
        assert set(opened["capabilities"]) <= {"tools", "resources", "prompts", "logging"}
        # Permissions are settled between the reply and `initialized`: a server without MGP has no such method.
        assert (await pipe.ask(3, "mgp/permission/await", {}))["error"]["code"] == -32601
        await pipe.send(id=None, method="notifications/initialized")
        tools = (await pipe.ask(4, "tools/list"))["result"]["tools"]
        assert set(tools[0]) == {"name", "description", "inputSchema"}
        called = await pipe.ask(5, "tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})
        assert called["result"] == {"content": [{"type": "text", "text": "3"}]}
        await pipe.send(id=None, method="notifications/cancelled", params={"requestId": 5})
        assert (await pipe.ask(6, "ping"))["result"] == {}


async def test_a_request_with_a_null_id_is_no_notification():
    async with pipe_to() as pipe:
        await pipe.ask(1, "initialize", offer("2024-11-05"))
        refused = await pipe.ask(None, "tools/list")
        assert refused["error"]["code"] == -32600


async def test_both_eras_share_a_pipe():
    async with pipe_to() as pipe:
        assert (await pipe.ask("probe-1", "server/discover", ENVELOPE))["result"]["supportedVersions"] == ["2026-07-28"]
        assert (await pipe.ask(1, "tools/list", ENVELOPE))["result"]["resultType"] == "complete"
        assert (await pipe.ask(2, "tools/list"))["error"]["code"] == -32602
        assert "result" in await pipe.ask(3, "initialize", offer("2025-06-18"))
        assert "resultType" not in (await pipe.ask(4, "tools/list"))["result"]
        assert (await pipe.ask(5, "tools/list", ENVELOPE))["result"]["resultType"] == "complete"


REMOVED = "initialize ping logging/setLevel resources/subscribe resources/unsubscribe tasks/list tasks/result"


@for_each_row("method", REMOVED.split())
async def test_what_the_stateless_era_removed_is_not_found_in_it(method: str):
    async with pipe_to() as pipe:
        params = {**offer("2026-07-28"), "level": "info", "uri": "text://welcome", **ENVELOPE}
        assert (await pipe.ask(1, method, params))["error"]["code"] == -32601
        # And the pipe is not taken for an opened session.
        assert (await pipe.ask(2, "tools/list"))["error"]["code"] == -32602


@for_each_row("method", ["server/discover", "subscriptions/listen"])
async def test_what_only_the_stateless_era_has_is_not_found_in_a_session(method: str):
    async with pipe_to() as pipe:
        await pipe.ask(1, "initialize", offer("2025-11-25"))
        assert (await pipe.ask(2, method, {"notifications": {}}))["error"]["code"] == -32601


@for_each_row(
    ("meta", "code"),
    [
        ({PREFIX + "clientCapabilities": None}, -32602),
        ({PREFIX + "clientCapabilities": []}, -32602),
        ({PREFIX + "clientInfo": "me"}, -32602),
        ({PREFIX + "logLevel": "loud"}, -32602),
        ({PREFIX + "protocolVersion": 2026}, -32602),
        ({PREFIX + "protocolVersion": "2025-11-25"}, -32022),
        ({PREFIX + "protocolVersion": "2027-01-01"}, -32022),
    ],
)
async def test_a_wrong_envelope_is_refused(meta: dict[str, Any], code: int):
    async with pipe_to() as pipe:
        error = (await pipe.ask(1, "tools/list", {"_meta": {**ENVELOPE["_meta"], **meta}}))["error"]
        assert error["code"] == code
        if code == -32022:
            asked = meta[PREFIX + "protocolVersion"]
            assert error["data"]["supported"] == ["2026-07-28"] and error["data"]["requested"] == asked
        assert "result" in await pipe.ask(2, "tools/list", ENVELOPE)


@pytest.mark.req("MCP-4.1c")
async def test_nothing_is_told_to_a_session_that_is_not_ready_or_did_not_subscribe():
    server = reload(import_module("examples.everything")).server
    async with pipe_to(server) as pipe:
        await pipe.ask(1, "initialize", offer("2025-11-25"))
        server.add_tool(extra)
        assert (await pipe.ask(2, "ping"))["result"] == {}
        await pipe.send(method="notifications/initialized")
        server.resource_updated("note://milk")
        assert (await pipe.ask(3, "ping"))["result"] == {}
        server.remove_tool("extra")
        assert (await pipe.receive())["method"] == "notifications/tools/list_changed"


def extra() -> str:
    return "more"


@pytest.mark.req("MCP-4.4x")
@for_each_row("version", VERSIONS)
async def test_a_cancelled_request_stops_and_is_not_answered(version: str):
    server = Server("patient", "1.0.0")
    stopped = asyncio.Event()

    @server.tool
    async def linger() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with raw(server, version) as peer:
        id = await peer.begin("tools/call", {"name": "linger"})
        await peer.ask("tools/list")
        assert not stopped.is_set()
        await peer.tell("notifications/cancelled", {"requestId": id, "reason": "bored"})
        async with asyncio.timeout(20):
            await stopped.wait()
        # Unknown, finished and malformed ids are nobody's business.
        strange: list[Any] = [id, 999, "x", None, {}]
        for requestId in strange:
            await peer.tell("notifications/cancelled", {"requestId": requestId})
        assert await peer.news() == []
        assert "result" in await peer.ask("tools/list")
