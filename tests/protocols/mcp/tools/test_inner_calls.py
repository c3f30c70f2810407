"""A tool that calls another by name: the other is found, refused, timed, asked and audited as if the peer called it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve import Context, Limits, Server, ToolError, dangerous
from defserve.client import Answers
from defserve.protocols.mcp.errors import UnknownTool
from defserve.protocols.mcp.tools import call_tool
from tests.raw import ERAS, HANDSHAKE, STATELESS, raw
from tests.rows import for_each_row
from tests.waiting import slow_tool, until

pytestmark = pytest.mark.anyio

Json = dict[str, Any]


def caller(**options: Any) -> Server:
    server = Server("s", "1", **options)

    @server.tool
    async def through(ctx: Context, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            return await call_tool(ctx.call, name, arguments)
        except UnknownTool as error:
            raise ToolError(error.message) from None

    return server


@for_each_row("version", ERAS)
async def test_an_inner_call_gives_the_result_or_the_failure_of_its_tool(version: str):
    server = caller()

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    def fail() -> None:
        raise ToolError("not today")

    async with server.connect(version=version) as client:
        result = await client.call("through", name="add", arguments={"a": 1, "b": 2})
        assert result["content"] == [{"type": "text", "text": "3"}]
        wrong = await client.call("through", name="add", arguments={"a": "x"})
        assert wrong["isError"] and "a" in wrong["content"][0]["text"]
        failed = await client.call("through", name="fail", arguments={})
        assert failed["isError"] and failed["content"][0]["text"] == "not today"
        with pytest.raises(ToolError, match="Unknown tool: nothing"):
            await client.call("through", name="nothing", arguments={})


@for_each_row("version", ERAS)
async def test_wrappers_of_tools_call_see_inner_calls_too(version: str):
    server, seen = caller(), list[str]()

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    @server.around("tools/call")
    async def watch(call: Any, params: Json, next: Any) -> Any:
        seen.append(params["name"])
        return await next(call, params)

    async with server.connect(version=version) as client:
        await client.call("through", name="add", arguments={"a": 1, "b": 2})
    assert seen == ["through", "add"]


async def test_an_inner_call_has_its_own_time_and_ends_alone():
    server, ended = caller(), list[str]()

    @server.tool(timeout=0.05)
    async def slow() -> str:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("slow")
        return ""

    @server.tool(timeout=0.05)
    async def deaf() -> str:
        for _ in range(20):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.append("deaf")
                await asyncio.Event().wait()
        return ""

    async with server.connect() as client:
        result = await client.call("through", name="slow", arguments={})
        assert "timed out after 0.05 s" in result["content"][0]["text"] and ended == ["slow"]
        with pytest.raises(ToolError, match=r"timed out after 0.05 s"):
            await client.call("through", name="deaf", arguments={})


async def test_a_cancelled_call_stops_what_it_calls():
    server, ended = caller(), list[str]()
    began = slow_tool(server, ended)
    async with server.connect() as client:
        calling = asyncio.create_task(client.call("through", name="slow", arguments={}))
        await began.wait()
        calling.cancel()
        await until(lambda: ended == ["slow"])


@for_each_row("version", ERAS)
async def test_a_question_of_an_inner_call_reaches_the_client_and_comes_back(version: str):
    server, asked = caller(), list[str]()

    @server.tool
    async def greet(ctx: Context) -> str:
        return f"hello {await ctx.ask('Who?', str)}"

    def answer(message: str, schema: Json) -> Json:
        asked.append(message)
        return {"value": "Ada"}

    async with server.connect(version=version, answers=Answers(ask=answer)) as client:
        result = await client.call("through", name="greet", arguments={})
    assert result["content"][0]["text"] == "hello Ada"
    assert asked == ["Who?"]


async def test_logs_and_progress_of_an_inner_call_are_told_as_those_of_the_call():
    server, logs, progress = caller(), list[Any](), list[Any]()

    def told(value: float, total: float | None, message: str | None) -> None:
        progress.append((value, total))

    @server.tool
    async def work(ctx: Context) -> str:
        ctx.log.warning("look")
        ctx.progress(1, 4)
        return "done"

    async with server.connect(version=HANDSHAKE[-1], on_log=logs.append) as client:
        await client.call_raw("through", {"name": "work", "arguments": {}}, on_progress=told)
    assert [(log["data"], log["logger"]) for log in logs] == [("look", "work")]
    assert progress == [(1, 4)]


@for_each_row("version", ERAS)
async def test_a_confirmation_is_not_assumed_because_the_client_saw_only_the_outer_call(version: str):
    server, wiped = caller(granted=["filesystem.write"]), list[str]()

    @server.tool
    @dangerous("filesystem.write")
    def wipe(disk: str) -> str:
        wiped.append(disk)
        return "wiped"

    async with raw(server, version) as peer:
        direct = await peer.ask("tools/call", {"name": "wipe", "arguments": {"disk": "sda"}})
        assert direct["result"]["content"][0]["text"] == "wiped"  # this client is assumed to have asked
        inner = await peer.ask(
            "tools/call", {"name": "through", "arguments": {"name": "wipe", "arguments": {"disk": "b"}}}
        )
    assert "this client cannot be asked" in str(inner)
    assert wiped == ["sda"]


async def test_inner_calls_take_no_room_beside_the_call_that_makes_them():
    server = caller(limits=Limits(in_flight=1, queue=0.5))

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    async with server.connect(version=STATELESS) as client:
        results = await asyncio.gather(
            *(client.call("through", name="add", arguments={"a": n, "b": 0}) for n in range(5))
        )
    assert [result["content"][0]["text"] for result in results] == list("01234")
