"""`tools/validate`: what a call would say of its arguments, without the call."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import Field
from starlette.testclient import TestClient

from defserve import Server, ShellCommand, dangerous
from defserve.auth import Principal, StaticTokens
from tests.raw import ERAS, raw
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


class Shop:
    def __init__(self) -> None:
        self.ran: list[str] = []
        self.server = Server("shop", "1")
        self.server.tool(self.price)

    def price(self, ticker: Annotated[str, Field(pattern="^[A-Z]+$")], days: int = 1) -> int:
        """The price."""
        self.ran.append(ticker)
        return days


@pytest.mark.req("GGEN-M2")
@for_each_row("version", ERAS)
@for_each_row(
    ("arguments", "problems"),
    [
        ({"ticker": "ABC"}, []),
        ({"ticker": "ABC", "days": "2"}, []),
        ({"ticker": "abc"}, [{"field": "ticker", "reason": 'must match the pattern ^[A-Z]+$, got "abc"'}]),
        (
            {"days": "x"},
            [{"field": "ticker", "reason": "missing"}, {"field": "days", "reason": 'expected integer, got "x"'}],
        ),
    ],
)
async def test_arguments_are_checked_and_nothing_runs(version: str, arguments: dict[str, Any], problems: list[Any]):
    shop = Shop()
    async with raw(shop.server, version) as peer:
        result = (await peer.ask("tools/validate", {"name": "price", "arguments": arguments}))["result"]
        assert (result["valid"], result["problems"]) == (not problems, problems)
        assert shop.ran == []


@pytest.mark.req("GGEN-M2")
async def test_a_tool_that_is_not_there_is_an_error_as_it_is_for_a_call():
    async with raw(Shop().server) as peer:
        for method in ("tools/call", "tools/validate"):
            error = (await peer.ask(method, {"name": "nothing"}))["error"]
            assert (error["code"], error["message"]) == (-32602, "Unknown tool: nothing")
        assert (await peer.ask("tools/validate", {}))["error"]["code"] == -32602


async def test_what_a_guard_refuses_is_not_valid():
    server = Server("shell", "1")

    @server.tool
    @dangerous("shell.execute")
    def run(command: ShellCommand) -> str:
        raise AssertionError("it ran")

    async with raw(server) as peer:
        result = (await peer.ask("tools/validate", {"name": "run", "arguments": {"command": "rm -rf /"}}))["result"]
        assert result["valid"] is False
        assert "Command refused" in result["problems"][0]["reason"]


async def test_who_may_not_call_learns_nothing_of_the_guard():
    server = Server("shell", "1", permissions="deny_all")

    @server.tool
    @dangerous("shell.execute")
    def run(command: ShellCommand) -> str:
        raise AssertionError("it ran")

    async with raw(server) as peer:
        error = (await peer.ask("tools/validate", {"name": "run", "arguments": {"command": "rm -rf /"}}))["error"]
        assert "Command refused" not in str(error)
        assert "shell.execute" in error["message"]


async def test_a_tool_that_is_hidden_is_unknown():
    server = Server("scoped", "1", auth=StaticTokens({"x": Principal("x")}))
    server.add_tool(Shop().price, scopes=["admin"])
    client = TestClient(server.asgi(), base_url="http://localhost")
    prefix = "io.modelcontextprotocol/"
    envelope = {f"{prefix}protocolVersion": "2026-07-28", f"{prefix}clientCapabilities": {}}
    params = {"name": "price", "arguments": {}, "_meta": envelope}
    answer = client.post(
        "/",
        json={"jsonrpc": "2.0", "id": 1, "method": "tools/validate", "params": params},
        headers={
            "authorization": "Bearer x",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/validate",
            "mcp-name": "price",
        },
    )
    assert answer.json()["error"]["message"] == "Unknown tool: price"
