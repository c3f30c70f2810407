"""MGP §12 with readers that are slow, stop, or leave: the generator waits, and nobody else does."""

from __future__ import annotations

import asyncio
import os
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from defserve import Context, Limits
from defserve.core.extension import OutgoingMessage
from defserve.serve.connection import Connection
from defserve.serve.http.exchange import MAX_UNREAD_MESSAGES, UnreadMessages
from defserve.serve.lifespans import close_connection, enter_lifespans
from defserve.serve.stdio import StdioTransport
from tests.asgi import Exchange, last, text
from tests.asgi import peer as web_peer
from tests.protocols.mgp.callers import offer
from tests.protocols.mgp.streaming.press import STREAM, Press, begin, of, press
from tests.raw import ERAS, HANDSHAKE, STATELESS, Json, Raw, raw, text_of, turns, until

pytestmark = pytest.mark.anyio

# What may wait, in bytes, and how many of the chunks of `many` that are at the most.
MOST = 64 * 1024
CHUNKS = MOST // len('{"jsonrpc":"2.0","method":"notifications/mgp.stream.chunk","params":{"request_id":1,"index":0,')

eras = pytest.mark.parametrize("version", ERAS)
generators = pytest.mark.parametrize("tool", ["many", "many_in_thread"])


def whole(count: int) -> str:
    return "".join(f"{number}," for number in range(count))


# -- a slow reader ---------------------------------------------------------------------------------------


@pytest.mark.req("GGEN-P4-1", "MGP-12.4", "MGP-12.5")
@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.soak)])
@generators
async def test_a_long_stream_arrives_in_order_and_is_made_as_it_is_read(tool: str, count: int):
    server = press()
    async with raw(server, HANDSHAKE[-1], offer(HANDSHAKE[-1], "streaming")) as peer:
        id = await begin(peer, tool, count=count)
        for index in range(count):
            message = await peer.link.receive()
            assert b'"index":%d,"content":{"type":"text","text":"%d,"}' % (index, index) in message
            assert server.printed - index <= CHUNKS
        result = (await peer.reply_to(id))["result"]
        assert text_of(result) == whole(count)
        assert result["_mgp"]["chunks_sent"] == count


@pytest.mark.slow
async def test_memory_is_the_result_and_a_bounded_buffer():
    server, count = press(), 4_000
    async with raw(server, HANDSHAKE[-1], offer(HANDSHAKE[-1], "streaming")) as peer:
        await peer.reply_to(await begin(peer, "many", count=10))
        peer.heard.clear()
        tracemalloc.start()
        try:
            await begin(peer, "many", count=count)
            for _ in range(count - 1):
                await peer.link.receive()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # A word of the result takes a str and a place in a list; a chunk, were it kept, several times as much.
        assert peak < count * 80 + 8 * MOST


async def test_a_reader_that_stops_stops_the_generator_until_it_goes_on():
    server = press()
    async with raw(server, HANDSHAKE[-1], offer(HANDSHAKE[-1], "streaming")) as peer:
        id = await begin(peer, "forever")
        printed = await settled(server)
        assert 100 < printed <= CHUNKS
        for _ in range(printed - 1):
            await peer.link.receive()
        assert await settled(server) > printed
        await peer.ask("mgp/stream/cancel", {"request_id": id})


@generators
async def test_the_clock_of_a_tool_stands_still_while_its_reader_is_waited_for(tool: str):
    server = press()
    async with raw(server, HANDSHAKE[-1], offer(HANDSHAKE[-1], "streaming")) as peer:
        id = await begin(peer, tool, count=2_000)
        (session,) = server.composition.sessions
        await until(lambda: id in session.in_flight and session.in_flight[id].questions == 1)
        assert server.printed < 2_000
        assert text_of((await peer.reply_to(id))["result"]) == whole(2_000)


async def test_a_thread_that_waits_for_a_reader_takes_no_other_tools_place():
    server = press(Limits(threads=1))

    @server.tool
    def quick() -> str:
        return "quick"

    async with raw(server, HANDSHAKE[-1], offer(HANDSHAKE[-1], "streaming")) as peer:
        id = await begin(peer, "forever_in_thread")
        await settled(server)
        other = await peer.begin("tools/call", {"name": "quick"})
        assert text_of((await peer.reply_to(other))["result"]) == "quick"
        await peer.ask("mgp/stream/cancel", {"request_id": id})


async def test_a_reader_that_takes_nothing_for_too_long_ends_the_call():
    server = press(Limits(question=0.05))
    async with raw(server, HANDSHAKE[-1], offer(HANDSHAKE[-1], "streaming")) as peer:
        id = await begin(peer, "forever")
        await until(lambda: server.closed == ["forever"])
        error = (await peer.reply_to(id))["error"]
        assert (error["code"], error["data"]["error_type"]) == (3003, "timeout")
        assert "nobody read the stream for 0.05 s" in error["message"]


@pytest.mark.slow
async def test_what_is_emitted_on_the_loop_gathers_and_the_answer_comes_behind_it():
    server = press()

    @server.tool
    async def gush(ctx: Context) -> str:
        for number in range(5_000):
            ctx.emit(f"{number},")
        return "done"

    async with raw(server, HANDSHAKE[-1], offer(HANDSHAKE[-1], "streaming")) as peer:
        result = (await peer.reply_to(await begin(peer, "gush")))["result"]
        assert [chunk["index"] for chunk in of(peer.heard)] == list(range(5_000))
        assert [block["text"] for block in result["content"]] == [whole(5_000), "done"]


# -- HTTP ------------------------------------------------------------------------------------------------


def stream_of(exchange: Exchange) -> list[Json]:
    return of(exchange.messages)


@pytest.mark.slow
@pytest.mark.req("MGP-12.4")
@eras
@generators
async def test_over_http_a_stalled_stream_holds_up_nothing_but_its_own_generator(version: str, tool: str):
    server, count = press(), 5_000
    async with web_peer(server, version, offer(version, "streaming")) as peer:
        stream = peer.begin_call(tool, {"count": count}, id="stream", _mgp=STREAM)
        await stream.until(lambda: stream.body)
        stream.stall()
        before = len(stream_of(stream))
        for number in range(5):
            assert await peer.call("echo", {"text": f"{number}"}, id=number) == str(number)
        assert await settled(server) <= before + CHUNKS
        stream.read_on()
        await stream.ended()
        assert [chunk["index"] for chunk in stream_of(stream)] == list(range(count))
        assert text(last(stream)) == whole(count)


async def test_over_http_work_goes_on_for_a_client_of_a_session_that_left_and_comes_back():
    server, count = press(), 5_000
    async with web_peer(server, HANDSHAKE[-1], offer(HANDSHAKE[-1], "streaming")) as peer:
        stream = peer.begin_call("many", {"count": count}, id=1, _mgp=STREAM)
        await stream.until(lambda: stream.events)
        stream.stall()
        await turns()
        assert server.printed < count
        seen = stream.events[-1].id
        stream.leave()
        await stream.ended()
        await until(lambda: server.printed == count)
        back = await peer.listen(seen).ended()
        assert text(back.messages[-1]) == whole(count)


async def test_over_http_a_client_without_a_session_cancels_by_leaving():
    server = press()
    async with web_peer(server, STATELESS, offer(STATELESS, "streaming")) as peer:
        stream = peer.begin_call("forever_in_thread", id=1, _mgp=STREAM)
        await stream.until(lambda: stream.body)
        stream.leave()
        await until(lambda: server.closed == ["forever_in_thread"])
        await stream.ended()


@eras
async def test_over_http_chunks_travel_on_the_stream_of_their_call(version: str):
    async with web_peer(press(), version, offer(version, "streaming")) as peer:
        first = peer.begin_call("words", id=1, _mgp=STREAM)
        second = peer.begin_call("words", id=2, _mgp=STREAM)
        for id, stream in ((1, await first.ended()), (2, await second.ended())):
            assert [chunk["request_id"] for chunk in stream_of(stream)] == [id] * 3
            assert text(last(stream)) == "one two three"


# -- one pipe --------------------------------------------------------------------------------------------


class Pipe:
    """The peer's end of standard input and output; it reads only when it is told to."""

    def __init__(self, hear: int, say: int) -> None:
        self.hear, self.say = hear, say
        self.rest = b""
        os.set_blocking(hear, False)

    async def send(self, message: bytes) -> None:
        os.write(self.say, message + b"\n")

    async def receive(self) -> bytes:
        async with asyncio.timeout(10):
            while b"\n" not in self.rest:
                try:
                    self.rest += os.read(self.hear, 4096)
                except BlockingIOError:
                    await asyncio.sleep(0.001)
        line, _, self.rest = self.rest.partition(b"\n")
        return line


@asynccontextmanager
async def piped(server: Press, version: str) -> AsyncGenerator[tuple[Raw, Connection, StdioTransport]]:
    transport = StdioTransport(server.limits.message)
    transport._input, say = os.pipe()
    hear, transport._output = os.pipe()
    async with enter_lifespans(server.composition) as engine:
        connection = Connection(server.composition, transport)
        connection.attach(engine)
        transport.start(asyncio.get_running_loop(), connection.feed_frames, connection.close)
        peer = Raw(Pipe(hear, say), version, offer(version, "streaming"))
        try:
            await peer.open()
            yield peer, connection, transport
        finally:
            await close_connection(connection, server.limits.farewell)
            for descriptor in (transport._input, say, hear, transport._output):
                os.close(descriptor)


async def settled(server: Press) -> int:
    """How much was made when no more is: something was made, and nothing more in ten looks."""
    await until(lambda: server.printed > 0)
    printed, looks = server.printed, 0
    while looks < 10:
        await asyncio.sleep(0.01)
        looks = looks + 1 if printed == server.printed else 0
        printed = server.printed
    return printed


@pytest.mark.slow
@pytest.mark.req("MGP-12.4")
@eras
@generators
async def test_on_one_pipe_answers_overtake_waiting_chunks_of_which_there_are_few(version: str, tool: str):
    server, count = press(), 5_000
    async with piped(server, version) as (peer, connection, transport):
        id = await begin(peer, tool, count=count)
        await until(lambda: transport.queued > 0 and bool(connection._bulk.waiting))
        printed = await settled(server)
        assert transport.queued > 0 and printed < count
        assert sum(len(outgoing.data) for outgoing, _ in connection._bulk.waiting) + transport.queued <= MOST
        asked = await peer.begin("tools/call", {"name": "echo", "arguments": {"text": "hi"}})
        await settled(server)
        assert text_of((await peer.reply_to(asked))["result"]) == "hi"
        overtaken = printed - len(of(peer.heard))
        assert overtaken > 50
        assert text_of((await peer.reply_to(id))["result"]) == whole(count)
        assert [chunk["index"] for chunk in of(peer.heard)] == list(range(count))


async def test_a_call_cancelled_the_mcp_way_sends_nothing_more():
    server = press()
    async with piped(server, HANDSHAKE[-1]) as (peer, connection, _transport):
        id = await begin(peer, "forever")
        printed = await settled(server)
        await peer.tell("notifications/cancelled", {"requestId": id})
        assert text_of(await peer.call("echo", {"text": "hi"})) == "hi"
        await peer.ask("ping")
        assert len(of(peer.heard)) < printed
        assert not connection._bulk.waiting and server.closed == ["forever"]


# -- the outbox of a socket ------------------------------------------------------------------------------


def outgoing(data: bytes, call: Any = None, *, answers: bool = False, bulk: bool = False) -> OutgoingMessage:
    return OutgoingMessage(data, call, answers, bulk=bulk)


def test_in_an_outbox_everything_overtakes_the_bulk_of_other_calls_and_nothing_that_of_its_own():
    box, one, two, three = UnreadMessages(), object(), object(), object()
    box.add_message(outgoing(b"log of one", one))
    for number in range(2):
        box.add_message(outgoing(b"1.%d" % number, one, bulk=True))
        box.add_message(outgoing(b"2.%d" % number, two, bulk=True))
    box.add_message(outgoing(b"answer to three", three, answers=True))
    box.add_message(outgoing(b"news"))
    box.add_message(outgoing(b"answer to one", one, answers=True))
    box.add_message(outgoing(b"answer to two", two, answers=True))
    box.add_message(outgoing(b"answers to a batch", answers=True))
    assert [item.message.data for item in box.take_unread()] == [
        *(b"log of one", b"answer to three", b"news", b"1.0", b"2.0", b"1.1"),
        *(b"answer to one", b"2.1", b"answer to two", b"answers to a batch"),
    ]


def test_in_an_outbox_bulk_is_never_dropped_and_takes_nobody_elses_room():
    box, call = UnreadMessages(), object()
    for number in range(MAX_UNREAD_MESSAGES + 1):
        box.add_message(outgoing(b"%d" % number, call, bulk=True))
    assert not box.is_full
    for _ in range(MAX_UNREAD_MESSAGES + 1):
        box.add_message(outgoing(b"news"))
    assert box.is_full
    kept = [item.message for item in box.take_unread()]
    assert sum(message.bulk for message in kept) == MAX_UNREAD_MESSAGES + 1
    assert len(kept) == 2 * MAX_UNREAD_MESSAGES + 1
