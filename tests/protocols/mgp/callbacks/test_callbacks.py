from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from defserve import Context, Declined, Limits, Server
from defserve.errors import PeerGone
from defserve.protocols.mgp.callbacks import CALLBACK_REQUEST_METHOD, CallbackSection, OpenCallbacks
from tests.asgi import Peer, last, living, text, with_tokens
from tests.raw import HANDSHAKE, STATELESS, Json, Raw, raw, text_of, turns
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

MGP = {"version": "0.3.0", "extensions": ["bidirectional"]}
OFFER = {"mgp": MGP}
FEATURES = ("ask", "confirm", "choose", "ask_url", "sample", "roots")


class Guest(BaseModel):
    name: str = Field(min_length=2)
    nights: int
    room: Literal["single", "double"] = "single"


def inn(limits: Limits | None = None) -> Server:
    server = Server("inn", "1", limits=limits or Limits())

    @server.tool
    async def wipe(ctx: Context) -> str:
        return "wiped" if await ctx.confirm("Wipe all?") else "kept"

    @server.tool
    async def size(ctx: Context) -> str:
        return await ctx.choose("Which size?", {"s": "Small", "l": "Large"})

    @server.tool
    async def check_in(ctx: Context) -> Guest:
        return await ctx.ask("Check in", Guest)

    @server.tool
    async def name(ctx: Context) -> str:
        try:
            return await ctx.ask("Your name?", str)
        except Declined:
            return "nameless"

    @server.tool
    def name_in_thread(ctx: Context) -> str:
        return ctx.wait(ctx.ask("Your name?", str))

    @server.tool
    async def both(ctx: Context) -> str:
        return " and ".join(await ctx.gather(ctx.ask("Left?", str), ctx.ask("Right?", str)))

    @server.tool(timeout=1.0)
    async def hurried(ctx: Context) -> str:
        return await ctx.ask("Take your time", str)

    @server.tool
    async def roads(ctx: Context) -> list[str]:
        return [feature for feature in FEATURES if ctx.can(feature)]

    @server.tool
    async def told(ctx: Context) -> str:
        CallbackSection().notify_person(ctx.call, "The bar is open")
        return "told"

    return server


class Kernel:
    """A peer that never answers a request of the server's: callbacks are its only way to be asked."""

    def __init__(self, peer: Raw) -> None:
        self.peer = peer

    async def begin(self, tool: str) -> int:
        return await self.peer.begin("tools/call", {"name": tool, "arguments": {}})

    async def asked(self) -> Json:
        """The next message, which has to be a callback."""
        message = self.peer.heard.pop(0) if self.peer.heard else json.loads(await self.peer.link.receive())
        assert message["method"] == CALLBACK_REQUEST_METHOD, message
        assert "id" not in message
        return message["params"]

    async def respond(self, callback: Json, response: Any) -> Json:
        params = {"callback_id": callback["callback_id"], "response": response}
        return await self.peer.ask("mgp/callback/respond", params)

    async def call(self, tool: str, *responses: Any) -> Json:
        """The result of a call whose callbacks are answered in order."""
        id = await self.begin(tool)
        for response in responses:
            assert (await self.respond(await self.asked(), response))["result"] == {"accepted": True}
        return (await self.peer.reply_to(id))["result"]


@asynccontextmanager
async def kernel(
    server: Server | None = None, version: str = HANDSHAKE[-1], capabilities: Json = OFFER
) -> AsyncGenerator[Kernel]:
    async with raw(server or inn(), version, capabilities) as peer:
        yield Kernel(peer)


def is_refused(reply: Json) -> bool:
    error = reply["error"]
    return error["code"] == -32602 and error["data"]["error_type"] == "callback_not_pending"


def detail(result: Json) -> Json:
    assert result["isError"] is True
    return result["_meta"]["dev.defserve/error"]


def waiting(server: Server) -> int:
    (session,) = server.composition.sessions
    asked = session.peek(OpenCallbacks)
    return len(asked.waiting) if asked is not None else 0


# -- asking ----------------------------------------------------------------------------------------------


@pytest.mark.req("MGP-13.4", "MGP-13.4t")
async def test_a_confirmation_is_a_callback_that_belongs_to_its_call():
    async with kernel() as peer:
        id = await peer.begin("wipe")
        callback = await peer.asked()
        assert callback == {
            "callback_id": callback["callback_id"],
            "request_id": id,
            "type": "confirmation",
            "message": "Wipe all?",
            "options": ["confirm", "cancel"],
            "timeout_ms": 60_000,
        }
        assert (await peer.respond(callback, "confirm"))["result"] == {"accepted": True}
        assert text_of((await peer.peer.reply_to(id))["result"]) == "wiped"


@for_each_row("version", HANDSHAKE)
async def test_every_version_with_a_handshake_can_be_asked(version: str):
    async with kernel(version=version) as peer:
        assert text_of(await peer.call("name", "Ann")) == "Ann"


@for_each_row("said", ["cancel", "decline", "perhaps", None, False])
async def test_what_does_not_confirm_is_no(said: Any):
    async with kernel() as peer:
        assert text_of(await peer.call("wipe", said)) == "kept"


@pytest.mark.req("MGP-13.4t")
@for_each_row("said", ["Large", "l"])
async def test_a_choice_is_a_selection(said: str):
    async with kernel() as peer:
        id = await peer.begin("size")
        callback = await peer.asked()
        assert (callback["type"], callback["options"]) == ("selection", ["Small", "Large"])
        await peer.respond(callback, said)
        assert text_of((await peer.peer.reply_to(id))["result"]) == "l"


async def test_a_choice_that_was_not_offered_is_an_error_the_model_reads():
    async with kernel() as peer:
        assert detail(await peer.call("size", "Huge"))["error_type"] == "tool_error"


@pytest.mark.req("MGP-13.4t")
async def test_a_form_is_asked_one_field_after_another():
    async with kernel() as peer:
        result = await peer.call("check_in", "Ann", "3", "double")
        assert result["structuredContent"] == {"name": "Ann", "nights": 3, "room": "double"}


async def test_a_field_left_blank_keeps_its_default():
    async with kernel() as peer:
        assert (await peer.call("check_in", "Ann", 3, None))["structuredContent"]["room"] == "single"


async def test_an_answer_that_does_not_fit_the_form_is_an_error_the_model_reads():
    async with kernel() as peer:
        result = await peer.call("check_in", "A", "many", "double")
        assert "name: String should have at least 2 characters; nights: " in text_of(result)


async def test_a_form_ends_at_the_field_that_is_declined():
    async with kernel() as peer:
        assert detail(await peer.call("check_in", "Ann", "cancel"))["error_type"] == "declined"
        assert text_of(await peer.call("name", "decline")) == "nameless"


async def test_a_thread_is_answered_too():
    async with kernel() as peer:
        assert text_of(await peer.call("name_in_thread", "Ann")) == "Ann"


async def test_answers_to_questions_asked_at_once_find_their_own():
    async with kernel() as peer:
        id = await peer.begin("both")
        left, right = await peer.asked(), await peer.asked()
        assert left["callback_id"] != right["callback_id"]
        await peer.respond(right, "R")
        await peer.respond(left, "L")
        assert text_of((await peer.peer.reply_to(id))["result"]) == "L and R"


@pytest.mark.req("MGP-13.4t")
async def test_a_notification_needs_no_answer():
    server = inn()
    async with kernel(server) as peer:
        assert text_of(await peer.call("told")) == "told"
        callback = await peer.asked()
        assert (callback["type"], callback["message"]) == ("notification", "The bar is open")
        assert "timeout_ms" not in callback
        assert is_refused(await peer.respond(callback, "ok"))


# -- which road ------------------------------------------------------------------------------------------


@for_each_row(
    ("capabilities", "method"),
    [
        ({"mgp": MGP, "elicitation": {}}, CALLBACK_REQUEST_METHOD),
        ({"experimental": {"mgp": MGP}, "elicitation": {}}, CALLBACK_REQUEST_METHOD),
        ({"mgp": {**MGP, "extensions": ["callbacks"]}}, CALLBACK_REQUEST_METHOD),
        ({"mgp": {**MGP, "extensions": ["audit"]}, "elicitation": {}}, "elicitation/create"),
        ({"mgp": {**MGP, "version": "1.0.0"}, "elicitation": {}}, "elicitation/create"),
        ({"elicitation": {}}, "elicitation/create"),
    ],
)
async def test_a_callback_comes_before_elicitation_where_it_was_negotiated(capabilities: Json, method: str):
    async with kernel(capabilities=capabilities) as peer:
        await peer.begin("wipe")
        assert json.loads(await peer.peer.link.receive())["method"] == method


@for_each_row(
    ("version", "capabilities", "able"),
    [
        (HANDSHAKE[-1], OFFER, ["ask", "confirm", "choose"]),
        (HANDSHAKE[0], OFFER, ["ask", "confirm", "choose"]),
        (HANDSHAKE[-1], {"mgp": {**MGP, "extensions": ["audit"]}}, []),
        (STATELESS, {"extensions": {"dev.cloto/mgp": MGP}}, []),
        (STATELESS, {"extensions": {"dev.cloto/mgp": MGP}, "elicitation": {}}, ["ask", "confirm", "choose"]),
    ],
)
async def test_can_knows_the_road(version: str, capabilities: Json, able: list[str]):
    async with kernel(version=version, capabilities=capabilities) as peer:
        assert json.loads((await peer.call("roads"))["content"][0]["text"]) == able


async def test_without_a_session_the_question_is_left_in_the_result():
    offer = {"extensions": {"dev.cloto/mgp": MGP}, "elicitation": {}}
    async with raw(inn(), STATELESS, offer) as peer:
        result = await peer.call("wipe")
        assert result["resultType"] == "input_required"
        assert await peer.news() == []


async def test_an_answer_without_negotiation_is_an_unknown_method():
    async with kernel(capabilities={"elicitation": {}}) as peer:
        reply = await peer.respond({"callback_id": "cb-001"}, "confirm")
        assert reply["error"]["code"] == -32601


# -- answers that come to nothing ------------------------------------------------------------------------


@pytest.mark.req("MGP-13.4x")
async def test_an_unknown_callback_is_refused_and_harms_nothing():
    async with kernel() as peer:
        id = await peer.begin("wipe")
        callback = await peer.asked()
        for guess in ("", "cb-001", callback["callback_id"][:-1], callback["callback_id"].swapcase()):
            assert is_refused(await peer.respond({"callback_id": guess}, "confirm"))
        await peer.respond(callback, "cancel")
        assert text_of((await peer.peer.reply_to(id))["result"]) == "kept"


@for_each_row("params", [{}, {"callback_id": "x"}, {"callback_id": 7, "response": "confirm"}])
async def test_an_answer_that_is_none_is_refused(params: Json):
    async with kernel() as peer:
        assert (await peer.peer.ask("mgp/callback/respond", params))["error"]["code"] == -32602


async def test_an_answer_of_the_wrong_shape_can_be_given_again():
    async with kernel() as peer:
        id = await peer.begin("name")
        callback = await peer.asked()
        assert (await peer.respond(callback, {"name": "Ann"}))["error"]["code"] == -32602
        await peer.respond(callback, "Ann")
        assert text_of((await peer.peer.reply_to(id))["result"]) == "Ann"


@pytest.mark.req("MGP-13.4x")
async def test_a_second_answer_is_refused():
    async with kernel() as peer:
        id = await peer.begin("wipe")
        callback = await peer.asked()
        params = {"callback_id": callback["callback_id"]}
        # Both at once, so that the second comes before the call has read the first.
        first = await peer.peer.begin("mgp/callback/respond", {**params, "response": "cancel"})
        second = await peer.peer.begin("mgp/callback/respond", {**params, "response": "confirm"})
        assert (await peer.peer.reply_to(first))["result"] == {"accepted": True}
        assert is_refused(await peer.peer.reply_to(second))
        assert text_of((await peer.peer.reply_to(id))["result"]) == "kept"
        assert is_refused(await peer.respond(callback, "confirm"))


@pytest.mark.req("MGP-13.4x")
async def test_a_late_answer_is_refused_and_the_model_told_that_nobody_answered():
    server = inn(Limits(callback=0.01))
    async with kernel(server) as peer:
        id = await peer.begin("wipe")
        callback = await peer.asked()
        assert callback["timeout_ms"] == 10
        error = (await peer.peer.reply_to(id))["error"]
        assert "nobody answered within 0.01 s: Wipe all?" in error["message"]
        assert (error["code"], error["data"]["_mgp"]["details"]) == (3003, {"timeout_ms": 10})
        assert is_refused(await peer.respond(callback, "confirm"))
        assert waiting(server) == 0


async def test_the_tools_own_time_stands_still_while_a_person_thinks():
    async with kernel() as peer:
        id = await peer.begin("hurried")
        callback = await peer.asked()
        await asyncio.sleep(1.3)  # longer than the tool's own time
        await peer.respond(callback, "done")
        assert text_of((await peer.peer.reply_to(id))["result"]) == "done"


async def test_the_callback_of_a_cancelled_call_is_forgotten():
    server = inn()
    async with kernel(server) as peer:
        id = await peer.begin("wipe")
        callback = await peer.asked()
        await peer.peer.tell("notifications/cancelled", {"requestId": id})
        await turns()
        assert waiting(server) == 0
        assert is_refused(await peer.respond(callback, "confirm"))


@pytest.mark.req("MGP-13.4x")
async def test_another_session_cannot_answer():
    server = inn()
    async with kernel(server) as asked, kernel(server) as stranger:
        id = await asked.begin("wipe")
        callback = await asked.asked()
        assert is_refused(await stranger.respond(callback, "confirm"))
        await stranger.begin("wipe")  # one that waits for an answer itself fares no better
        await stranger.asked()
        assert is_refused(await stranger.respond(callback, "confirm"))
        await asked.respond(callback, "cancel")
        assert text_of((await asked.peer.reply_to(id))["result"]) == "kept"


async def test_another_caller_in_the_same_session_cannot_answer(monkeypatch: pytest.MonkeyPatch):
    server = inn()
    async with kernel(server) as peer:
        await peer.begin("wipe")
        callback = await peer.asked()
        (session,) = server.composition.sessions
        with monkeypatch.context() as patched:
            patched.setattr(session, "principal", "mallory")
            assert is_refused(await peer.respond(callback, "confirm"))
        assert waiting(server) == 1


async def test_callback_ids_cannot_be_guessed():
    async with kernel() as peer:
        seen: set[str] = set()
        for _ in range(20):
            await peer.begin("wipe")
            seen.add((await peer.asked())["callback_id"])
        assert len(seen) == 20 and {len(id) for id in seen} == {32}  # 192 bits


async def test_a_peer_that_leaves_answers_no_more():
    server, ended = Server("inn", "1"), list[BaseException]()

    @server.tool
    async def stubborn(ctx: Context) -> None:
        question = asyncio.ensure_future(ctx.ask("Your name?", str))
        try:
            await asyncio.wait([question])
        finally:
            try:
                await question
            except BaseException as error:
                ended.append(error)

    async with kernel(server) as peer:
        await peer.begin("stubborn")
        await peer.asked()
    assert [type(error) for error in ended] == [PeerGone]


async def test_a_question_after_the_call_has_ended_is_not_asked():
    server, errors = Server("inn", "1"), list[BaseException]()
    tasks = list[asyncio.Task[None]]()

    @server.tool
    async def leaves(ctx: Context) -> str:
        async def later() -> None:
            await turns()
            try:
                await ctx.ask("Still there?", str)
            except PeerGone as error:
                errors.append(error)

        tasks.append(asyncio.ensure_future(later()))
        return "gone"

    async with kernel(server) as peer:
        assert text_of(await peer.call("leaves")) == "gone"
        await asyncio.gather(*tasks)
        assert len(errors) == 1 and await peer.peer.news() == []


async def test_an_answer_gets_through_when_every_place_is_taken():
    async with kernel(inn(Limits(in_flight=1))) as peer:
        assert text_of(await peer.call("wipe", "confirm")) == "wiped"


async def test_an_answer_gets_through_while_the_server_drains():
    server = inn()
    async with kernel(server) as peer:
        id = await peer.begin("wipe")
        callback = await peer.asked()
        server.composition.draining = True
        assert (await peer.respond(callback, "confirm"))["result"] == {"accepted": True}
        assert text_of((await peer.peer.reply_to(id))["result"]) == "wiped"


# -- over HTTP -------------------------------------------------------------------------------------------


@pytest.mark.req("MGP-13.4")
async def test_over_http_the_question_travels_on_the_stream_of_its_call():
    async with living(with_tokens(inn().asgi(), "ann")) as app:
        peer = Peer(app, capabilities=OFFER)
        peer.token = "ann"
        await peer.open()
        call = peer.begin_call("wipe", id="call-7")
        callback = await call.next()
        assert callback["method"] == CALLBACK_REQUEST_METHOD
        assert callback["params"]["request_id"] == "call-7"
        params = {"callback_id": callback["params"]["callback_id"], "response": "confirm"}
        assert (await peer.ask("mgp/callback/respond", params))["result"] == {"accepted": True}
        assert text(last(await call.ended())) == "wiped"
        assert is_refused(await peer.ask("mgp/callback/respond", params))


async def test_over_http_another_session_cannot_answer():
    async with living(with_tokens(inn().asgi(), "ann")) as app:
        peer, stranger = Peer(app, capabilities=OFFER), Peer(app, capabilities=OFFER)
        for one in (peer, stranger):
            one.token = "ann"
            await one.open()
        call = peer.begin_call("wipe")
        callback = await call.next()
        params = {"callback_id": callback["params"]["callback_id"], "response": "confirm"}
        assert is_refused(await stranger.ask("mgp/callback/respond", params))
        assert (await peer.ask("mgp/callback/respond", {**params, "response": "cancel"}))["result"]["accepted"]
        assert text(last(await call.ended())) == "kept"
