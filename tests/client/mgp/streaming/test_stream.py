"""Streamed calls: over every road and in both eras with a server of ours, and with one that is a table."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve import Server
from defserve.client import Answers, Mgp, Stream
from defserve.client.mgp import streaming
from defserve.errors import PeerError, PeerGone, PeerTimeout, ToolError
from defserve.testing.client import SyncClient
from defserve.testing.transports import TRANSPORTS
from tests.client.mgp.table import CHUNK, ERAS, GAP, PACE, Table, flowing, talking
from tests.client.pretend import SILENCE, Fail
from tests.rows import for_each_row

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("forked")]

eras = pytest.mark.parametrize("version", ERAS)
roads = pytest.mark.parametrize("road", TRANSPORTS)


async def parts_of(stream: Stream) -> list[Any]:
    return [part async for part in stream]


# -- a server of ours ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.req("MGP-12.3", "MGP-12.4", "MGP-12.5")
@eras
@roads
async def test_parts_come_in_order_and_then_the_whole(road: str, version: str):
    async with flowing(road, version) as client:
        async with client.stream("words") as stream:
            assert await parts_of(stream) == ["one ", "two ", "three"]
            assert await stream.result() == "one two three"
        assert (stream.figures["chunks_sent"], stream.missed, stream.cancelled) == (3, 0, False)
        async with client.stream("numbers", upto=2_000) as stream:
            assert await parts_of(stream) == [f"{number}," for number in range(2_000)]
        async with client.stream("pictured") as stream:
            text, image = await parts_of(stream)
            assert (text, image["type"]) == ("look: ", "image")


@pytest.mark.req("MGP-12.7")
@eras
@roads
async def test_a_cancelled_call_gives_what_it_had(road: str, version: str):
    async with flowing(road, version) as client:
        async with client.stream("forever") as stream:
            assert [await anext(stream) for _ in range(5)] == ["1 ", "2 ", "3 ", "4 ", "5 "]
            partial = await stream.cancel()
            assert partial.startswith("1 2 3 4 5 ")
            assert stream.cancelled and await stream.result() == await stream.cancel() == partial
            read = "1 2 3 4 5 " + "".join(await parts_of(stream))
            assert partial.startswith(read)
        assert await client.call("add", a=1, b=2) == 3


@eras
@roads
async def test_a_reader_who_stops_does_not_stop_the_others_nor_lose_anything(road: str, version: str):
    async with flowing(road, version) as client, client.stream("blocks", count=100) as stream:
        first = await anext(stream)
        assert await client.call("add", a=1, b=2) == 3
        assert [first, *await parts_of(stream)] == ["x" * 8_000] * 100
        assert stream.missed == 0


@eras
async def test_who_wants_only_the_result_need_not_read(version: str):
    async with flowing("memory", version) as client, client.stream("blocks", count=100) as stream:
        assert len(await stream.result()) == 800_000
        assert len(await parts_of(stream)) == 100


@eras
@roads
async def test_a_call_that_gives_nothing_on_the_way_is_one_part(road: str, version: str):
    async with flowing(road, version) as client, client.stream("add", a=1, b=2) as stream:
        assert (await parts_of(stream), await stream.result()) == ([3], 3)


@eras
async def test_a_client_without_mgp_gets_the_whole_at_once(version: str):
    async with flowing("memory", version, mgp=None) as client:
        async with client.stream("words") as stream:
            assert (await parts_of(stream), await stream.result()) == (["one two three"], "one two three")
        async with client.stream("forever") as stream:
            assert (await stream.cancel(), await parts_of(stream), stream.cancelled) == (None, [], True)


@eras
@roads
async def test_a_failure_comes_after_the_parts(road: str, version: str):
    async with flowing(road, version) as client, client.stream("broken") as stream:
        assert await anext(stream) == "one "
        with pytest.raises(ToolError, match="no more words"):
            await anext(stream)
        with pytest.raises(ToolError, match="no more words"):
            await stream.result()


@eras
async def test_a_question_on_the_way_repeats_no_part(version: str):
    answers = Answers(ask=lambda message, schema: dict.fromkeys(schema["properties"], True))
    async with flowing("http", version, answers=answers) as client, client.stream("asking") as stream:
        assert await parts_of(stream) == ["one ", "two "]
        await stream.result()


@eras
async def test_leaving_early_cancels_the_call(version: str):
    async with flowing("http", version) as client:
        async with client.stream("forever") as stream:
            await anext(stream)
        with pytest.raises(PeerError, match="left before its result"):
            await stream.result()
        async with asyncio.timeout(10):
            while (await client.health()).pending_requests:
                pass


@pytest.mark.slow
@pytest.mark.req("MGP-12.8/9")
@pytest.mark.parametrize("road", ["memory", "http", "ws"])
async def test_a_pace_is_kept_until_it_is_lifted(road: str):
    async with flowing(road, ERAS[0]) as client, client.stream("numbers", upto=5_000) as stream:
        await anext(stream)
        await stream.pace(0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await parts_of(stream)
        await stream.pace(None)
        assert (await parts_of(stream))[-1] == "4999,"
        assert stream.missed == 0


@pytest.mark.slow
async def test_a_stream_may_take_longer_than_a_request_as_long_as_something_comes():
    async with flowing("memory", ERAS[0], timeout=1.5) as client, client.stream("forever") as stream:
        async with asyncio.timeout(60):
            parts = [await anext(stream) for _ in range(1_600)]  # each takes a millisecond or more
    assert parts[-1] == "1600 "


@for_each_row("era", ["handshake", "stateless"])
def test_without_await_the_parts_are_a_list(era: str):
    with SyncClient("tests.client.mgp.flowing:server", era, mgp=Mgp(audit=[])) as client:
        assert client.stream_parts("words") == ["one ", "two ", "three"]
        with pytest.raises(ToolError, match="no more words"):
            client.stream_parts("broken")


@for_each_row("over", ["memory", "stdio", "http", "ws"])
@for_each_row("era", ["handshake", "stateless"])
def test_a_test_client_that_offers_no_mgp_gets_the_parts_too(era: str, over: str):
    with SyncClient("tests.client.mgp.flowing:server", era, over=over) as client:
        whole = client.call("words")
        assert client.stream_parts("words") == ["one ", "two ", "three"]
        assert client.mgp is None and client.call("words") == whole
        with pytest.raises(ToolError, match="no more words"):
            client.stream_parts("broken")


def test_a_tool_that_does_not_stream_has_one_part():
    server = Server("plain", "1")

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    with SyncClient(server) as client:
        assert client.stream_parts("add", a=1, b=2) == [3]


# -- a server that is a table ----------------------------------------------------------------------------


async def test_streaming_is_asked_for_only_where_it_was_agreed():
    table = Table(extensions=("audit",))
    async with talking(table) as client, client.stream("t") as stream:
        table.answer(await table.called(), "whole")
        assert await parts_of(stream) == ["whole"]
    assert "_mgp" not in table.asked("tools/call")[0]


async def test_the_call_asks_for_a_stream_with_an_id_that_nobody_guesses():
    table = Table()
    async with talking(table) as client, client.stream("t", a=1) as stream:
        id = await table.called()
        table.answer(id)
        assert (await parts_of(stream), await stream.result()) == ([], None)
    (params,) = table.asked("tools/call")
    assert (params["arguments"], params["_mgp"], len(id)) == ({"a": 1}, {"stream": True}, 32)


@pytest.mark.req("MGP-12.8/9")
async def test_a_gap_is_asked_for_again_and_closed():
    table = Table()
    async with talking(table) as client, client.stream("t") as stream:
        id = await table.called()
        for index in (0, 3, 4):
            table.chunk(id, index, f"{index}")
        assert await anext(stream) == "0"
        await table.told(lambda message: message.get("method") == GAP)
        assert table.asked(GAP) == [{"request_id": id, "missing_indices": [1, 2]}]
        for index in (2, 1, 1):
            table.chunk(id, index, f"{index}")
        table.answer(id, "01234")
        assert (await parts_of(stream), stream.missed) == (["1", "2", "3", "4"], 0)


@pytest.mark.req("MGP-12.8/9")
async def test_a_part_that_is_lost_for_good_is_left_out_and_counted():
    table = Table()
    async with talking(table) as client, client.stream("t") as stream:
        id = await table.called()
        table.chunk(id, 2, "2")
        table.chunk(id, 0, gap_unrecoverable=True)
        await table.told(lambda message: message.get("params", {}).get("missing_indices") == [1])
        table.chunk(id, 1, "1")
        table.answer(id, "012")
        assert (await parts_of(stream), stream.missed, await stream.result()) == (["1", "2"], 1, "012")


async def test_a_gap_that_nobody_closes_ends_with_the_call():
    table = Table()
    async with talking(table) as client, client.stream("t") as stream:
        id = await table.called()
        table.chunk(id, 1, "1")
        table.answer(id, "01")
        assert (await parts_of(stream), stream.missed) == (["1"], 1)


async def test_chunks_of_others_and_nonsense_are_passed_over():
    table = Table()
    async with talking(table) as client, client.stream("t") as stream:
        id = await table.called()
        nonsense: list[tuple[Any, Any]] = [
            ("another", 0),
            (None, 0),
            ([], 0),
            (id, -1),
            (id, "0"),
            (id, None),
            (id, True),
        ]
        for other, index in nonsense:
            table.chunk(other, index, "no")
        table.say({"method": CHUNK, "params": {"request_id": id, "index": 0}})
        table.chunk(id, 1, "yes")
        table.answer(id, "yes")
        assert await parts_of(stream) == [{}, "yes"]


async def test_a_slow_reader_pauses_the_server_and_goes_on_when_it_has_read():
    table = Table()
    large = "x" * (streaming.PAUSE_AT // 2)
    async with talking(table) as client, client.stream("t") as stream:
        id = await table.called()
        for index in range(3):
            table.chunk(id, index, large)
        await table.told(lambda message: message.get("method") == PACE)
        for _ in range(3):
            assert await anext(stream) == large
        assert [params["max_chunks_per_second"] for params in table.asked(PACE)] == [0, streaming.FASTEST]


async def test_what_a_server_sends_all_the_same_is_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streaming, "MAX_UNREAD_BYTES", 1_000)
    table = Table()
    async with talking(table) as client, client.stream("t") as stream:
        id = await table.called()
        for index in range(10):
            table.chunk(id, index, "x" * 400)
        table.answer(id, "all")
        assert await stream.result() == "all"
        assert (len(await parts_of(stream)), stream.missed) == (2, 8)


async def test_a_paused_stream_is_not_too_late_and_a_silent_one_is(monkeypatch: pytest.MonkeyPatch):
    table, deadlines = Table(), asyncio.Semaphore(0)
    async with talking(table, timeout=0.2) as client, client.stream("t") as stream:
        is_patient = stream.should_keep_waiting

        def deadline_passed() -> bool:
            deadlines.release()
            return is_patient()

        monkeypatch.setattr(stream, "should_keep_waiting", deadline_passed)
        id = await table.called()
        table.chunk(id, 0, "0")
        await anext(stream)
        await stream.pace(0)
        for _ in range(2):
            await deadlines.acquire()
        await stream.pace(5)
        with pytest.raises(PeerTimeout):
            await anext(stream)


RETRY = {"_mgp": {"code": 5001, "retryable": True, "retry_strategy": "immediate", "max_retries": 1}}


async def test_a_failure_is_made_good_before_the_first_part_only():
    def fail(id: str) -> None:
        error = {"code": 5001, "message": "busy", "data": RETRY}
        table.say({"id": id, "error": error})

    table = Table()
    async with talking(table) as client:
        async with client.stream("t") as stream:
            fail(await table.called())
            id = await table.called(2)
            table.chunk(id, 0, "0")
            fail(id)
            assert await anext(stream) == "0"
            with pytest.raises(Exception, match="busy"):
                await anext(stream)
    assert len(table.asked("tools/call")) == 2


@for_each_row("answers", [SILENCE, Fail(-32800, "cancelled"), {"content": [], "isError": True}])
async def test_however_a_cancelled_call_is_answered_its_part_is_given_back(answers: Any):
    partial = {"content": [{"type": "text", "text": "half"}]}
    table = Table()

    def cancel(request: dict[str, Any]) -> dict[str, Any]:
        if isinstance(answers, Fail):
            table.say({"id": request["params"]["request_id"], "error": answers.error})
        elif answers is not SILENCE:
            table.say({"id": request["params"]["request_id"], "result": answers})
        return {"cancelled": True, "partial_result": partial}

    table.replies["mgp/stream/cancel"] = cancel
    async with talking(table) as client, client.stream("t") as stream:
        id = await table.called()
        assert await stream.cancel() == "half"
        assert table.asked("mgp/stream/cancel") == [{"request_id": id, "reason": "user_cancelled"}]
        assert (await stream.result(), await parts_of(stream)) == ("half", [])


async def test_a_part_that_is_no_content_ends_the_call_too():
    table = Table({"mgp/stream/cancel": {"cancelled": True, "partial_result": {"content": "half"}}})
    async with talking(table) as client, client.stream("t") as stream:
        await table.called()
        waiting = asyncio.create_task(stream.result())
        with pytest.raises(PeerError, match="no list of blocks"):
            await stream.cancel()
        with pytest.raises(PeerError, match="no list of blocks"):
            async with asyncio.timeout(5):
                await waiting


async def test_cancelling_what_the_server_knows_no_more_calls_it_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streaming, "LATE_SECONDS", 0.01)
    table = Table({"mgp/stream/cancel": {"cancelled": False}})
    async with talking(table) as client, client.stream("t") as stream:
        id = await table.called()
        assert await stream.cancel() is None
        await table.told(lambda message: message.get("method") == "notifications/cancelled")
        assert table.asked("notifications/cancelled")[0]["requestId"] == id


async def test_cancelling_what_is_over_gives_its_result():
    table = Table()

    def cancel(request: dict[str, Any]) -> dict[str, Any]:
        table.answer(request["params"]["request_id"], "whole")
        return {"cancelled": False}

    table.replies["mgp/stream/cancel"] = cancel
    async with talking(table) as client, client.stream("t") as stream:
        await table.called()
        assert (await stream.cancel(), stream.cancelled) == ("whole", False)


async def test_a_server_that_leaves_ends_the_stream():
    table = Table()
    async with talking(table) as client, client.stream("t") as stream:
        table.chunk(await table.called(), 0, "0")
        table.leave()
        assert await anext(stream) == "0"
        with pytest.raises(PeerGone):
            await anext(stream)
