from __future__ import annotations

import json
import time
from typing import Any

import pytest

from defserve import Context, Limits
from defserve.auth.principals import make_anonymous_principal
from tests.protocols.mgp.callers import ALICE, BOB, LOOPBACK, Trail, offer, speaking
from tests.protocols.mgp.streaming.press import STREAM, WORDS, begin, hear, of, press
from tests.raw import ERAS, HANDSHAKE, STATELESS, Json, raw, text_of, turns, until
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

PROGRESS = "notifications/mgp.stream.progress"

eras = pytest.mark.parametrize("version", ERAS)
endless = pytest.mark.parametrize("tool", ["forever", "forever_in_thread"])


# -- chunks ----------------------------------------------------------------------------------------------


@pytest.mark.req("MGP-12.4")
@eras
@for_each_row("tool", ["words", "words_in_thread", "emitted", "emitted_in_thread"])
async def test_every_part_is_sent_as_a_chunk_of_its_request_in_order(version: str, tool: str):
    async with raw(press(), version, offer(version, "streaming")) as peer:
        id = await begin(peer, tool)
        await peer.reply_to(id)
        assert of(peer.heard) == [
            {"request_id": id, "index": index, "content": {"type": "text", "text": word}, "done": False}
            for index, word in enumerate(WORDS)
        ]


@pytest.mark.req("MGP-12.4")
@eras
async def test_a_request_is_named_as_it_named_itself(version: str):
    async with raw(press(), version, offer(version, "streaming")) as peer:
        params = peer.with_meta({"name": "words", "_mgp": STREAM})
        await peer.send({"jsonrpc": "2.0", "id": "ä-7", "method": "tools/call", "params": params})
        assert {chunk["request_id"] for chunk in await hear(peer, 3)} == {"ä-7"}


@pytest.mark.req("MGP-12.3")
@eras
@for_each_row(
    ("extensions", "asked"),
    [
        ([], STREAM),
        (["code_safety"], STREAM),
        (["streaming"], None),
        (["streaming"], {"stream": "yes"}),
        (["streaming"], 1),
    ],
)
async def test_a_call_streams_only_when_it_says_so_and_streaming_is_negotiated(
    version: str, extensions: list[str], asked: Any
):
    async with speaking(press(), version, extensions) as peer:
        plain = await peer.call("words", _mgp=asked)
        assert text_of(plain) == "one two three"
        assert "_mgp" not in plain and "dev.defserve/stream" not in plain.get("_meta", {})
        assert text_of(await peer.call("streams", _mgp=asked)) == "false"
        assert await peer.news() == []


@pytest.mark.req("MGP-12.5", "GGEN-P4-1")
@eras
async def test_the_final_response_holds_everything_and_the_figures(version: str):
    async with raw(press(), version, offer(version, "streaming")) as peer:
        result = await peer.call("words_in_thread", _mgp=STREAM)
        assert result["content"] == [{"type": "text", "text": "one two three"}]
        figures = result["_mgp"]
        assert (figures["streamed"], figures["chunks_sent"]) == (True, 3)
        assert isinstance(figures["duration_ms"], int) and figures["duration_ms"] >= 0
        assert result["_meta"]["dev.defserve/stream"] == figures

        result = await peer.call("emitted", _mgp=STREAM)
        assert [block["text"] for block in result["content"]] == ["one two three", "done"]

        result = await peer.call("echo", {"text": "hi"}, _mgp=STREAM)
        assert text_of(result) == "hi"
        assert (result["_mgp"]["streamed"], result["_mgp"]["chunks_sent"]) == (False, 0)
        assert text_of(await peer.call("streams", _mgp=STREAM)) == "true"


async def test_a_picture_is_a_chunk_like_any_other():
    async with raw(press(), STATELESS, offer(STATELESS, "streaming")) as peer:
        result = await peer.call("pictured", _mgp=STREAM)
        assert [chunk["content"] for chunk in of(peer.heard)] == result["content"]
        assert [block["type"] for block in result["content"]] == ["text", "image"]


@pytest.mark.req("MGP-12.5")
@eras
@for_each_row("tool", ["forever", "forever_in_thread", "emits_forever_in_thread"])
async def test_a_result_that_can_only_be_too_large_fails_early(version: str, tool: str):
    server = press(Limits(response=10_000))
    async with raw(server, version, offer(version, "streaming")) as peer:
        reply = await peer.reply_to(await begin(peer, tool))
        assert (reply["error"]["code"], reply["error"]["data"]["_mgp"]["details"]) == (3001, {"limit": "response"})
    async with raw(server, version) as plain:
        result = await plain.call(tool)
        assert result["_meta"]["dev.defserve/error"]["error_type"] == "limit_exceeded"


@pytest.mark.req("MGP-12.6")
@eras
async def test_progress_is_a_share_with_a_message_and_an_estimate_beside_that_of_mcp(version: str):
    async with raw(press(), version, offer(version, "streaming")) as peer:
        id = await peer.begin("tools/call", {"name": "worked", "_meta": {"progressToken": "t"}})
        await peer.reply_to(id)
        first, second = of(peer.heard, PROGRESS)
        assert (first["request_id"], first["progress"], first["message"]) == (id, 0.25, "a quarter")
        assert second["progress"] == 0.75 and "message" not in second
        assert first["estimated_remaining_ms"] >= 0
        assert [note["progress"] for note in of(peer.heard, "notifications/progress")] == [1, 3]

        peer.heard.clear()
        await peer.call("counted")
        assert [note["progress"] for note in of(peer.heard, PROGRESS)] == [0.5]
        assert not of(peer.heard, "notifications/progress")


# -- cancellation ----------------------------------------------------------------------------------------


@pytest.mark.req("MGP-12.7")
@eras
async def test_a_cancelled_call_gives_what_it_had_to_the_canceller_and_as_its_own_answer(version: str):
    async with raw(press(), version, offer(version, "streaming")) as peer:
        id = await begin(peer, "held")
        await hear(peer, 3)
        given = (await peer.ask("mgp/stream/cancel", {"request_id": id, "reason": "user_cancelled"}))["result"]
        content = [{"type": "text", "text": "one two three"}]
        assert (given["cancelled"], given["partial_result"]) == (True, {"content": content})
        result = (await peer.reply_to(id))["result"]
        assert (result["content"], result["isError"]) == (content, True)
        assert (result["_mgp"]["cancelled"], result["_mgp"]["chunks_sent"]) == (True, 3)
        again = (await peer.ask("mgp/stream/cancel", {"request_id": id}))["result"]
        assert again["cancelled"] is False and "partial_result" not in again


@pytest.mark.req("MGP-12.7")
@eras
@endless
async def test_a_cancelled_generator_is_cleaned_up_wherever_it_runs(version: str, tool: str):
    server = press()
    async with raw(server, version, offer(version, "streaming")) as peer:
        id = await begin(peer, tool)
        await hear(peer, 5)
        given = (await peer.ask("mgp/stream/cancel", {"request_id": id}))["result"]
        assert given["cancelled"] is True and text_of(given["partial_result"]).startswith("x" * 500)
        assert (await peer.reply_to(id))["result"]["isError"] is True
        await until(lambda: server.closed == [tool])
        assert text_of(await peer.call("echo", {"text": "still here"})) == "still here"


@pytest.mark.req("MGP-12.7")
async def test_a_call_that_does_not_stream_can_be_cancelled_too_even_when_every_place_is_taken():
    async with raw(press(Limits(in_flight=1)), HANDSHAKE[-1], offer(HANDSHAKE[-1], "streaming")) as peer:
        id = await peer.begin("tools/call", {"name": "held"})
        await turns()
        given = (await peer.ask("mgp/stream/cancel", {"request_id": id}))["result"]
        assert text_of(given["partial_result"]) == "one two three"
        assert text_of((await peer.reply_to(id))["result"]) == "one two three"


@pytest.mark.req("MGP-12.7")
@eras
async def test_only_a_call_that_runs_in_this_session_is_cancelled(version: str):
    server = press()
    async with (
        speaking(server, version, ["streaming"]) as mine,
        speaking(server, version, ["streaming"]) as other,
    ):
        id = await begin(mine, "held")
        await hear(mine, 3)
        for unknown in (id, 999, str(id)):
            assert (await other.ask("mgp/stream/cancel", {"request_id": unknown}))["result"]["cancelled"] is False
        assert (await mine.ask("mgp/stream/cancel", {"request_id": str(id)}))["result"]["cancelled"] is False
        server.gate.set()
        assert text_of((await mine.reply_to(id))["result"]) == "one two three more"


@eras
async def test_a_cancellation_names_a_request_and_needs_streaming(version: str):
    async with speaking(press(), version, ["streaming"]) as peer:
        for bad in ({}, {"request_id": None}, {"request_id": True}, {"request_id": 1.5}, {"request_id": [1]}):
            assert (await peer.ask("mgp/stream/cancel", bad))["error"]["code"] == -32602
    async with speaking(press(), version, ["audit"]) as peer:
        assert (await peer.ask("mgp/stream/cancel", {"request_id": 1}))["error"]["code"] == -32601


async def test_a_cancelled_call_is_on_the_audit_trail():
    trail = Trail()
    async with raw(press(audit=trail), HANDSHAKE[-1], offer(HANDSHAKE[-1], "streaming")) as peer:
        id = await begin(peer, "held")
        await hear(peer, 3)
        await peer.ask("mgp/stream/cancel", {"request_id": id})
        await peer.reply_to(id)
        assert [event["result"] for event in trail.events if event["event_type"] == "TOOL_EXECUTED"] == ["CANCELLED"]


@pytest.mark.req("MGP-12.7")
@for_each_row(
    ("caller", "canceller", "id", "is_cancelled"),
    [
        (ALICE, ALICE, 7, True),
        (ALICE, BOB, 7, False),
        (LOOPBACK, LOOPBACK, 7, False),
        (LOOPBACK, LOOPBACK, "5f0d7a9c2b6e4f31", True),
        (make_anonymous_principal("10.0.0.1"), make_anonymous_principal("10.0.0.1"), 7, False),
        (make_anonymous_principal("10.0.0.1"), make_anonymous_principal("10.0.0.1"), "5f0d7a9c2b6e4f31", True),
    ],
)
async def test_without_sessions_a_call_is_its_callers_if_that_is_certain(
    caller: Any, canceller: Any, id: Any, is_cancelled: bool
):
    server = press()
    async with raw(server, STATELESS, offer(STATELESS, "streaming")) as peer:
        (session,) = server.composition.sessions
        composition, engine = server.composition, session.engine
        sent: list[Any] = []

        def short(who: Any) -> Any:
            from defserve.core.session import Session

            about = {
                "principal": who.id,
                "identity": who,
                "is_shared_identity": who.is_shared_identity,
                "counted": False,
            }
            return Session(composition, engine, sent.append, is_local=False, **about)

        def request(id: Any, method: str, params: Json) -> bytes:
            return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": peer.with_meta(params)}).encode()

        running, other = short(caller), short(canceller)
        running.feed_bytes(request(id, "tools/call", {"name": "held", "_mgp": STREAM}))
        await turns()
        other.feed_bytes(request(1, "mgp/stream/cancel", {"request_id": id}))
        assert json.loads(sent[-1].data)["result"]["cancelled"] is is_cancelled
        server.gate.set()
        await turns()
        assert not running.in_flight


# -- pace and gaps ---------------------------------------------------------------------------------------


@pytest.mark.req("MGP-12.8/9")
@pytest.mark.parametrize("version", ERAS)
async def test_a_pause_holds_the_function_up_and_the_answer_waits_for_no_pace(version: str):
    server = press()
    async with raw(server, version, offer(version, "streaming")) as peer:
        id = await begin(peer, "many", count=2_000)
        await hear(peer, 1)
        await peer.tell("notifications/mgp.stream.pace", {"request_id": id, "max_chunks_per_second": 0}, dressed=True)
        await peer.news()
        printed = server.printed
        await turns()
        assert server.printed == printed < 2_000 and await peer.news() == []
        await peer.tell("notifications/mgp.stream.pace", {"request_id": id, "max_chunks_per_second": 1e9}, dressed=True)
        assert (await peer.reply_to(id))["result"]["_mgp"]["chunks_sent"] == 2_000


@pytest.mark.req("MGP-12.8/9")
async def test_a_pause_that_comes_when_the_function_is_done_does_not_hold_up_the_answer():
    server, done = press(Limits(question=2)), list[str]()

    @server.tool
    async def gush(ctx: Context) -> str:
        for _ in range(8):
            ctx.emit("x" * 20_000)
        done.append("gush")
        return "done"

    async with raw(server, HANDSHAKE[-1], offer(HANDSHAKE[-1], "streaming")) as peer:
        id = await begin(peer, "gush")
        await until(lambda: done == ["gush"])
        await turns()
        await peer.tell("notifications/mgp.stream.pace", {"request_id": id, "max_chunks_per_second": 0})
        await turns()
        assert (await peer.reply_to(id))["result"]["_mgp"]["chunks_sent"] == 8


@pytest.mark.req("MGP-12.8/9")
async def test_a_pace_is_kept_to():
    async with raw(press(), HANDSHAKE[-1], offer(HANDSHAKE[-1], "streaming")) as peer:
        id = await begin(peer, "forever")
        for bad in (-1, "fast", None, True, 10**400):
            await peer.tell("notifications/mgp.stream.pace", {"request_id": id, "max_chunks_per_second": bad})
        await hear(peer, 3)
        await peer.tell("notifications/mgp.stream.pace", {"request_id": id, "max_chunks_per_second": 100})
        await peer.news()
        began = time.monotonic()
        await hear(peer, 5)
        assert 0.035 < time.monotonic() - began < 20
        assert (await peer.ask("mgp/stream/cancel", {"request_id": id}))["result"]["cancelled"] is True


@pytest.mark.req("MGP-12.8/9")
async def test_lost_chunks_are_sent_again_while_they_are_kept():
    async with raw(press(), HANDSHAKE[-1], offer(HANDSHAKE[-1], "streaming")) as peer:
        id = await begin(peer, "held")
        chunks = await hear(peer, 3)
        peer.heard.clear()
        missing = [2, 0, 2, 3, -1, "x", True]
        await peer.tell("notifications/mgp.stream.gap", {"request_id": id, "missing_indices": missing})
        assert await hear(peer, 2) == [chunks[0], chunks[2]]
        await peer.ask("mgp/stream/cancel", {"request_id": id})


@pytest.mark.slow
@pytest.mark.req("MGP-12.8/9")
async def test_a_chunk_that_is_kept_no_more_is_said_to_be_lost():
    async with raw(press(), HANDSHAKE[-1], offer(HANDSHAKE[-1], "streaming")) as peer:
        id = await begin(peer, "forever")
        await hear(peer, 2_000)
        await peer.tell("notifications/mgp.stream.pace", {"request_id": id, "max_chunks_per_second": 0})
        await peer.news()
        await peer.tell("notifications/mgp.stream.gap", {"request_id": id, "missing_indices": list(range(2_000))})
        first, *others = await hear(peer, 2)
        assert (first["index"], first["gap_unrecoverable"]) == (0, True)
        assert all("gap_unrecoverable" not in other for other in others)
        resent = of(await peer.news())
        assert sum(len(json.dumps(chunk)) for chunk in resent) < 64 * 1024
