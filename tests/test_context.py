from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from defserve import Context, Image, Limits, Server, Text, ToolError
from defserve.client import Answers
from tests.raw import ERAS, HANDSHAKE, PREFIX, STATELESS, Json, raw, text_of, turns, until
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

eras = pytest.mark.parametrize("version", ERAS)

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


def texts(result: Json) -> list[str]:
    return [block.get("text", block["type"]) for block in result["content"]]


# -- logging


def chatty() -> Server:
    server = Server("s", "1")

    @server.tool
    async def talk(ctx: Context) -> str:
        for level in LEVELS:
            getattr(ctx.log, level)(f"a {level}")
        return "done"

    @server.tool
    def talk_in_a_thread(ctx: Context) -> str:
        ctx.log.error("from a thread", number=1)
        return "done"

    return server


@pytest.mark.req("MCP-5.7")
@for_each_row("version", HANDSHAKE)
@for_each_row("level", [None, *LEVELS])
async def test_a_session_hears_the_level_it_set_and_above(version: str, level: str | None):
    async with raw(chatty(), version) as peer:
        if level is not None:
            assert (await peer.ask("logging/setLevel", {"level": level}))["result"] == {}
        await peer.call("talk")
        told = [message["params"] for message in await peer.news()]
        assert told == [
            {"level": heard, "data": f"a {heard}", "logger": "talk"}
            for heard in LEVELS[LEVELS.index(level or "info") :]
        ]


@for_each_row("level", [None, *LEVELS])
async def test_without_a_handshake_each_request_names_its_level_or_hears_nothing(level: str | None):
    async with raw(chatty()) as peer:
        meta = {PREFIX + "logLevel": level} if level else {}
        await peer.call("talk", _meta=meta)
        expected = LEVELS[LEVELS.index(level) :] if level else ()
        assert [message["params"]["level"] for message in await peer.news()] == list(expected)


async def test_levels_of_two_sessions_are_their_own():
    server = chatty()
    async with raw(server, "2025-11-25") as quiet, raw(server, "2025-11-25") as loud:
        await quiet.ask("logging/setLevel", {"level": "emergency"})
        await quiet.call("talk")
        await loud.call("talk")
        assert (len(await quiet.news()), len(await loud.news())) == (1, 7)


@eras
async def test_an_unknown_level_is_refused(version: str):
    async with raw(chatty(), version) as peer:
        if version == STATELESS:
            reply = await peer.ask("tools/call", {"name": "talk", "_meta": {PREFIX + "logLevel": "loud"}})
        else:
            reply = await peer.ask("logging/setLevel", {"level": "loud"})
        assert reply["error"]["code"] == -32602


async def test_fields_travel_as_data_also_from_a_thread_and_before_the_result():
    async with raw(chatty(), "2025-11-25") as peer:
        await peer.call("talk_in_a_thread")
        (message,) = peer.heard  # what came before the reply
        assert message["params"]["data"] == {"message": "from a thread", "number": 1}


async def test_a_call_that_logs_without_end_is_cut_off_with_a_word():
    server = Server("s", "1", limits=Limits(log_messages_per_call=3))

    @server.tool
    async def talk(ctx: Context) -> None:
        for number in range(10):
            ctx.log.info(str(number))

    async with raw(server, "2025-11-25") as peer:
        await peer.call("talk")
        data = [message["params"]["data"] for message in await peer.news()]
        assert data == ["0", "1", "further messages of this call are dropped after 3"]


# -- progress


def worker() -> Server:
    server = Server("s", "1")

    @server.tool
    async def report(values: list[float], ctx: Context) -> str:
        for value in values:
            ctx.progress(value, 10, f"at {value:g}")
        return "done"

    @server.tool
    def track(ctx: Context) -> str:
        return "".join(ctx.track(["a", "b"]))

    @server.tool
    async def track_async(ctx: Context) -> str:
        async def items() -> AsyncIterator[str]:
            yield "a"
            yield "b"

        return "".join([item async for item in ctx.track(items(), total=2)])

    @server.tool
    async def track_unknown(ctx: Context) -> int:
        return sum(ctx.track(iter(range(2))))

    return server


PROGRESS: dict[str, tuple[list[float], list[float]]] = {
    "growing": ([1, 2.5, 10], [1, 2.5, 10]),
    "standing still": ([1, 1, 2], [1, 2]),
    "falling": ([5, 3, 6], [5, 6]),
    "zero first": ([0, 1], [0, 1]),
    "none": ([], []),
}


@pytest.mark.req("MCP-4.4g")
@eras
@for_each_row("token", ["t", 0, 7])
@for_each_row("case", PROGRESS)
async def test_progress_is_told_under_the_callers_token_and_only_grows(version: str, token: Any, case: str):
    values, told = PROGRESS[case]
    async with raw(worker(), version) as peer:
        await peer.call("report", {"values": values}, _meta={"progressToken": token})
        assert [message["params"] for message in await peer.news()] == [
            {"progressToken": token, "progress": value, "total": 10, "message": f"at {value:g}"} for value in told
        ]


@eras
@for_each_row("meta", [{}, {"progressToken": None}, {"progressToken": True}, {"progressToken": [1]}])
async def test_without_a_token_nothing_is_told(version: str, meta: Json):
    async with raw(worker(), version) as peer:
        await peer.call("report", {"values": [1, 2]}, _meta=meta)
        assert await peer.news() == []


@eras
@for_each_row(("tool", "total"), [("track", 2), ("track_async", 2), ("track_unknown", None)])
async def test_tracking_reports_after_each_item(version: str, tool: str, total: int | None):
    async with raw(worker(), version) as peer:
        result = await peer.call(tool, _meta={"progressToken": "t"})
        assert text_of(result) in ("ab", "1")
        told = [(message["params"]["progress"], message["params"].get("total")) for message in peer.heard]
        assert told == [(1, total), (2, total)]


# -- parts on the way


def streams() -> Server:
    server = Server("s", "1")
    picture = Image(b"png", format="png")

    @server.tool
    async def words() -> AsyncIterator[str]:
        for word in ("a", "b", "c"):
            yield word

    @server.tool
    def words_in_a_thread() -> Iterator[str]:
        yield from ("a", "b", "c")

    @server.tool
    async def mixed() -> AsyncIterator[str | Image]:
        for part in ("a", "b", picture, "c", "d"):
            yield part

    @server.tool
    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    @server.tool
    async def nothing() -> AsyncIterator[str]:
        return
        yield

    @server.tool
    async def breaks() -> AsyncIterator[str]:
        yield "a"
        raise ToolError("broke off; ask for less")

    @server.tool
    async def emits(ctx: Context) -> str:
        ctx.emit("first")
        ctx.emit(picture)
        ctx.emit(Text("third"))
        return "last"

    @server.tool
    def emits_in_a_thread(ctx: Context) -> dict[str, int]:
        ctx.emit("first")
        return {"n": 1}

    @server.tool
    async def emits_between(ctx: Context) -> AsyncIterator[str]:
        yield "a"
        ctx.emit(picture)
        yield "b"

    return server


STREAMED: dict[str, list[str]] = {
    "words": ["abc"],
    "words_in_a_thread": ["abc"],
    "mixed": ["ab", "image", "cd"],
    "numbers": ["1", "2"],
    "nothing": [],
    "emits": ["first", "image", "third", "last"],
    "emits_in_a_thread": ["first", '{"n":1}'],
    "emits_between": ["a", "image", "b"],
}


@eras
@for_each_row("tool", STREAMED)
async def test_every_part_is_in_the_result_in_order_with_adjacent_text_merged(version: str, tool: str):
    async with raw(streams(), version) as peer:
        result = await peer.call(tool)
        assert texts(result) == STREAMED[tool], result


async def test_emitting_leaves_structured_content_alone():
    async with raw(streams()) as peer:
        assert (await peer.call("emits_in_a_thread"))["structuredContent"] == {"n": 1}


@eras
async def test_a_stream_that_breaks_off_is_a_failure(version: str):
    async with raw(streams(), version) as peer:
        result = await peer.call("breaks")
        assert (result["isError"], text_of(result)) == (True, "broke off; ask for less")


@eras
async def test_a_cancelled_generator_is_closed(version: str):
    server, closed = Server("s", "1"), asyncio.Event()

    @server.tool
    async def endless() -> AsyncIterator[str]:
        try:
            while True:
                yield "x"
                await asyncio.sleep(0)
        finally:
            closed.set()

    async with raw(server, version) as peer:
        id = await peer.begin("tools/call", {"name": "endless"})
        await turns()
        await peer.tell("notifications/cancelled", {"requestId": id})
        await closed.wait()
        assert await peer.news() == []


# -- time


def sleepy(seconds: float) -> tuple[Server, threading.Event, list[bool]]:
    server, release, saw = Server("s", "1", limits=Limits(tool=seconds)), threading.Event(), list[bool]()

    @server.tool
    async def waits() -> str:
        await asyncio.Event().wait()
        return "never"

    @server.tool
    def blocks(ctx: Context) -> str:
        saw.append(ctx.cancelled)
        release.wait(30)
        saw.append(ctx.cancelled)
        return "late"

    @server.tool(timeout=30)
    async def has_time() -> str:
        await asyncio.sleep(0.15)
        return "in time"

    @server.tool
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "swallowed"

    return server, release, saw


@eras
@pytest.mark.parametrize("tool", ["waits", "blocks"])
async def test_a_tool_that_takes_too_long_is_answered_on_time(version: str, tool: str):
    server, release, saw = sleepy(0.1)
    try:
        async with raw(server, version) as peer:
            result = await peer.call(tool)
            assert (result["isError"], text_of(result)) == (True, "timed out after 0.1 s")
            assert result["_meta"]["dev.defserve/error"]["error_type"] == "timeout"
            assert saw == ([False] if tool == "blocks" else [])
    finally:
        release.set()
    if tool == "blocks":
        await until(lambda: saw == [False, True])


@eras
async def test_a_tool_may_have_more_time_than_the_server_gives(version: str):
    async with raw(sleepy(0.1)[0], version) as peer:
        assert text_of(await peer.call("has_time")) == "in time"


@pytest.mark.req("MCP-4.4x")
@eras
@for_each_row("tool", ["waits", "blocks", "stubborn"])
async def test_a_cancelled_call_stops_and_is_never_answered(version: str, tool: str):
    server, release, saw = sleepy(60)
    try:
        async with raw(server, version) as peer:
            id = await peer.begin("tools/call", {"name": tool})
            await until(lambda: tool != "blocks" or saw == [False])
            await turns()
            await peer.tell("notifications/cancelled", {"requestId": id, "reason": "changed my mind"})
            release.set()
            await until(lambda: tool != "blocks" or saw == [False, True])
            assert await peer.news() == []
            assert not server.composition.running
    finally:
        release.set()


# -- knowing


@eras
async def test_the_context_knows_its_call(version: str):
    @asynccontextmanager
    async def life(server: Server) -> AsyncIterator[str]:
        yield "alive"

    server = Server("s", "1", lifespan=life)

    @server.resource("greeting://{name}")
    def greeting(name: str) -> str:
        return f"hello {name}"

    @server.tool
    async def know(ctx: Context) -> dict[str, Any]:
        (contents,) = await ctx.read_resource("greeting://Ann")
        return {
            "lifespan": ctx.lifespan,
            "principal": ctx.principal,
            "cancelled": ctx.cancelled,
            "can": [feature for feature in ("ask", "ask_url", "sample", "roots", "fly") if ctx.can(feature)],
            "traced": len(ctx.trace_id) > 8,
            "session": ctx.session is next(iter(server.composition.sessions)),
            "read": contents["text"],
        }

    async with raw(server, version, {"elicitation": {}, "roots": {}}) as peer:
        result = await peer.call("know")
        assert result["structuredContent"] == {
            "lifespan": "alive",
            "principal": "local",
            "cancelled": False,
            "can": ["ask", "roots"],
            "traced": True,
            "session": True,
            "read": "hello Ann",
        }


@pytest.mark.anyio
async def test_a_confirmation_that_is_not_awaited_is_neither_yes_nor_no(caplog: pytest.LogCaptureFixture):
    server, erased = Server("s", "1"), list[str]()

    @server.tool
    async def erase(ctx: Context) -> str:
        if ctx.confirm("Erase everything?"):  # the await is missing
            erased.append("everything")
        return "done"

    async with server.connect() as client:
        with pytest.raises(ToolError, match="internal error"):
            await client.call("erase")
    assert erased == []
    assert "fix: await ctx.confirm(…)" in caplog.text


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("verb", ["ask", "confirm"])
async def test_a_question_that_a_plain_def_returns_says_what_to_write(verb: str, caplog: pytest.LogCaptureFixture):
    server = Server("s", "1")

    @server.tool
    def erase(ctx: Context) -> str:
        return ctx.ask("Who?", str) if verb == "ask" else ctx.confirm("Sure?")  # type: ignore[return-value]

    async with server.connect(answers=Answers(ask=lambda message, schema: {"value": True})) as client:
        with pytest.raises(ToolError, match="internal error"):
            await client.call("erase")
    assert f"erase is a plain def: write ctx.wait(ctx.{verb}(…)), or make it async def\nerase is at " in caplog.text


async def test_a_question_that_an_async_def_returns_lacks_its_await(caplog: pytest.LogCaptureFixture):
    server = Server("s", "1")

    @server.tool
    async def erase(ctx: Context) -> str:
        return ctx.ask("Who?", str)  # type: ignore[return-value]

    async with server.connect() as client:
        with pytest.raises(ToolError, match="internal error"):
            await client.call("erase")
    assert "`await` is missing before ctx.ask(…)\nerase is at " in caplog.text
