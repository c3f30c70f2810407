"""Streamable HTTP in both eras on one endpoint: which rules a request is under, and what it is answered."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from pydantic import Field

from defserve import Context, Limits, Server
from defserve.transports import outbox, streamable
from tests.asgi import Exchange, Peer, Web, last, living, peer, request, text
from tests.raw import ERAS, HANDSHAKE, PREFIX, STATELESS, turns

pytestmark = pytest.mark.anyio

LATEST = HANDSHAKE[-1]


class Tools:
    """The server under test, and the handles by which a test steers its tools."""

    def __init__(self, **limits: Any) -> None:
        self.server = Server("web", "1", limits=Limits(**limits))
        self.go = asyncio.Event()
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.finished = asyncio.Event()
        self.server.tool(self.add)
        self.server.tool(self.wait)
        self.server.tool(self.chat)
        self.server.tool(self.region)
        self.server.tool(self.ask)
        self.server.tool(self.everything)
        self.server.resource("memo://a")(self.memo)

    async def add(self, a: int, b: int) -> int:
        return a + b

    async def wait(self, ctx: Context) -> str:
        """Say nothing until the test lets go."""
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        self.finished.set()
        return "waited"

    async def chat(self, ctx: Context, messages: int = 1) -> str:
        """Log, then wait until the test lets go."""
        self.begun.set()
        for number in range(messages):
            ctx.log.info("message", number=number)
        await self.go.wait()
        return "chatted"

    async def region(self, region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
        return region

    async def ask(self, ctx: Context) -> str:
        return f"hello {await ctx.ask('Your name?', str)}"

    async def everything(self, ctx: Context) -> str:
        sample = await ctx.sample("Write a line.")
        roots = await ctx.roots()
        return f"{sample.text} {roots[0].uri}"

    async def memo(self) -> str:
        return "a"


@pytest.fixture
def tools() -> Tools:
    return Tools()


@pytest.fixture
async def app(tools: Tools) -> AsyncIterator[Any]:
    async with living(tools.server.asgi()) as app:
        yield app
        tools.go.set()
        await turns()


def is_json(exchange: Exchange) -> bool:
    return exchange.headers["content-type"] == "application/json"


def is_stream(exchange: Exchange) -> bool:
    return exchange.headers["content-type"] == "text/event-stream"


# Sessions of the handshake era.


@pytest.mark.req("MCP-3.2")
@pytest.mark.parametrize("version", HANDSHAKE)
async def test_a_session_opens_answers_and_ends(app: Any, version: str):
    client = Peer(app, version)
    opening = await client.post(
        request("initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t"}}),
        {"mcp-protocol-version": "ignored here"},
    ).ended()
    assert (opening.status, opening.json["result"]["protocolVersion"]) == (200, version)
    client.session = opening.headers["mcp-session-id"]
    assert len(client.session) >= 22 and all(0x21 <= ord(c) <= 0x7E for c in client.session)
    told = await client.tell("notifications/initialized")
    assert (told.status, told.body) == (202, b"")
    answer = await client.begin_call("add", {"a": 1, "b": 2}).ended()
    assert (answer.status, is_json(answer), text(answer.json)) == (200, True, "3")
    assert (await client.delete().ended()).status == 204
    for gone in (client.begin_call("add"), client.listen(), client.delete()):
        assert (await gone.ended()).status == 404


async def test_ids_of_sessions_are_never_the_same(app: Any):
    assert len({(await Peer(app).open()).session for _ in range(50)}) == 50


@pytest.mark.parametrize("verb", ["POST", "GET", "DELETE"])
async def test_what_needs_a_session_says_whether_it_is_missing_or_unknown(app: Any, verb: str):
    headers = {"content-type": "application/json", "accept": "*/*"}
    body = json.dumps(request("ping", {})).encode()
    missing = await Web(app).begin(verb, body, headers).ended()
    unknown = await Web(app).begin(verb, body, {**headers, "mcp-session-id": "guess"}).ended()
    assert (missing.status, unknown.status) == (400, 404)
    assert missing.json["error"]["code"] == unknown.json["error"]["code"] == -32600


@pytest.mark.parametrize("act", ["call", "listen", "delete", "tell"])
async def test_somebody_elses_session_is_no_session(app: Any, act: str):
    mine = await Peer(app).open()
    thief = Peer(app)
    thief.session, thief.address = mine.session, "203.0.113.7"
    acts = {
        "call": lambda: thief.begin_call("add", {"a": 1, "b": 2}),
        "listen": thief.listen,
        "delete": thief.delete,
        "tell": lambda: thief.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, thief.its_headers),
    }
    assert (await acts[act]().ended()).status == 404
    assert await mine.call("add", {"a": 1, "b": 2}) == "3"


VERSION_HEADERS = [
    (None, 200),
    *((version, 200) for version in HANDSHAKE),
    ("2020-01-01", 400),
    ("nonsense", 400),
    (STATELESS, 400),
]


@pytest.mark.parametrize(("version", "status"), VERSION_HEADERS)
async def test_the_version_header_of_a_session_is_one_we_speak(app: Any, version: str | None, status: int):
    client = await Peer(app).open()
    response = await client.begin_request("ping", headers={"mcp-protocol-version": version}).ended()
    assert response.status == status


@pytest.mark.parametrize(("version", "status"), [("nonsense", 400), (STATELESS, 405)])
@pytest.mark.parametrize("verb", ["GET", "DELETE"])
async def test_get_and_delete_are_for_sessions_only(app: Any, verb: str, version: str, status: int):
    client = await Peer(app).open()
    headers = {**client.its_headers, "mcp-protocol-version": version, "accept": "*/*"}
    response = await client.begin(verb, b"", headers).ended()
    assert (response.status, response.headers.get("allow")) == (status, "POST" if status == 405 else None)


async def test_a_notification_under_an_unknown_version_is_refused(app: Any):
    client = await Peer(app).open()
    client.version = "nonsense"
    assert (await client.tell("notifications/initialized")).status == 400


async def test_a_session_is_opened_once(app: Any):
    client = await Peer(app).open()
    other = await Peer(app).open()
    assert client.session != other.session
    bad = await Web(app).post(request("initialize", {"capabilities": {}})).ended()
    assert (bad.status, bad.json["error"]["code"], "mcp-session-id" in bad.headers) == (400, -32602, False)


async def test_a_refused_opening_leaves_no_session_behind(tools: Tools, app: Any):
    for _ in range(3):
        await Web(app).post(request("initialize", {})).ended()
    assert not tools.server.composition.sessions


async def test_an_unknown_method_is_an_error_inside_an_ok(app: Any):
    client = await Peer(app).open()
    response = await client.begin_request("no/such").ended()
    assert (response.status, response.json["error"]["code"]) == (200, -32601)


@pytest.mark.parametrize("result", [{"result": {}}, {"error": {"code": 1, "message": "no"}}], ids=["result", "error"])
async def test_an_answer_to_nothing_is_taken_without_a_word(app: Any, result: dict[str, Any]):
    client = await Peer(app).open()
    response = await client.post({"jsonrpc": "2.0", "id": 99, **result}, client.its_headers).ended()
    assert (response.status, response.body) == (202, b"")


async def test_a_notification_with_a_null_id_is_still_one(app: Any):
    client = await Peer(app).open()
    body = {"jsonrpc": "2.0", "id": None, "method": "notifications/initialized"}
    assert (await client.post(body, client.its_headers).ended()).status == 202


# Batches.


async def test_a_batch_is_answered_by_one_array(app: Any):
    client = await Peer(app, "2025-03-26").open()
    batch = [
        request("ping", {}, 1),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        request("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}, "two"),
        {"jsonrpc": "2.0", "id": 50, "result": {}},
        {"nonsense": 1},
        request("initialize", {}, 3),
    ]
    response = await client.post(batch, client.its_headers).ended()
    assert (response.status, is_json(response)) == (200, True)
    by_id = {reply.get("id"): reply for reply in response.json}
    assert set(by_id) == {1, "two", None, 3}
    assert text(by_id["two"]) == "3"
    assert by_id[None]["error"]["code"] == by_id[3]["error"]["code"] == -32600


async def test_a_batch_that_says_something_first_is_a_stream(tools: Tools, app: Any):
    client = await Peer(app, "2025-03-26").open()
    tools.go.set()
    batch = [request("tools/call", {"name": "chat"}, 1), request("ping", {}, 2)]
    response = await client.post(batch, client.its_headers).ended()
    assert is_stream(response)
    log, replies = response.messages
    assert log["method"] == "notifications/message"
    assert {reply["id"] for reply in replies} == {1, 2}


async def test_a_batch_of_notifications_and_answers_wants_no_answer(app: Any):
    client = await Peer(app, "2025-03-26").open()
    batch = [{"jsonrpc": "2.0", "method": "notifications/initialized"}, {"jsonrpc": "2.0", "id": 5, "result": {}}]
    response = await client.post(batch, client.its_headers).ended()
    assert (response.status, response.body) == (202, b"")


@pytest.mark.parametrize("version", [v for v in HANDSHAKE if v != "2025-03-26"])
@pytest.mark.parametrize("times", [1, 20])
async def test_other_versions_take_no_batches_however_often_they_are_sent(app: Any, version: str, times: int):
    client = await Peer(app, version).open()
    for _ in range(times):
        response = await client.post([request("ping", {})], client.its_headers).ended()
        assert (response.status, response.json["error"]["code"]) == (400, -32600)


async def test_opening_cannot_be_in_a_batch(app: Any):
    response = await Web(app).post([request("initialize", {"protocolVersion": "2025-03-26"})]).ended()
    assert response.status == 400


# The stateless era.


ENVELOPE = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": {}}
CALL = {"name": "add", "arguments": {"a": 1, "b": 2}, "_meta": ENVELOPE}
CALL_HEADERS = {"mcp-protocol-version": STATELESS, "mcp-method": "tools/call", "mcp-name": "add"}


def enveloped(version: str) -> dict[str, Any]:
    return {**CALL, "_meta": {**ENVELOPE, PREFIX + "protocolVersion": version}}


@pytest.mark.req("MCP-3.2")
async def test_a_request_stands_alone(app: Any):
    response = await Web(app).post(request("tools/call", CALL), CALL_HEADERS).ended()
    assert (response.status, is_json(response), text(response.json)) == (200, True, "3")
    assert "mcp-session-id" not in response.headers


# Changed headers and params, and what becomes of the request: its HTTP status and its error code.
LADDER: dict[str, tuple[dict[str, Any], dict[str, Any], int, int | None]] = {
    "as it should be": ({}, {}, 200, None),
    "headers of sessions are ignored": ({"mcp-session-id": "x", "last-event-id": "y"}, {}, 200, None),
    "blanks around values": ({"mcp-name": " add \t", "mcp-method": "tools/call "}, {}, 200, None),
    "a wrapped name": ({"mcp-name": f"=?base64?{base64.b64encode(b'add').decode()}?="}, {}, 200, None),
    "a badly wrapped name": ({"mcp-name": "=?base64?YWRk!?="}, {}, 400, -32020),
    "no _meta": ({}, {"name": "add", "arguments": {}}, 400, -32602),
    "_meta of another kind": ({}, {**CALL, "_meta": 5}, 400, -32602),
    "no capabilities": ({}, {**CALL, "_meta": {PREFIX + "protocolVersion": STATELESS}}, 400, -32602),
    "no version": ({}, {**CALL, "_meta": {PREFIX + "clientCapabilities": {}}}, 400, -32602),
    "a version of another kind": ({}, {**CALL, "_meta": {**ENVELOPE, PREFIX + "protocolVersion": 7}}, 400, -32602),
    "unknown version header, no _meta": ({"mcp-protocol-version": "v999"}, {"name": "add"}, 400, -32602),
    "no version header": ({"mcp-protocol-version": None}, {}, 400, -32020),
    "version header of the other era": ({"mcp-protocol-version": LATEST}, {}, 400, -32020),
    "header and body of two versions": ({}, enveloped("v999"), 400, -32020),
    "a version nobody speaks": ({"mcp-protocol-version": "v999"}, enveloped("v999"), 400, -32022),
    "a version of sessions": ({"mcp-protocol-version": LATEST}, enveloped(LATEST), 400, -32022),
    "no method header": ({"mcp-method": None}, {}, 400, -32020),
    "another method header": ({"mcp-method": "tools/list"}, {}, 400, -32020),
    "a method header in another case": ({"mcp-method": "Tools/Call"}, {}, 400, -32020),
    "no name header": ({"mcp-name": None}, {}, 400, -32020),
    "another name header": ({"mcp-name": "wait"}, {}, 400, -32020),
    "an unknown tool": ({"mcp-name": "none"}, {**CALL, "name": "none"}, 400, -32602),
    "arguments that do not fit": ({}, {**CALL, "arguments": {"a": "x"}}, 200, None),
    "an unknown Mcp-Param header": ({"mcp-param-other": "x"}, {}, 200, None),
}


@pytest.mark.parametrize("case", LADDER)
async def test_a_stateless_request_is_judged_in_order(app: Any, case: str):
    headers, params, status, code = LADDER[case]
    sent = request("tools/call", params or CALL, "my id")
    response = await Web(app).post(sent, {**CALL_HEADERS, **headers}).ended()
    assert response.status == status, response.body
    assert response.json.get("error", {}).get("code") == code
    assert response.json["id"] == "my id"
    if code == -32022:
        asked = (params or CALL)["_meta"][PREFIX + "protocolVersion"]
        data = response.json["error"]["data"]
        assert (data["supported"], data["requested"]) == ([STATELESS], asked)


REGION = {"name": "region", "arguments": {"region": "eu"}, "_meta": ENVELOPE}
PARAM_HEADERS = {
    "equal": ("eu", 200),
    "wrapped": (f"=?base64?{base64.b64encode(b'eu').decode()}?=", 200),
    "different": ("us", 400),
    "missing": (None, 400),
    "unpadded": ("=?base64?ZXU?=", 400),
}


@pytest.mark.parametrize("case", PARAM_HEADERS)
async def test_a_marked_argument_has_to_be_in_its_header(app: Any, case: str):
    value, status = PARAM_HEADERS[case]
    headers = {**CALL_HEADERS, "mcp-name": "region", "mcp-param-region": value}
    response = await Web(app).post(request("tools/call", REGION), headers).ended()
    assert response.status == status
    assert status == 200 or response.json["error"]["code"] == -32020


async def test_arguments_under_a_version_nobody_speaks_are_not_looked_at(app: Any):
    params = {**REGION, "_meta": enveloped("v999")["_meta"]}
    headers = {**CALL_HEADERS, "mcp-name": "region", "mcp-protocol-version": "v999"}
    response = await Web(app).post(request("tools/call", params), headers).ended()
    assert response.json["error"]["code"] == -32022


REMOVED = [
    "initialize",
    "ping",
    "logging/setLevel",
    "resources/subscribe",
    "resources/unsubscribe",
    "tasks/list",
    "x/y",
]


@pytest.mark.parametrize("method", REMOVED)
async def test_what_this_era_does_not_have_is_not_found(app: Any, method: str):
    response = await Peer(app, STATELESS).begin_request(method).ended()
    assert (response.status, response.json["error"]["code"]) == (404, -32601)


NOT_REQUESTS = [
    ({"jsonrpc": "2.0", "method": "notifications/initialized"}, 202),
    ({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "_meta": ENVELOPE}}, 202),
    ({"jsonrpc": "2.0", "id": 1, "result": {}}, 400),
    ([request("tools/call", CALL)], 400),
]


@pytest.mark.parametrize(("body", "status"), NOT_REQUESTS)
async def test_only_requests_are_taken_and_notifications_dropped(app: Any, body: Any, status: int):
    response = await Web(app).post(body, {"mcp-protocol-version": STATELESS}).ended()
    assert response.status == status
    assert response.body == b"" if status == 202 else response.json["error"]["code"] == -32600


async def test_a_missing_capability_is_a_bad_request(app: Any):
    response = await Peer(app, STATELESS).begin_call("ask").ended()
    assert (response.status, response.json["error"]["code"]) == (400, -32021)
    assert response.json["error"]["data"]["requiredCapabilities"] == {"elicitation": {}}


async def test_both_eras_share_the_endpoint_at_the_same_time(tools: Tools, app: Any):
    old, new = await Peer(app).open(), Peer(app, STATELESS)
    waiting = [old.begin_call("wait", id=50), new.begin_call("wait", id=1), new.begin_call("wait", id=1)]
    await turns()
    assert await old.call("add", {"a": 1, "b": 2}) == await new.call("add", {"a": 1, "b": 2}) == "3"
    tools.go.set()
    for exchange in waiting:
        assert text((await exchange.ended()).json) == "waited"


async def test_the_probe_of_a_new_client_is_answered_without_a_session(app: Any):
    response = await Peer(app, STATELESS).begin_request("server/discover").ended()
    assert (response.status, response.json["result"]["supportedVersions"]) == (200, [STATELESS])


# JSON until something must stream.


@pytest.mark.parametrize("version", ERAS)
async def test_an_answer_alone_is_json_however_long_it_took(tools: Tools, app: Any, version: str):
    client = await Peer(app, version).open()
    exchange = client.begin_call("wait")
    await turns()
    assert exchange.status == 0
    tools.go.set()
    assert is_json(await exchange.ended())


@pytest.mark.parametrize("version", ERAS)
async def test_the_first_message_makes_it_a_stream_at_once(tools: Tools, app: Any, version: str):
    client = await Peer(app, version).open()
    exchange = client.begin_call("chat", {"messages": 2}, _meta={PREFIX + "logLevel": "info"})
    await exchange.until(lambda: len(exchange.messages) == 2)
    assert (exchange.status, is_stream(exchange), exchange.complete) == (200, True, False)
    assert exchange.headers["cache-control"] == "no-cache, no-transform"
    assert exchange.headers["x-accel-buffering"] == "no"
    tools.go.set()
    await exchange.ended()
    assert [message.get("method") for message in exchange.messages] == ["notifications/message"] * 2 + [None]
    assert exchange.complete and all(len(block.split(b"data: ")) == 2 for block in exchange.body.split(b"\n\n")[:-1])


async def test_the_stateless_era_has_no_event_ids(tools: Tools, app: Any):
    tools.go.set()
    exchange = Peer(app, STATELESS).begin_call("chat", _meta={PREFIX + "logLevel": "info"})
    await exchange.ended()
    assert is_stream(exchange) and not [event for event in exchange.events if event.id or event.retry]


@pytest.mark.parametrize("version", ERAS)
async def test_a_long_silence_makes_it_a_stream_that_is_kept_alive(
    tools: Tools, app: Any, version: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streamable, "SILENCE", 0.01)
    client = await Peer(app, version).open()
    exchange = client.begin_call("wait")
    await exchange.until(lambda: exchange.body.count(b": keep-alive\n\n") >= 2)
    assert is_stream(exchange)
    tools.go.set()
    assert text(last(await exchange.ended())) == "waited"


async def test_an_error_after_the_stream_began_is_its_last_event(tools: Tools, app: Any):
    @tools.server.tool
    async def fail(ctx: Context) -> str:
        ctx.log.info("about to")
        raise ValueError("secret")

    client = await Peer(app).open()
    exchange = await client.begin_call("fail").ended()
    assert is_stream(exchange)
    assert exchange.messages[-1]["result"]["isError"] is True
    assert "secret" not in exchange.body.decode()


# Talking back.


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
async def test_a_question_travels_on_the_stream_of_its_call_and_its_answer_is_posted(app: Any, version: str):
    client = await Peer(app, version, {"elicitation": {}}).open()
    standalone = await client.listen().started()
    exchange = client.begin_call("ask")
    question = await exchange.next()
    assert question["method"] == "elicitation/create"
    accepted = {"action": "accept", "content": {"value": "Ada"}}
    assert (await client.answer(question, accepted)).status == 202
    assert text(last(await exchange.ended())) == "hello Ada"
    assert standalone.messages == []
    standalone.leave()
    await standalone.ended()


async def test_sampling_and_roots_travel_there_too(app: Any):
    client = await Peer(app, LATEST, {"sampling": {}, "roots": {}}).open()
    exchange = client.begin_call("everything")
    question = await exchange.next()
    assert question["method"] == "sampling/createMessage"
    written = {"role": "assistant", "content": {"type": "text", "text": "A line."}, "model": "m"}
    await client.answer(question, written)
    question = await exchange.next()
    assert question["method"] == "roots/list"
    await client.answer(question, {"roots": [{"uri": "file:///work"}]})
    assert text(last(await exchange.ended())) == "A line. file:///work"


async def test_a_broken_answer_fails_its_question_at_once(app: Any):
    client = await Peer(app, LATEST, {"elicitation": {}}).open()
    exchange = client.begin_call("ask")
    question = await exchange.next()
    broken = await client.post({"jsonrpc": "1.0", "id": question["id"], "result": {}}, client.its_headers).ended()
    assert broken.status == 400
    assert last(await exchange.ended())["result"]["isError"] is True


async def test_an_answer_from_another_session_is_not_taken(app: Any):
    mine = await Peer(app, LATEST, {"elicitation": {}}).open()
    other = await Peer(app, LATEST, {"elicitation": {}}).open()
    exchange = mine.begin_call("ask")
    question = await exchange.next()
    await other.answer(question, {"action": "accept", "content": {"value": "Eve"}})
    await turns()
    assert not exchange.complete
    await mine.answer(question, {"action": "accept", "content": {"value": "Ada"}})
    assert text(last(await exchange.ended())) == "hello Ada"


# The stream that belongs to no call.


async def test_news_travel_on_the_stream_of_the_session(tools: Tools, app: Any):
    client = await Peer(app).open()
    stream = await client.listen().started()
    assert (stream.status, is_stream(stream), stream.complete) == (200, True, False)
    await client.ask("resources/subscribe", {"uri": "memo://a"})
    tools.server.resource_updated("memo://a")
    tools.server.remove_tool("region")
    assert [(await stream.next())["method"] for _ in range(2)] == [
        "notifications/resources/updated",
        "notifications/tools/list_changed",
    ]
    stream.leave()
    await stream.ended()


async def test_news_wait_for_the_stream_to_open(tools: Tools, app: Any):
    client = await Peer(app).open()
    await client.ask("resources/subscribe", {"uri": "memo://a"})
    for _ in range(3):
        tools.server.resource_updated("memo://a")
    stream = client.listen()
    for _ in range(3):
        assert (await stream.next())["method"] == "notifications/resources/updated"
    stream.leave()
    await stream.ended()


async def test_only_so_many_news_wait(tools: Tools, app: Any):
    client = await Peer(app).open()
    await client.ask("resources/subscribe", {"uri": "memo://a"})
    for _ in range(3 * outbox.UNREAD):
        tools.server.resource_updated("memo://a")
    stream = client.listen()
    await stream.next()
    assert len(stream.messages) == outbox.UNREAD
    stream.leave()
    await stream.ended()


async def test_news_that_nobody_read_are_there_for_the_next_reader(tools: Tools, app: Any):
    client = await Peer(app).open()
    await client.ask("resources/subscribe", {"uri": "memo://a"})
    stream = await client.listen().started()
    stream.stall()
    tools.server.resource_updated("memo://a")
    await turns()
    tools.server.remove_tool("region")
    await turns()
    stream.leave()
    await stream.ended()
    again = client.listen()
    assert (await again.next())["method"] == "notifications/tools/list_changed"
    again.leave()
    await again.ended()


async def test_a_session_has_one_such_stream_at_a_time(app: Any):
    client = await Peer(app).open()
    first = await client.listen().started()
    assert (await client.listen().ended()).status == 409
    first.leave()
    await first.ended()
    second = await client.listen().started()
    assert second.status == 200
    second.leave()
    await second.ended()


@pytest.mark.parametrize(("accept", "status"), [("application/json", 406), ("text/html", 406)])
async def test_a_stream_is_only_for_who_takes_one(app: Any, accept: str, status: int):
    client = await Peer(app).open()
    assert (await client.listen(accept=accept).ended()).status == status


async def test_the_end_of_the_session_ends_its_streams_and_calls(tools: Tools, app: Any):
    client = await Peer(app).open()
    stream = await client.listen().started()
    calls = [client.begin_call("wait"), client.begin_call("chat")]
    await calls[1].started()
    await tools.begun.wait()
    assert (await client.delete().ended()).status == 204
    for exchange in (stream, *calls):
        assert (await exchange.ended()).complete
    assert tools.cancelled.is_set()


async def test_the_stream_is_kept_alive(app: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streamable, "SILENCE", 0.01)
    client = await Peer(app).open()
    stream = client.listen()
    await stream.until(lambda: stream.body.count(b": keep-alive\n\n") >= 2)
    stream.leave()
    await stream.ended()


# subscriptions/listen.


async def test_a_subscription_is_acknowledged_first_and_tags_what_it_tells(tools: Tools, app: Any):
    client = Peer(app, STATELESS)
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["memo://a"]}
    stream = client.begin_request("subscriptions/listen", {"notifications": wanted}, id="sub")
    await stream.until(lambda: stream.messages)
    assert is_stream(stream)
    tools.server.resource_updated("memo://a")
    tools.server.remove_tool("region")
    heard = [await stream.next() for _ in range(3)]
    assert [message["method"] for message in heard] == [
        "notifications/subscriptions/acknowledged",
        "notifications/resources/updated",
        "notifications/tools/list_changed",
    ]
    assert {message["params"]["_meta"][PREFIX + "subscriptionId"] for message in heard} == {"sub"}
    assert heard[0]["params"]["notifications"] == wanted
    stream.leave()
    await stream.ended()
    assert not tools.server.mcp.subscriptions._listening


async def test_a_drain_ends_streams_in_good_order(tools: Tools):
    async with living(tools.server.asgi()) as app:
        old, new = await Peer(app).open(), Peer(app, STATELESS)
        standalone = await old.listen().started()
        working = old.begin_call("wait")
        subscribed = new.begin_request("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id=7)
        await subscribed.started()
        await turns()
        app.drain()
        assert (await standalone.ended()).complete
        ending = last(await subscribed.ended())
        assert ending["id"] == 7
        assert ending["result"]["resultType"] == "complete"
        assert ending["result"]["_meta"][PREFIX + "subscriptionId"] == 7
        tools.go.set()
        assert text((await working.ended()).json) == "waited"


# Leaving and cancelling.


async def test_leaving_cancels_a_stateless_call_within_a_quarter_of_a_second(tools: Tools, app: Any):
    exchange = Peer(app, STATELESS).begin_call("wait")
    await tools.begun.wait()
    exchange.leave()
    async with asyncio.timeout(0.25):
        await tools.cancelled.wait()
    await exchange.ended()
    assert not tools.server.composition.running


async def test_leaving_a_stateless_stream_cancels_too(tools: Tools, app: Any):
    exchange = Peer(app, STATELESS).begin_call("chat", _meta={PREFIX + "logLevel": "info"})
    await exchange.started()
    exchange.leave()
    await exchange.ended()
    await turns()
    assert not tools.server.composition.running


@pytest.mark.parametrize("version", HANDSHAKE)
async def test_leaving_does_not_cancel_a_call_of_a_session(tools: Tools, app: Any, version: str):
    client = await Peer(app, version).open()
    exchange = client.begin_call("wait")
    await tools.begun.wait()
    exchange.leave()
    await exchange.ended()
    await turns()
    assert not tools.cancelled.is_set()
    tools.go.set()
    await asyncio.wait_for(tools.finished.wait(), 5)
    assert await client.call("add", {"a": 1, "b": 2}) == "3"


async def test_a_cancelled_call_ends_its_post_without_an_answer(tools: Tools, app: Any):
    client = await Peer(app).open()
    exchange = client.begin_call("wait", id=7)
    await tools.begun.wait()
    assert (await client.tell("notifications/cancelled", {"requestId": 7})).status == 202
    await exchange.ended()
    assert (exchange.status, exchange.body, tools.cancelled.is_set()) == (202, b"", True)


async def test_a_cancelled_call_ends_its_stream_without_an_answer(tools: Tools, app: Any):
    client = await Peer(app).open()
    exchange = client.begin_call("chat", id=7)
    await exchange.started()
    await client.tell("notifications/cancelled", {"requestId": 7})
    await exchange.ended()
    assert exchange.complete
    assert [message.get("method") for message in exchange.messages] == ["notifications/message"]


async def test_what_was_said_before_a_cancellation_is_not_taken_for_the_answer(tools: Tools, app: Any):
    @tools.server.tool
    async def blurt(ctx: Context) -> str:
        ctx.log.info("one")
        ctx.session.cancel(ctx.call.id)
        await asyncio.sleep(10)
        return "never"

    client = await Peer(app).open()
    exchange = await client.begin_call("blurt").ended()
    assert is_stream(exchange)
    assert [message.get("method") for message in exchange.messages] == ["notifications/message"]


# Readers that do not read.


async def test_a_stalled_reader_delays_nobody_else(tools: Tools, app: Any):
    client = await Peer(app).open()
    stalled = client.begin_call("chat", {"messages": 2_000})
    await stalled.started()
    stalled.stall()
    standalone = await client.listen().started()
    standalone.stall()
    async with asyncio.timeout(1):
        for number in range(50):
            assert await client.call("add", {"a": number, "b": 1}) == str(number + 1)
    tools.go.set()
    for exchange in (stalled, standalone):
        exchange.read_on()
    assert text(last(await stalled.ended())) == "chatted"
    standalone.leave()
    await standalone.ended()


async def test_a_slow_reader_gets_the_newest_progress_and_every_result(tools: Tools, app: Any):
    begun = asyncio.Event()

    @tools.server.tool
    async def work(ctx: Context) -> str:
        ctx.log.info("begun")
        await begun.wait()
        for step in range(1, 5_001):
            ctx.progress(step, 5_000)
        return "done"

    client = await Peer(app).open()
    exchange = client.begin_call("work", _meta={"progressToken": "p"})
    await exchange.until(lambda: exchange.messages)
    exchange.stall()
    begun.set()
    await turns()
    exchange.read_on()
    await exchange.ended()
    *_, progress, result = exchange.messages
    assert progress["params"]["progress"] == 5_000
    assert text(result) == "done"
    assert len(exchange.messages) < 10


async def test_what_waits_for_a_slow_reader_is_bounded_in_number_and_size(tools: Tools, app: Any):
    begun = asyncio.Event()

    @tools.server.tool
    async def shout(ctx: Context) -> str:
        ctx.log.info("begun")
        await begun.wait()
        for _ in range(1_000):
            ctx.log.info("x" * 10_000)
        return "done"

    client = await Peer(app).open()
    exchange = client.begin_call("shout")
    await exchange.until(lambda: exchange.messages)
    exchange.stall()
    begun.set()
    await turns()
    exchange.read_on()
    await exchange.ended()
    assert len(exchange.body) < 2 * outbox.UNREAD_BYTES
    assert text(last(exchange)) == "done"


async def test_a_reader_that_stays_stalled_is_given_up(tools: Tools, app: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("defserve.transports.exchange.STALL", 0.01)
    client = await Peer(app).open()
    stream = await client.listen().started()
    stream.stall()
    tools.server.remove_tool("region")
    await stream.ended()
    assert not stream.complete


async def test_a_server_that_raises_when_the_client_is_gone_does_no_harm(tools: Tools, app: Any):
    exchange = Peer(app, STATELESS).begin_call("chat", _meta={PREFIX + "logLevel": "info"})
    await exchange.started()

    async def broken(message: Any) -> None:
        raise OSError("gone")

    def everywhere(found: Any) -> None:
        (session,) = tools.server.composition.short_sessions
        (call,) = session.in_flight.values()
        call.envelope._send = broken
        call.notify("notifications/message", {})

    everywhere(exchange)
    await exchange.ended()
    await turns()
    assert not tools.server.composition.running


# Idle sessions and caps.


@pytest.mark.req("MCP-4.3")
async def test_a_session_that_idles_ends_by_itself():
    tools = Tools(idle=0.04)
    async with peer(tools.server) as client:
        async with asyncio.timeout(5):
            while tools.server.composition.sessions:  # noqa: ASYNC110 (nobody announces the end)
                await asyncio.sleep(0.005)
        assert (await client.begin_request("ping").ended()).status == 404


async def test_an_idle_session_is_over_before_anybody_looks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("defserve.transports.sessions.LOOK_LEAST", 60.0)
    tools = Tools(idle=0.01)
    async with peer(tools.server) as client:
        await asyncio.sleep(0.02)
        assert (await client.begin_request("ping").ended()).status == 404
        assert not tools.server.composition.sessions


@pytest.mark.parametrize("busy", ["listen", "call"])
async def test_a_session_in_use_does_not_idle(busy: str):
    tools = Tools(idle=0.03)
    async with peer(tools.server) as client:
        exchange = client.listen() if busy == "listen" else client.begin_call("wait")
        await asyncio.sleep(0.1)
        assert (await client.begin_request("ping").ended()).status == 200
        await asyncio.sleep(0.1)
        tools.go.set()
        exchange.leave()
        await exchange.ended()
        # Its time begins anew when the stream ends.
        assert (await client.begin_request("ping").ended()).status == 200


async def test_too_many_sessions_are_told_to_come_back_later():
    tools = Tools(sessions=2)
    async with living(tools.server.asgi()) as app:
        clients = [await Peer(app).open() for _ in range(2)]
        opening = {"protocolVersion": LATEST, "capabilities": {}, "clientInfo": {"name": "t"}}
        refused = await Web(app).post(request("initialize", opening, 9)).ended()
        assert (refused.status, refused.headers["retry-after"], refused.json["id"]) == (503, "1", 9)
        assert await Peer(app, STATELESS).call("add", {"a": 1, "b": 2}) == "3"
        await clients[0].delete().ended()
        await Peer(app).open()


async def test_idle_sessions_make_room_for_new_ones(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("defserve.transports.sessions.LOOK_LEAST", 60.0)
    tools = Tools(sessions=1, idle=0.01)
    async with living(tools.server.asgi()) as app:
        await Peer(app).open()
        await asyncio.sleep(0.02)
        await Peer(app).open()


# Many at once.


async def test_a_thousand_sessions_never_see_what_is_not_theirs():
    tools = Tools(sessions_per_principal=2_000, in_flight_total=3_000)

    @tools.server.tool
    async def echo(word: str, ctx: Context) -> str:
        ctx.log.info(word)
        await asyncio.sleep(0)
        return f"{word} {await ctx.ask(word, str)}"

    async with living(tools.server.asgi()) as app:

        async def converse(number: int) -> None:
            client = await Peer(app, LATEST, {"elicitation": {}}).open()
            word = f"word-{number}"
            exchange = client.begin_call("echo", {"word": word}, id=1)
            log, question = await exchange.next(), await exchange.next()
            assert log["params"]["data"] == word
            assert question["params"]["message"] == word
            await client.answer(question, {"action": "accept", "content": {"value": f"answer-{number}"}})
            assert text(last(await exchange.ended())) == f"{word} answer-{number}"

        await asyncio.gather(*(converse(number) for number in range(1_000)))


async def test_ids_of_stateless_requests_may_collide(tools: Tools, app: Any):
    client = Peer(app, STATELESS)
    exchanges = [client.begin_call("add", {"a": number, "b": 0}, id=1) for number in range(200)]
    assert [text((await e.ended()).json) for e in exchanges] == [str(number) for number in range(200)]
