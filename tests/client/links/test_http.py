from __future__ import annotations

import asyncio
import builtins
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from defserve.base.http_connection import BrokenHttpConnection
from defserve.client import Answers, Client, HttpLink, StoredSignIn
from defserve.client.links import endpoint, event_streams, http
from defserve.client.signin.credentials import Credential, DpopProofKey, MemoryCredentialStore, Tokens
from defserve.client.signin.issuer import ClientRegistration, IssuerMetadata
from defserve.core.json_values import decode_base64url
from defserve.errors import PeerError, PeerGone, PeerTimeout, UsageError
from tests.client.pretend import forward
from tests.client.web import Exchange, RenewingAuthorizer, SlowAuthorizer, event, web
from tests.rows import for_each_row
from tests.waiting import until

pytestmark = pytest.mark.anyio

Handler = Callable[[Exchange], Awaitable[None]]

HANDSHAKE, STATELESS = "2025-11-25", "2026-07-28"
ENVELOPE = "io.modelcontextprotocol/"


def session(rest: Handler, *, id: str | None = "s-1", speaks_unasked: bool = False) -> Handler:
    """A server of the handshake era; `rest` gets what is no part of it."""

    async def handle(exchange: Exchange) -> None:
        if exchange.method == "initialize":
            result = {"protocolVersion": HANDSHAKE, "capabilities": {}, "serverInfo": {"name": "web", "version": "1"}}
            await exchange.answer(result, **({"mcp_session_id": id} if id else {}))
        elif exchange.method == "notifications/initialized" or exchange.verb == "DELETE":
            await exchange.respond(202)
        elif exchange.verb == "GET" and not speaks_unasked and "last-event-id" not in exchange.headers:
            await exchange.respond(405)
        else:
            await rest(exchange)

    return handle


def stateless(rest: Handler) -> Handler:
    async def handle(exchange: Exchange) -> None:
        if exchange.method == "server/discover":
            await exchange.answer({"supportedVersions": [STATELESS], "capabilities": {}, "resultType": "complete"})
        else:
            await rest(exchange)

    return handle


async def echo(exchange: Exchange) -> None:
    """Answers everything with its own params, as JSON."""
    if "id" in exchange.message and exchange.method:
        await exchange.answer(exchange.message.get("params", {}))
    else:
        await exchange.respond(202)


def client(url: str, version: str = HANDSHAKE, **options: Any) -> Client:
    return Client(HttpLink(url), version=version, timeout=30, **options)


# What every request carries.


async def test_a_session_is_named_on_everything_after_its_opening_and_ended():
    async with web(session(echo)) as server:
        async with client(server.url) as peer:
            assert await peer.request("x/y", {"a": 1}) == {"a": 1}
            await server.told(lambda exchange: exchange.verb == "GET")
        opening, *later = server.seen
        assert not {"mcp-session-id", "mcp-protocol-version"} & set(opening.headers)
        assert {exchange.headers["mcp-session-id"] for exchange in later} == {"s-1"}
        assert {exchange.headers["mcp-protocol-version"] for exchange in later} == {HANDSHAKE}
        assert [exchange.verb for exchange in server.seen if exchange.verb != "GET"] == ["POST"] * 3 + ["DELETE"]
        assert opening.headers["accept"] == "application/json, text/event-stream"
        assert opening.headers["content-type"] == "application/json"


async def test_a_server_that_answers_with_the_id_as_a_text_is_understood():
    async def answer_with_text_id(exchange: Exchange) -> None:
        reply = {"jsonrpc": "2.0", "id": str(exchange.message.get("id")), "result": {"a": 1}}
        await exchange.stream(f"data: {json.dumps(reply)}\n\n")

    async with web(session(answer_with_text_id)) as server, client(server.url) as peer:
        assert await peer.request("x/y", {"a": 1}) == {"a": 1}


async def test_a_server_without_sessions_is_not_told_of_an_end():
    async with web(session(echo, id=None)) as server:
        async with client(server.url) as peer:
            await peer.ping()
        assert {exchange.verb for exchange in server.seen} <= {"POST", "GET"}


async def test_a_stateless_request_says_in_headers_what_it_is():
    async with web(stateless(echo)) as server:
        async with client(server.url, STATELESS) as peer:
            await peer.read("note://ü")
            await peer.request("prompts/get", {"name": " hi "})
            await peer.request("tools/call", {"name": "=?base64?eA==?="})
            await peer.request("tools/call", {"name": "two words"})
        discover, read, prompt, sentinel, words = server.seen
        assert discover.headers["mcp-method"] == "server/discover"
        assert "mcp-name" not in discover.headers
        assert {exchange.headers["mcp-protocol-version"] for exchange in server.seen} == {STATELESS}
        assert read.headers["mcp-name"] == "=?base64?bm90ZTovL8O8?="
        assert prompt.headers["mcp-name"] == "=?base64?IGhpIA==?="
        assert sentinel.headers["mcp-name"] == "=?base64?PT9iYXNlNjQ/ZUE9PT89?="
        assert words.headers["mcp-name"] == "two words"


async def test_headers_and_token_go_with_everything():
    async with web(session(echo)) as server:
        link = HttpLink(server.url, headers={"X-Team": "blue"}, token="t0ken")
        async with Client(link, version=HANDSHAKE, timeout=30) as peer:
            await peer.ping()
        assert {exchange.headers["authorization"] for exchange in server.seen} == {"Bearer t0ken"}
        assert {exchange.headers["x-team"] for exchange in server.seen} == {"blue"}


async def test_a_notification_is_taken_before_the_next_message_is_sent():
    release = asyncio.Event()

    async def rest(exchange: Exchange) -> None:
        if exchange.method == "notifications/first":
            await release.wait()
        await echo(exchange)

    async with web(session(rest)) as server, client(server.url) as peer:
        first = asyncio.create_task(peer.notify("notifications/first"))
        await server.told(lambda exchange: exchange.method == "notifications/first")
        assert not first.done()
        release.set()
        await first


async def test_a_stateless_notification_says_in_headers_what_it_is():
    async with web(stateless(echo)) as server, client(server.url, STATELESS) as peer:
        await peer.notify("notifications/x")
        note = server.of("notifications/x")[0]
        assert (note.headers["mcp-method"], note.headers["mcp-protocol-version"]) == ("notifications/x", STATELESS)


# Tools that want arguments in headers.

REGION = {"type": "string", "x-mcp-header": "Region"}
DEEP = {"type": "object", "properties": {"big": {"type": "integer", "x-mcp-header": "Size"}, "on": {"type": "boolean"}}}
TOOL = {"name": "t", "inputSchema": {"type": "object", "properties": {"region": REGION, "deep": DEEP}}}


async def tools(exchange: Exchange) -> None:
    if exchange.method != "tools/list":
        await echo(exchange)
    elif exchange.message["params"].get("cursor") is None:
        await exchange.answer({"tools": [{"name": "other", "inputSchema": {"type": "object"}}], "nextCursor": "2"})
    else:
        await exchange.answer({"tools": [TOOL]})


async def test_arguments_are_repeated_in_the_headers_that_the_listed_tool_asks_for():
    async with web(stateless(tools)) as server, client(server.url, STATELESS) as peer:
        await peer.tools()
        await peer.request("tools/call", {"name": "t", "arguments": {"region": "Zürich", "deep": {"big": 4}}})
        await peer.request("tools/call", {"name": "t", "arguments": {"region": None, "deep": "no"}})
        await peer.request("tools/call", {"name": "other", "arguments": {"region": "x"}})
        first, second, other = server.of("tools/call")
        assert first.headers["mcp-param-region"] == "=?base64?WsO8cmljaA==?="
        assert first.headers["mcp-param-size"] == "4"
        for exchange in (second, other):
            assert not [name for name in exchange.headers if name.startswith("mcp-param-")]


async def test_a_call_refused_for_want_of_headers_is_repeated_with_them():
    async def rest(exchange: Exchange) -> None:
        if exchange.method == "tools/call" and "mcp-param-region" not in exchange.headers:
            await exchange.refuse(400, -32020, "the header is missing")
        else:
            await tools(exchange)

    async with web(stateless(rest)) as server, client(server.url, STATELESS) as peer:
        result = await peer.request("tools/call", {"name": "t", "arguments": {"region": "eu"}})
        assert result["arguments"] == {"region": "eu"}
        assert [exchange.method for exchange in server.seen[1:]] == ["tools/call", *["tools/list"] * 2, "tools/call"]
        assert all(ENVELOPE + "protocolVersion" in exchange.message["params"]["_meta"] for exchange in server.seen)
        with pytest.raises(PeerError, match="the header is missing") as refused:
            await peer.request("tools/call", {"name": "other"})
        assert refused.value.code == -32020


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "number", "x-mcp-header": "A"}}},
        {"properties": {"a": {"type": "string", "x-mcp-header": "no blank"}}},
        {"properties": {"a": {"type": "string", "x-mcp-header": ""}}},
        {"properties": {"a": {"type": "string", "x-mcp-header": 7}}},
        {"properties": {"a": REGION, "b": {"type": "string", "x-mcp-header": "REGION"}}},
        {"properties": {"a": {"type": "array", "items": REGION}}},
        {"properties": {"a": {"anyOf": [REGION]}}},
        {"$defs": {"a": REGION}},
        REGION,
    ],
)
async def test_a_tool_that_asks_for_a_header_it_may_not_have_is_left_out(
    schema: dict[str, Any], caplog: pytest.LogCaptureFixture
):
    async def rest(exchange: Exchange) -> None:
        await exchange.answer({"tools": [{"name": "bad", "inputSchema": schema}, TOOL], "ttlMs": 0})

    async with web(stateless(rest)) as server, client(server.url, STATELESS) as peer:
        assert await peer.tools() == [TOOL]
    assert "the tool bad is left out" in caplog.text


async def test_an_annotation_among_plain_data_or_as_a_name_is_none():
    odd = {"properties": {"x-mcp-header": {"type": "string", "default": {"x-mcp-header": 1}, "enum": [REGION]}}}

    async def rest(exchange: Exchange) -> None:
        await exchange.answer({"tools": [{"name": "odd", "inputSchema": odd}]})

    async with web(stateless(rest)) as server, client(server.url, STATELESS) as peer:
        assert [tool["name"] for tool in await peer.tools()] == ["odd"]


# What comes back.


async def test_an_event_stream_brings_notifications_then_the_answer():
    async def rest(exchange: Exchange) -> None:
        note = event({"method": "notifications/note", "params": {"n": 1}})
        # In two pieces, amid what a client must skip.
        await exchange.stream(
            ": hello\n\n", "event: ping\ndata: {}\n\n", note[:20], note[20:], exchange.reply({"n": 2})
        )

    heard: list[Any] = []
    for version, server in ((HANDSHAKE, session(rest)), (STATELESS, stateless(rest))):
        async with web(server) as served:
            on_notification = lambda method, params: heard.append(params)  # noqa: E731
            async with client(served.url, version, on_notification=on_notification) as peer:
                assert await peer.request("x/y") == {"n": 2}
                assert heard.pop() == {"n": 1}


async def test_a_question_on_the_stream_of_a_call_is_answered_by_a_post():
    answered = asyncio.Event()

    async def rest(exchange: Exchange) -> None:
        if exchange.method == "x/y":
            await exchange.stream(event({"id": "q1", "method": "roots/list"}))
            await answered.wait()
            await exchange.write(exchange.reply({"ok": True}))
        elif exchange.message.get("id") == "q1":
            answered.set()
            await exchange.respond(202)
        else:
            await echo(exchange)

    async with web(session(rest)) as server, client(server.url, answers=Answers(roots=["file:///a"])) as peer:
        assert await peer.request("x/y") == {"ok": True}
        reply = await server.told(lambda exchange: exchange.message.get("id") == "q1")
        assert reply.message["result"] == {"roots": [{"uri": "file:///a"}]}
        assert reply.headers["mcp-session-id"] == "s-1"


async def test_an_answer_may_come_in_a_batch():
    async def rest(exchange: Exchange) -> None:
        batch = [
            {"jsonrpc": "2.0", "method": "notifications/a"},
            {"jsonrpc": "2.0", "id": exchange.message["id"], "result": {}},
        ]
        await exchange.respond(200, json.dumps(batch).encode(), content_type="application/json")

    heard: list[str] = []
    async with web(session(rest)) as server:
        async with client(server.url, on_notification=lambda method, params: heard.append(method)) as peer:
            assert await peer.request("x/y") == {}
    assert heard == ["notifications/a"]


async def test_many_requests_at_once_find_their_answers():
    async with web(session(echo)) as server, client(server.url) as peer:
        results = await asyncio.gather(*(peer.request("x/y", {"n": number}) for number in range(150)))
    assert results == [{"n": number} for number in range(150)]


async def test_a_stream_that_stays_open_after_its_answer_is_left(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(event_streams, "LINGER_SECONDS", 0.02)

    async def rest(exchange: Exchange) -> None:
        await exchange.stream(exchange.reply({"n": 1}))
        await exchange.hung_up.wait()

    async with web(session(rest)) as server, client(server.url) as peer:
        assert await peer.request("x/y") == {"n": 1}
        async with asyncio.timeout(20):
            await server.of("x/y")[0].hung_up.wait()


# The stream of what the server says unasked.


async def test_what_the_server_says_unasked_comes_by_a_stream_of_its_own():
    async def rest(exchange: Exchange) -> None:
        if exchange.verb == "GET":
            await exchange.stream(event({"method": "notifications/tools/list_changed"}))
            await exchange.hung_up.wait()
        else:
            await echo(exchange)

    async with web(session(rest, speaks_unasked=True)) as server, client(server.url) as peer:
        async with peer.listen(tools=True) as events, asyncio.timeout(20):
            assert (await anext(events)).method == "notifications/tools/list_changed"
        stream = next(exchange for exchange in server.seen if exchange.verb == "GET")
        assert stream.headers["accept"] == "text/event-stream"
        assert "last-event-id" not in stream.headers


async def test_the_stream_is_taken_up_again_where_it_broke():
    async def rest(exchange: Exchange) -> None:
        if exchange.verb != "GET":
            await echo(exchange)
        elif exchange.headers.get("last-event-id") != "e1":
            await exchange.stream("retry: 1\n", event({"method": "notifications/a"}, "e1"), "id: e2\ndata: {cut")
        else:
            await exchange.stream(event({"method": "notifications/b"}))
            await exchange.hung_up.wait()

    heard: list[str] = []
    done = asyncio.Event()

    def hear(method: str, params: Any) -> None:
        heard.append(method)
        if method.endswith("b"):
            done.set()

    async with web(session(rest, speaks_unasked=True)) as server, client(server.url, on_notification=hear):
        async with asyncio.timeout(20):
            await done.wait()
    assert heard == ["notifications/a", "notifications/b"]


async def test_the_stream_is_open_before_anything_is_asked():
    """A server that asks on this stream while it is not open waits for an answer in vain."""
    opened: list[str] = []

    async def rest(exchange: Exchange) -> None:
        if exchange.verb == "GET":
            await exchange.stream()
            opened.append("stream")
            await exchange.hung_up.wait()
        else:
            opened.append(exchange.method)
            await echo(exchange)

    for _ in range(5):
        opened.clear()
        async with web(session(rest, speaks_unasked=True)) as server, client(server.url) as peer:
            await peer.ping()
        assert opened == ["stream", "ping"]


async def test_a_stream_that_does_not_begin_holds_nobody_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http, "LISTEN_SECONDS", 0.01)

    async def rest(exchange: Exchange) -> None:
        await (exchange.hung_up.wait() if exchange.verb == "GET" else echo(exchange))

    async with web(session(rest, speaks_unasked=True)) as server, client(server.url) as peer:
        await peer.ping()
        assert "GET" in {exchange.verb for exchange in server.seen}


async def test_a_client_need_not_listen():
    async with web(session(echo)) as server:
        async with Client(HttpLink(server.url, listens=False), version=HANDSHAKE, timeout=30) as peer:
            await peer.ping()
        assert "GET" not in {exchange.verb for exchange in server.seen}


# Broken streams.


async def test_a_broken_answer_is_fetched_from_where_it_broke():
    async def rest(exchange: Exchange) -> None:
        if exchange.method == "x/y":
            await exchange.stream(
                "retry: 1\nid: 0\ndata:\n\n", event({"method": "notifications/a"}, "e1"), "data: {cut"
            )
        elif exchange.headers.get("last-event-id") == "e1":
            # Not yet: the server may end the connection and go on later.
            await exchange.stream(event({"method": "notifications/b"}, "e2"))
        elif exchange.headers.get("last-event-id") == "e2":
            await exchange.stream(event({"id": server.of("x/y")[0].message["id"], "result": {"n": 1}}, "e3"))
        else:
            await exchange.respond(405)

    heard: list[str] = []
    async with web(session(rest)) as server:
        async with client(server.url, on_notification=lambda method, params: heard.append(method)) as peer:
            assert await peer.request("x/y") == {"n": 1}
    assert heard == ["notifications/a", "notifications/b"]
    assert len(server.of("x/y")) == 1


async def test_a_server_that_stumbles_is_asked_again_for_the_stream():
    statuses = [503, 500, 200]

    async def rest(exchange: Exchange) -> None:
        if exchange.method == "x/y":
            await exchange.stream("retry: 1\nid: e1\ndata:\n\n")
        elif "last-event-id" not in exchange.headers:
            await exchange.respond(405)
        elif (status := statuses.pop(0)) == 200:
            await exchange.stream(event({"id": server.of("x/y")[0].message["id"], "result": {"n": 1}}))
        else:
            await exchange.respond(status)

    async with web(session(rest)) as server, client(server.url) as peer:
        assert await peer.request("x/y") == {"n": 1}


@pytest.mark.parametrize("status", [404, 405, 500])
async def test_a_stream_that_cannot_be_resumed_loses_the_request_and_no_other(
    status: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(event_streams, "MAX_FAILURES", 2)

    async def rest(exchange: Exchange) -> None:
        if exchange.method == "x/broken":
            await exchange.stream("retry: 1\nid: e1\ndata:\n\n")
        elif exchange.verb == "GET":
            await exchange.respond(status)
        else:
            await echo(exchange)

    async with web(session(rest)) as server, client(server.url) as peer:
        with pytest.raises(PeerGone, match="the stream of x/broken ended before its answer"):
            await peer.request("x/broken")
        await peer.ping()


async def test_a_stateless_stream_is_never_resumed():
    async def rest(exchange: Exchange) -> None:
        await exchange.stream("id: e1\ndata:\n\n")

    async with web(stateless(rest)) as server, client(server.url, STATELESS) as peer:
        with pytest.raises(PeerGone, match="ended before its answer"):
            await peer.request("x/y")
        assert {exchange.verb for exchange in server.seen} == {"POST"}


# Calling off.


async def test_a_stateless_request_is_called_off_by_closing_its_stream():
    async def rest(exchange: Exchange) -> None:
        await exchange.stream(": working\n\n")
        await exchange.hung_up.wait()

    async with web(stateless(rest)) as server, client(server.url, STATELESS) as peer:
        asking = asyncio.create_task(peer.request("x/y"))
        await until(lambda: bool(server.of("x/y")))
        asking.cancel()
        async with asyncio.timeout(20):
            await server.of("x/y")[0].hung_up.wait()
        assert server.of("notifications/cancelled") == []


async def test_a_request_of_a_session_is_called_off_by_a_notification_and_its_stream_is_left():
    async def rest(exchange: Exchange) -> None:
        if exchange.method == "x/y":
            await exchange.stream(": working\n\n")
            await exchange.hung_up.wait()
        else:
            await echo(exchange)

    async with web(session(rest)) as server, client(server.url) as peer:
        with pytest.raises(PeerTimeout):
            await peer.request("x/y", timeout=0.05)
        note = await server.told(lambda exchange: exchange.method == "notifications/cancelled")
        assert note.message["params"]["requestId"] == server.of("x/y")[0].message["id"]
        async with asyncio.timeout(20):
            await server.of("x/y")[0].hung_up.wait()


async def test_leaving_closes_what_is_still_open():
    async def rest(exchange: Exchange) -> None:
        await exchange.stream(": working\n\n")
        await exchange.hung_up.wait()

    async with web(session(rest, speaks_unasked=True)) as server:
        async with client(server.url) as peer:
            asking = asyncio.create_task(peer.request("x/y"))
            call = await server.told(lambda exchange: exchange.method == "x/y")
            listening = await server.told(lambda exchange: exchange.verb == "GET")
        with pytest.raises(PeerGone):
            await asking
        async with asyncio.timeout(20):
            await call.hung_up.wait()
            await listening.hung_up.wait()


# Refusals.


async def test_refused_credentials_are_told_with_the_challenge():
    challenge = 'Bearer resource_metadata="https://example.org/.well-known/oauth-protected-resource", scope="read"'

    async def handle(exchange: Exchange) -> None:
        await exchange.respond(401, b'{"error": "invalid_token"}', www_authenticate=challenge)

    async with web(handle) as server:
        for version in (None, HANDSHAKE, STATELESS):
            with pytest.raises(PeerError, match="HTTP 401") as refused:
                async with Client(HttpLink(server.url), version=version, timeout=30):
                    pytest.fail("nobody was let in")
            assert str(refused.value) == f"{server.url} wants a token (HTTP 401): scope read"
            assert refused.value.data == {"status": 401, "challenge": challenge}


async def test_an_error_with_a_status_is_the_error_it_says_it_is():
    async def rest(exchange: Exchange) -> None:
        await exchange.refuse(400, -32602, "no such thing", data={"uri": "note://x"})

    async with web(stateless(rest)) as server, client(server.url, STATELESS) as peer:
        with pytest.raises(PeerError, match="no such thing") as refused:
            await peer.read("note://x")
        assert (refused.value.code, refused.value.data) == (-32602, {"uri": "note://x"})


async def test_an_error_without_an_id_is_the_answer_to_the_request_it_answers():
    async def rest(exchange: Exchange) -> None:
        await exchange.refuse(200, -32600, "not like that")

    async with web(stateless(rest)) as server, client(server.url, STATELESS) as peer:
        with pytest.raises(PeerError, match="not like that"):
            await peer.request("x/y")


@pytest.mark.parametrize(
    ("status", "body", "headers", "said"),
    [
        (500, b"<h1>Oops</h1>", {}, "answered HTTP 500 Whatever: <h1>Oops</h1>"),
        (
            421,
            b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"not for this host"}}',
            {"content_type": "application/json"},
            "answered HTTP 421 Whatever: not for this host",
        ),
        (502, b"", {}, "answered HTTP 502 Whatever"),
        (200, b"<h1>Hi</h1>", {"content_type": "text/html"}, "HTTP 200 and text/html, neither JSON nor"),
        (202, b"", {}, "HTTP 202 and nothing, neither JSON nor"),
        (200, b"{}", {"content_type": "application/json"}, "JSON that is no reply to it"),
        (200, b"{cut", {"content_type": "application/json; charset=utf-8"}, "JSON that is no reply to it"),
        (
            200,
            b'{"jsonrpc":"2.0","id":99,"result":{}}',
            {"content_type": "application/json"},
            "x/bad with JSON that is no",
        ),
        (302, b"", {"location": "/elsewhere"}, "redirects to http://127.0.0.1:"),
        (307, b"", {"location": "https://example.org/mcp?key=secret"}, "redirects to https://example.org/mcp;"),
        (307, b"", {"location": "/mcp"}, "redirects too often"),
    ],
)
async def test_what_is_no_answer_is_told_and_harms_no_other_request(
    status: int, body: bytes, headers: dict[str, str], said: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.CRITICAL)

    async def rest(exchange: Exchange) -> None:
        if exchange.method == "x/bad":
            await exchange.respond(status, body, **headers)
        else:
            await echo(exchange)

    async with web(stateless(rest)) as server, client(server.url, STATELESS) as peer:
        with pytest.raises(PeerError) as refused:
            await peer.request("x/bad")
        assert said in str(refused.value)
        assert "_meta" in await peer.request("x/y")


async def test_a_redirect_on_the_same_host_is_followed_and_remembered():
    async def handle(exchange: Exchange) -> None:
        if exchange.path == "/mcp":
            await exchange.respond(307, location="/mcp/")
        else:
            await stateless(echo)(exchange)

    async with web(handle) as server, client(server.url, STATELESS) as peer:
        await peer.request("x/y")
        assert [exchange.path for exchange in server.seen] == ["/mcp", "/mcp/", "/mcp/"]


async def test_an_unknown_method_is_not_the_end_of_a_session():
    async def rest(exchange: Exchange) -> None:
        if exchange.method == "x/y":
            await exchange.refuse(404, -32601, "unknown")
        else:
            await echo(exchange)

    async with web(session(rest)) as server, client(server.url) as peer:
        with pytest.raises(PeerError, match="unknown"):
            await peer.request("x/y")
        await peer.ping()


async def test_a_refused_notification_says_so():
    async def rest(exchange: Exchange) -> None:
        await exchange.respond(400, b"never")

    async with web(session(rest)) as server, client(server.url) as peer:
        with pytest.raises(PeerError, match="HTTP 400 Whatever: never"):
            await peer.notify("notifications/x")


async def test_nobody_at_the_address_is_told_without_its_secrets():
    async with web(echo) as server:
        port = server.url.split(":")[2].split("/")[0]
    with pytest.raises(PeerGone) as gone:
        async with client(f"http://user:hunter2@127.0.0.1:{port}/mcp?key=hunter2"):
            pytest.fail("nobody was there")
    assert f"http://127.0.0.1:{port}/mcp cannot be reached" in str(gone.value)
    assert "hunter2" not in str(gone.value)


async def test_a_connection_that_fails_loses_its_request_alone():
    async def rest(exchange: Exchange) -> None:
        if exchange.method == "x/bad":
            exchange.writer.transport.abort()
        else:
            await echo(exchange)

    async with web(session(rest)) as server, client(server.url) as peer:
        with pytest.raises(PeerGone, match="cannot be reached"):
            await peer.request("x/bad")
        await peer.ping()


async def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("defserve.client.links.endpoint.MAX_MESSAGE_BYTES", 10_000)
    monkeypatch.setattr(http, "MAX_MESSAGE_BYTES", 10_000)

    async def rest(exchange: Exchange) -> None:
        if exchange.method == "x/json":
            await exchange.respond(200, b" " * 20_000, content_type="application/json")
        elif exchange.method == "x/events":
            await exchange.stream("data: " + " " * 20_000)
            await exchange.hung_up.wait()
        else:
            await echo(exchange)

    async with web(stateless(rest)) as server, client(server.url, STATELESS) as peer:
        for method in ("x/json", "x/events"):
            with pytest.raises(PeerError, match="more than 10000 bytes"):
                await peer.request(method)
        await peer.request("x/y")


@pytest.mark.parametrize("url", ["127.0.0.1:8000/mcp", "ftp://example.org/", "http://", "http://a:b/"])
async def test_what_is_no_address_is_refused(url: str):
    with pytest.raises(UsageError, match="is not an http"):
        HttpLink(url)


async def test_behind_a_proxy_without_httpx2_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    known = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name == "httpx2":
            raise ImportError(name)
        return known(name, *rest, **more)

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UsageError) as usage:
        HttpLink("http://mcp.example/")
    assert 'pip install "defserve[client]"' in str(usage.value)
    HttpLink("http://127.0.0.1:1/")
    HttpLink("http://localhost:1/")


async def test_closing_twice_is_harmless_and_nothing_is_sent_afterwards():
    link = HttpLink("http://127.0.0.1:1/")
    await link.aclose()
    await link.aclose()
    assert await link.receive() is None
    with pytest.raises(PeerGone):
        await link.send(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')


async def test_a_farewell_that_is_called_off_leaves_no_connection_open():
    asked = asyncio.Event()

    async def never(exchange: Exchange) -> None:
        if exchange.verb == "DELETE":
            asked.set()
            await exchange.hung_up.wait()
        else:
            await exchange.answer({}, mcp_session_id="s")

    async with web(never) as server:
        link = HttpLink(server.url)
        await link.send(b'{"jsonrpc":"2.0","id":1,"method":"initialize"}')
        assert await link.receive()
        farewell = asyncio.create_task(link.aclose())
        await asked.wait()
        waiting = asyncio.create_task(link.receive())
        farewell.cancel()
        with pytest.raises(asyncio.CancelledError):
            await farewell
        assert await waiting is None
        with pytest.raises(BrokenHttpConnection, match="closed"):
            await link._endpoint.send("GET", {})  # pyright: ignore[reportPrivateUsage]


async def test_an_end_that_waits_for_an_issuer_and_is_called_off_leaves_no_connection_open():
    async def answer(exchange: Exchange) -> None:
        await exchange.answer({})

    async with web(answer) as server:
        authorizer = RenewingAuthorizer()
        there: Any = authorizer
        link = HttpLink(server.url, authorizer=there)
        await link.send(b'{"jsonrpc":"2.0","id":1,"method":"initialize"}')
        ending = asyncio.create_task(link.aclose())
        await authorizer.closing.wait()
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        with pytest.raises(BrokenHttpConnection, match="closed"):
            await link._endpoint.send("GET", {})  # pyright: ignore[reportPrivateUsage]


@for_each_row("url", ["http://a..example/mcp", f"http://{'a' * 70}.example/mcp"])
async def test_a_name_that_no_resolver_takes_cannot_be_reached(url: str):
    link = HttpLink(url)
    with pytest.raises(PeerGone, match="cannot be reached"):
        await link.send(b'{"jsonrpc":"2.0","method":"notifications/x"}')
    await link.aclose()


class Unwilling:
    """An authorizer that has no other credentials, and keeps what it was asked."""

    is_signing_in = False

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.challenges: list[int] = []

    async def headers(self, method: str, url: str) -> dict[str, str]:
        self.urls.append(url)
        return {}

    async def handle_challenge(self, challenge: Any) -> bool:
        self.challenges.append(challenge.status)
        raise PeerError("nobody signs in")

    def adopt_nonce(self, challenge: Any) -> bool:
        return False

    def on_request_accepted(self, headers: Any) -> None: ...

    async def aclose(self) -> None: ...


async def test_nobody_signs_in_to_end_a_session():
    async def refuse_the_end(exchange: Exchange) -> None:
        if exchange.verb == "DELETE":
            await exchange.respond(401, www_authenticate="Bearer")
        else:
            await exchange.answer({}, mcp_session_id="s")

    async with web(refuse_the_end) as server:
        authorizer: Any = Unwilling()
        link = HttpLink(server.url, authorizer=authorizer)
        await link.send(b'{"jsonrpc":"2.0","id":1,"method":"initialize"}')
        assert await link.receive()
        await link.aclose()
        assert [exchange.verb for exchange in server.seen] == ["POST", "DELETE"] and not authorizer.challenges


async def test_the_end_of_a_session_is_said_again_with_the_nonce_that_is_wanted_by_then():
    ended: list[str] = []

    async def want_another_nonce(exchange: Exchange) -> None:
        _, proof, _ = exchange.headers["dpop"].split(".")
        nonce = json.loads(decode_base64url(proof)).get("nonce")
        if exchange.verb != "DELETE":
            await exchange.answer({}, mcp_session_id="s", dpop_nonce="first")
        elif nonce != "second":
            await exchange.respond(401, www_authenticate='DPoP error="use_dpop_nonce"', dpop_nonce="second")
        else:
            ended.append(exchange.headers["mcp-session-id"])
            await exchange.respond(204)

    async with web(want_another_nonce) as server:
        store = MemoryCredentialStore()
        issuer, client = IssuerMetadata("https://issuer.example"), ClientRegistration("me")
        known = Credential(server.url, server.url, issuer, client, key=DpopProofKey())
        store.store_credential(replace(known, tokens=Tokens("token", "DPoP")))
        link = HttpLink(server.url, authorizer=StoredSignIn(store).authorizer(server.url))
        await link.send(b'{"jsonrpc":"2.0","id":1,"method":"initialize"}')
        assert await link.receive()
        await link.aclose()
    assert ended == ["s"]


async def test_a_refusal_that_ends_in_an_error_leaves_no_connection_open():
    async def refuse(exchange: Exchange) -> None:
        exchange.writer.write(b"HTTP/1.1 401 No\r\ncontent-length: 9\r\n\r\n")
        await exchange.hung_up.wait()

    async with web(refuse) as server:
        authorizer: Any = Unwilling()
        link = HttpLink(server.url.replace("http://", "HTTP://") + "a b?c=d", authorizer=authorizer)
        with pytest.raises(PeerError, match="nobody signs in"):
            await link.send(b'{"jsonrpc":"2.0","method":"notifications/x"}')
        (exchange,) = server.seen
        async with asyncio.timeout(5):
            await exchange.hung_up.wait()
        # What a proof of possession signs is the address as it is asked for.
        assert authorizer.urls == [f"{server.url}a%20b"]
        await link.aclose()


# Requests that are passed on for somebody else.


async def test_what_comes_on_the_stream_of_a_forwarded_request_goes_to_its_caller():
    general: list[str] = []
    heard: dict[str, list[Any]] = {"x/a": [], "x/b": []}
    posted: asyncio.Queue[Any] = asyncio.Queue()
    both = asyncio.Barrier(2)

    async def rest(exchange: Exchange) -> None:
        if exchange.method not in heard:
            posted.put_nowait(exchange.message)
            await exchange.respond(202)
            return
        name = exchange.method
        await both.wait()
        log = {"method": "notifications/message", "params": {"level": "info", "data": name}}
        question = {"id": f"q-{name}", "method": "elicitation/create", "params": {"message": name}}
        await exchange.stream(event(log), event(question))
        while (answer := await posted.get())["id"] != f"q-{name}":
            posted.put_nowait(answer)
        await exchange.write(exchange.reply(answer["result"]))
        exchange.close()

    async def asked(request: Any) -> Any:
        return {"answer to": request.params["message"]}

    async with web(stateless(rest)) as server:
        async with client(server.url, STATELESS, on_notification=lambda method, _: general.append(method)) as peer:
            conversation = peer._conversation
            replies = await asyncio.gather(
                *(
                    forward(
                        conversation,
                        name,
                        peer._open.with_envelope({}, None),
                        on_notification=lambda _, params, name=name: heard[name].append(params["data"]),
                        on_request=asked,
                    )
                    for name in heard
                )
            )
    assert [reply.result for reply in replies] == [{"answer to": "x/a"}, {"answer to": "x/b"}]
    assert heard == {"x/a": ["x/a"], "x/b": ["x/b"]}
    assert general == []


async def test_a_forwarded_result_keeps_its_bytes_over_http():
    body = b'{"jsonrpc":"2.0","id":%d,"result":{"n": 1.50,  "text":"\\u00fc"}}'

    async def rest(exchange: Exchange) -> None:
        id = exchange.message["id"]
        if exchange.method == "x/json":
            await exchange.respond(200, body % id, content_type="application/json")
        else:
            await exchange.stream(f"data: {(body % id).decode()}\n\n")

    async with web(stateless(rest)) as server, client(server.url, STATELESS) as peer:
        params = peer._open.with_envelope({}, None)
        for method in ("x/json", "x/events"):
            reply = await forward(peer._conversation, method, params)
            assert reply.raw == b'{"n": 1.50,  "text":"\\u00fc"}'


async def test_a_person_may_take_longer_to_sign_in_than_a_message_to_be_taken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(endpoint, "TELL_SECONDS", 0.2)

    async def once_signed_in(exchange: Exchange) -> None:
        if exchange.headers.get("authorization") == "Bearer t":
            await exchange.respond(202)
        else:
            await exchange.respond(401, www_authenticate="Bearer")

    async with web(once_signed_in) as server:
        authorizer: Any = SlowAuthorizer()
        link = HttpLink(server.url, authorizer=authorizer)
        await link.send(b'{"jsonrpc":"2.0","method":"notifications/x"}')
        await link.aclose()
        assert len(server.seen) == 2
