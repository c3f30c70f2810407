"""One call's blocking code runs in one thread: its sync dependencies, the sync function, and the teardown."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from contextvars import ContextVar
from pathlib import Path
from threading import get_ident
from typing import Annotated, Any

import pytest

from defserve import Context, Depends, Limits, Server, ToolError
from tests.at_address import at_address
from tests.raw import ERAS, STATELESS, Json, raw, text_of, until

pytestmark = pytest.mark.anyio

THREADS: list[tuple[str, int]] = []
CALLS, CONNECTIONS = 1_000, 32


@pytest.fixture(autouse=True)
def fresh() -> None:
    THREADS.clear()


def note(what: str) -> None:
    THREADS.append((what, get_ident()))


def in_order() -> list[str]:
    return [what for what, _ in THREADS]


def one_thread() -> bool:
    """Whether everything was noted in one thread, which is not the loop's."""
    return len({ident for _, ident in THREADS} | {get_ident()}) == 2


def opened() -> Iterator[str]:
    note("open")
    try:
        yield "opened"
    except BaseException as error:
        note(type(error).__name__)
        raise
    finally:
        note("close")


def plain(opened: Annotated[str, Depends(opened)]) -> str:
    note("plain")
    return f"plain({opened})"


async def awaited(plain: Annotated[str, Depends(plain)]) -> str:
    await asyncio.sleep(0)
    return f"awaited({plain})"


async def opened_async() -> AsyncIterator[str]:
    await asyncio.sleep(0)
    yield "opened async"
    await asyncio.sleep(0)


def last(awaited: Annotated[str, Depends(awaited)], ctx: Context) -> Iterator[str]:
    note("last")
    yield f"last({awaited}) for {ctx.principal}"
    note("close last")


def sync_only(plain: Annotated[str, Depends(plain)], opened: Annotated[str, Depends(opened)], act: str = "") -> str:
    note("function")
    if act == "fail":
        raise ToolError("failed")
    return plain


async def async_function(plain: Annotated[str, Depends(plain)], act: str = "") -> str:
    await asyncio.sleep(0)
    if act == "fail":
        raise ToolError("failed")
    return plain


def mixed(between: Annotated[str, Depends(opened_async)], last: Annotated[str, Depends(last)], act: str = "") -> str:
    note("function")
    if act == "fail":
        raise ToolError("failed")
    return last


def generator(plain: Annotated[str, Depends(plain)], act: str = "") -> Iterator[str]:
    note("function")
    yield "part"
    if act == "fail":
        raise ToolError("failed")
    note("function")


async def async_generator(plain: Annotated[str, Depends(plain)], act: str = "") -> AsyncIterator[str]:
    yield "part"
    if act == "fail":
        raise ToolError("failed")


FUNCTIONS: dict[Callable[..., Any], list[str]] = {
    sync_only: ["open", "plain", "function", "close"],
    async_function: ["open", "plain", "close"],
    mixed: ["open", "plain", "last", "function", "close last", "close"],
    generator: ["open", "plain", "function", "function", "close"],
    async_generator: ["open", "plain", "close"],
}


@pytest.mark.parametrize("version", ERAS)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
async def test_blocking_code_of_a_call_runs_in_order_in_one_thread(version: str, function: Callable[..., Any]):
    server = Server("s", "1")
    server.add_tool(function)
    async with raw(server, version) as peer:
        for _ in range(20):
            THREADS.clear()
            assert not (await peer.call(function.__name__)).get("isError")
            assert in_order() == FUNCTIONS[function]
            assert one_thread()


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
async def test_teardown_after_a_failure_runs_in_that_thread_and_sees_it(function: Callable[..., Any]):
    server = Server("s", "1")
    server.add_tool(function)
    async with raw(server) as peer:
        result = await peer.call(function.__name__, {"act": "fail"})
    assert result["isError"]
    assert in_order()[-2:] == ["ToolError", "close"]
    assert one_thread()


async def test_an_inline_function_with_blocking_dependencies_runs_in_their_thread():
    server = Server("s", "1")
    server.add_tool(sync_only, inline=True)
    async with raw(server) as peer:
        await peer.call("sync_only")
    assert one_thread()


async def test_resources_prompts_and_completions_run_in_one_thread_too():
    server = Server("s", "1")

    @server.resource("db://{key}")
    def read(key: str, plain: Annotated[str, Depends(plain)]) -> str:
        note("function")
        return key

    @server.prompt
    def ask(topic: str, plain: Annotated[str, Depends(plain)]) -> str:
        note("function")
        return topic

    @server.completion("ask", "topic")
    def topics(value: str, plain: Annotated[str, Depends(plain)]) -> list[str]:
        note("function")
        return ["a"]

    requests: dict[str, Json] = {
        "resources/read": {"uri": "db://a"},
        "prompts/get": {"name": "ask", "arguments": {"topic": "a"}},
        "completion/complete": {
            "ref": {"type": "ref/prompt", "name": "ask"},
            "argument": {"name": "topic", "value": ""},
        },
    }
    async with raw(server) as peer:
        for method, params in requests.items():
            THREADS.clear()
            assert "result" in await peer.ask(method, params)
            assert in_order() == ["open", "plain", "function", "close"]
            assert one_thread()


# -- a call that does not end well --------------------------------------------------------------------------


class Held:
    """A sync function that runs until it is let go, whatever happens to its call."""

    def __init__(self) -> None:
        self.free = threading.Event()

    def use(self, plain: Annotated[str, Depends(plain)]) -> str:
        note("begin")
        assert self.free.wait(30)
        note("end")
        return "done"


class HeldMixed(Held):
    """The same with something async before it."""

    def use(self, between: Annotated[str, Depends(opened_async)], plain: Annotated[str, Depends(plain)]) -> str:
        return super().use(plain)


@pytest.mark.parametrize("held", [Held, HeldMixed])
@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_a_stopped_call_ends_and_its_teardown_waits_for_the_function(how: str, held: type[Held]):
    one, server = held(), Server("s", "1")
    server.add_tool(one.use, name="use", timeout=0.05 if how == "timeout" else 30)

    async with raw(server) as peer:
        id = await peer.begin("tools/call", {"name": "use", "arguments": {}})
        await until(lambda: "begin" in in_order())
        if how == "cancel":
            await peer.tell("notifications/cancelled", {"requestId": id})
        else:
            assert "timed out" in text_of((await peer.reply_to(id))["result"])
        await until(lambda: not any(call.method == "tools/call" for call in server.composition.list_calls()))
        assert in_order() == ["open", "plain", "begin"]
        one.free.set()
        await until(lambda: "close" in in_order())
    assert in_order() == ["open", "plain", "begin", "end", "CancelledError", "close"]
    assert one_thread()


async def test_a_call_that_is_cancelled_before_a_thread_is_free_opens_nothing():
    one, server = Held(), Server("s", "1", limits=Limits(threads=1))
    server.add_tool(sync_only)

    @server.tool
    def block() -> str:
        note("begin")
        assert one.free.wait(30)
        return "free"

    async with raw(server) as peer:
        first = await peer.begin("tools/call", {"name": "block", "arguments": {}})
        await until(lambda: "begin" in in_order())
        second = await peer.begin("tools/call", {"name": "sync_only", "arguments": {}})
        await peer.tell("notifications/cancelled", {"requestId": second})
        await until(lambda: second not in {call.id for call in server.composition.list_calls()})
        one.free.set()
        await peer.reply_to(first)
        assert text_of(await peer.call("sync_only")) == "plain(opened)"
    assert in_order() == ["begin", "open", "plain", "function", "close"]


# -- context variables and effects --------------------------------------------------------------------------

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


def tenant() -> Iterator[None]:
    token = TENANT.set("acme")
    yield
    note("reset")
    TENANT.reset(token)
    note(TENANT.get())


async def test_context_variables_of_a_sync_dependency_reach_the_function_and_can_be_reset():
    server = Server("s", "1")

    @server.tool
    def sync_sees(_: Annotated[None, Depends(tenant)]) -> str:
        return TENANT.get()

    @server.tool
    async def async_sees(_: Annotated[None, Depends(tenant)]) -> str:
        await asyncio.sleep(0)
        return TENANT.get()

    @server.tool
    async def is_seen_by_an_effect(ctx: Context, _: Annotated[None, Depends(tenant)]) -> str:
        TENANT.set("other")
        return await ctx.once("look", TENANT.get)

    async with raw(server) as peer:
        for tool, seen in (("sync_sees", "acme"), ("async_sees", "acme"), ("is_seen_by_an_effect", "other")):
            THREADS.clear()
            assert text_of(await peer.call(tool)) == seen
            assert in_order() == ["reset", "nobody"]


@pytest.mark.parametrize("version", ERAS)
async def test_an_effect_runs_in_the_thread_of_its_call(version: str):
    server = Server("s", "1")

    def effect() -> int:
        note("effect")
        return 1

    @server.tool
    async def from_async(ctx: Context, opened: Annotated[str, Depends(opened)]) -> int:
        return await ctx.once("effect", effect)

    @server.tool
    def from_sync(ctx: Context, opened: Annotated[str, Depends(opened)]) -> int:
        note("function")
        return ctx.wait(ctx.once("effect", effect))

    @server.tool
    def without_dependencies(ctx: Context) -> int:
        note("function")
        return ctx.wait(ctx.once("effect", effect))

    async with raw(server, version) as peer:
        for tool in ("from_async", "from_sync", "without_dependencies"):
            THREADS.clear()
            assert text_of(await peer.call(tool)) == "1"
            assert one_thread()


# -- plain sqlite3 ------------------------------------------------------------------------------------------


def shop(path: Path) -> Server:
    server = Server("shop", "1", limits=Limits(rate=1e6, burst=10**6))

    def database() -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(path, timeout=30)
        try:
            with connection:
                yield connection
        finally:
            connection.close()

    async def audit() -> str:
        await asyncio.sleep(0)
        return "audited"

    Database = Annotated[sqlite3.Connection, Depends(database)]

    @server.tool
    def sell(item: int, database: Database) -> int:
        database.execute("insert into sold values (?)", (item,))
        return item

    @server.tool
    def sell_audited(item: int, audit: Annotated[str, Depends(audit)], database: Database) -> int:
        database.execute("insert into sold values (?)", (item,))
        return item

    return server


@pytest.mark.slow
async def test_a_thousand_calls_over_32_connections_with_plain_sqlite3_all_succeed(tmp_path: Path):
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("pragma journal_mode=wal")
        connection.execute("create table sold (item integer)")
    failures: list[Any] = []
    async with at_address(shop(path)) as url:

        async def customer(number: int) -> None:
            host, port = url.removeprefix("http://").split("/")[0].split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            for item in range(number, CALLS, CONNECTIONS):
                tool = "sell" if item % 2 else "sell_audited"
                reply = await post(reader, writer, host, {"name": tool, "arguments": {"item": item}})
                if reply.get("result", {}).get("content", [{}])[0].get("text") != str(item):
                    failures.append(reply)
            writer.close()

        await asyncio.gather(*[customer(number) for number in range(CONNECTIONS)])
    assert failures == []
    with closing(sqlite3.connect(path)) as connection, connection:
        assert sorted(connection.execute("select item from sold")) == [(item,) for item in range(CALLS)]


async def post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, params: Json) -> Json:
    meta = {
        "io.modelcontextprotocol/protocolVersion": STATELESS,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**params, "_meta": meta}}
    data = json.dumps(body).encode()
    head = (
        f"POST / HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        "Accept: application/json, text/event-stream\r\n"
        f"MCP-Protocol-Version: {STATELESS}\r\nMcp-Method: tools/call\r\nMcp-Name: {params['name']}\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    writer.write(head.encode() + data)
    length = re.search(rb"content-length: *(\d+)", (await reader.readuntil(b"\r\n\r\n")).lower())
    if length is None:  # on a busy machine a long silence came first: it is a stream of events
        events = await reader.readuntil(b"\r\n0\r\n\r\n")
        return json.loads(events.rpartition(b"data: ")[2].splitlines()[0])
    return json.loads(await reader.readexactly(int(length[1])))
