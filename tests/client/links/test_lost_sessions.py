"""Servers that forget a session: restarted, moved, or tired of waiting."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from defserve.client import Client, HttpLink, Mgp
from defserve.errors import PeerError, PeerGone
from tests.client.web import Exchange, Web, event, web
from tests.rows import for_each_row
from tests.waiting import until

pytestmark = pytest.mark.anyio

VERSION = "2025-11-25"


class Forgetful:
    """A server with one session at a time, which it can forget. It says so in its own way: a status and a body."""

    def __init__(self, status: int = 404, body: Any = None, *, streams: bool = False) -> None:
        self.status, self.streams = status, streams
        self.body = (
            body if body is not None else {"id": None, "error": {"code": -32001, "message": "Session not found"}}
        )
        self.session = 0
        self.ran: list[str] = []
        self.opens = True
        self.streaming: list[Exchange] = []

    def forget(self) -> None:
        self.session = -abs(self.session) - 1

    async def handle(self, exchange: Exchange) -> None:
        if exchange.method == "initialize":
            await self._open(exchange)
        elif exchange.headers.get("mcp-session-id") != f"s{self.session}":
            await self._refuse(exchange)
        elif exchange.verb == "GET":
            await self._stream(exchange)
        elif "id" in exchange.message:
            self.ran.append(exchange.method)
            await exchange.answer({"echo": exchange.message.get("params", {})})
        else:
            self.ran.append(exchange.method or exchange.verb)
            await exchange.respond(202)

    async def _open(self, exchange: Exchange) -> None:
        if not self.opens:
            await exchange.respond(500, b"not today")
            return
        self.session = abs(self.session) + 1
        result = {
            "protocolVersion": VERSION,
            "capabilities": {"logging": {}, "resources": {"subscribe": True}},
            "serverInfo": {"name": f"number {self.session}", "version": "1"},
        }
        await exchange.answer(result, mcp_session_id=f"s{self.session}")

    async def _refuse(self, exchange: Exchange) -> None:
        if isinstance(self.body, bytes):
            await exchange.respond(self.status, self.body, content_type="text/plain")
        else:
            await exchange.say(self.status, self.body)

    async def _stream(self, exchange: Exchange) -> None:
        if not self.streams:
            await exchange.respond(405)
            return
        await exchange.stream("retry: 10\n\n")
        self.streaming.append(exchange)
        await exchange.hung_up.wait()


@asynccontextmanager
async def talking(server: Forgetful, **options: Any) -> AsyncGenerator[tuple[Client, Web]]:
    async with web(server.handle) as served:
        async with Client(HttpLink(served.url), version=VERSION, timeout=30, **options) as client:
            yield client, served


def error(code: int, message: str, id: Any = None) -> dict[str, Any]:
    return {"id": id, "error": {"code": code, "message": message}}


WAYS: list[tuple[int, Any]] = [
    (404, error(-32001, "Session not found")),
    (404, error(-32600, "Session terminated")),
    (404, b""),
    (404, b"<h1>Not Found</h1>"),
    (410, b"Gone"),
    (400, error(-32000, "Bad Request: No valid session ID provided")),
    (400, error(-32000, "Bad Request: Server not initialized")),
    (400, error(-32600, "Bad Request: Missing session ID")),
    (400, error(-32001, "Invalid session id", 7)),
    (400, b"unknown session"),
    (400, b"No active streamable HTTP session found for the provided sessionId"),
    (400, b'{"error": "Mcp-Session-Id: session expired"}'),
    (503, error(-32000, "The session does not exist any more")),
    (503, b"session not found on this worker"),
]


@for_each_row(("status", "body"), WAYS)
async def test_a_lost_session_is_opened_again_and_what_was_refused_is_repeated(status: int, body: Any):
    server = Forgetful(status, body)
    async with talking(server) as (client, served):
        assert await client.request("x/one") == {"echo": {}}
        server.forget()
        assert await client.request("x/two", {"a": 1}) == {"echo": {"a": 1}}
        assert await client.request("x/three") == {"echo": {}}
        assert client.server_info["name"] == "number 3"
    assert [name for name in server.ran if name.startswith("x/")] == ["x/one", "x/two", "x/three"]
    assert len(served.of("initialize")) == 2
    words = [json.dumps(exchange.message["params"]) for exchange in served.of("initialize")]
    assert words[0] == words[1]


NOT_LOST: list[tuple[int, Any]] = [
    (404, error(-32601, "Method not found")),
    (400, error(-32602, "Invalid params: session_name is required")),
    (400, error(-32000, "the database is closed")),
    (400, b"Bad Request"),
    (503, b"try again later"),
    (500, error(-32001, "Session not found")),
    (403, b"session not found"),
]


@for_each_row(("status", "body"), NOT_LOST)
async def test_any_other_refusal_opens_nothing(status: int, body: Any):
    server = Forgetful(status, body)
    async with talking(server) as (client, served):
        server.forget()
        with pytest.raises(PeerError):
            await client.request("x/two")
        assert len(served.of("initialize")) == 1


async def test_log_level_and_subscriptions_are_said_again_before_anything_else():
    server = Forgetful()
    async with talking(server, log_level="warning") as (client, _):
        await client.subscribe("note://a")
        await client.subscribe("note://b")
        await client.unsubscribe("note://a")
        await client.set_log_level("error")
        server.forget()
        server.ran.clear()
        await client.request("x/y")
        assert server.ran == ["notifications/initialized", "resources/subscribe", "logging/setLevel", "x/y"] or (
            server.ran == ["notifications/initialized", "logging/setLevel", "resources/subscribe", "x/y"]
        )


async def test_many_requests_that_lose_one_session_open_one_other():
    server = Forgetful()
    async with talking(server) as (client, served):
        server.forget()
        answers = await asyncio.gather(*(client.request("x/y", {"n": number}) for number in range(20)))
        assert [answer["echo"]["n"] for answer in answers] == list(range(20))
        assert len(served.of("initialize")) == 2
        assert server.ran.count("x/y") == 20


async def test_a_server_that_always_forgets_is_said_to_and_asked_again_the_next_time():
    server = Forgetful()
    async with talking(server) as (client, _):
        opened = server._open

        async def open_and_forget(exchange: Exchange) -> None:
            await opened(exchange)
            server.forget()

        server._open = open_and_forget  # type: ignore[method-assign]
        server.forget()
        for _ in range(2):
            with pytest.raises(PeerGone, match="the server ended the session"):
                await client.request("x/y")
        server._open = opened  # type: ignore[method-assign]
        await client.request("x/y")
    assert server.ran.count("x/y") == 1


async def test_a_session_that_cannot_be_opened_yet_is_opened_by_a_later_request():
    server = Forgetful()
    async with talking(server) as (client, _):
        server.forget()
        server.opens = False
        with pytest.raises(PeerGone, match="opened no other: .* HTTP 500"):
            await client.request("x/y")
        server.opens = True
        await client.request("x/y")
        assert server.ran.count("x/y") == 1


async def test_an_answer_that_blames_the_session_is_not_repeated_but_the_next_request_works():
    server = Forgetful()

    async def handle(exchange: Exchange) -> None:
        if exchange.method == "tools/call":
            server.ran.append("tools/call")
            await exchange.say(200, error(-32001, "Session not found", exchange.message["id"]))
        else:
            await server.handle(exchange)

    async with web(handle) as served, Client(HttpLink(served.url), version=VERSION, timeout=30) as client:
        with pytest.raises(PeerError, match="Session not found"):
            await client.call_raw("delete")
        await client.request("x/y")
        assert len(served.of("initialize")) == 2
        assert server.ran.count("tools/call") == 1


async def test_the_end_of_the_stream_of_news_is_enough_to_open_another_session():
    heard: list[str] = []
    server = Forgetful(streams=True)
    async with talking(server, on_notification=lambda method, _: heard.append(method)) as (client, served):
        await client.subscribe("note://a")
        await until(lambda: len(server.streaming) == 1)
        server.forget()
        server.streaming[0].close()
        # Nobody asks for anything meanwhile.
        await until(lambda: len(server.streaming) == 2)
        await until(lambda: server.ran.count("resources/subscribe") == 2)
        await server.streaming[1].write(event({"method": "notifications/resources/updated", "params": {}}))
        await until(lambda: heard == ["notifications/resources/updated"])
        assert len(served.of("initialize")) == 2


async def test_a_notification_that_was_refused_is_sent_again_but_no_cancellation():
    server = Forgetful()
    async with talking(server) as (client, _):
        server.forget()
        await client.notify("notifications/roots/list_changed")
        assert server.ran[-1] == "notifications/roots/list_changed"
        server.forget()
        await client.notify("notifications/cancelled", {"requestId": 5})
        assert server.ran[-1] == "notifications/initialized"


async def test_with_more_than_mcp_agreed_on_the_end_of_the_session_is_the_end():
    server = Forgetful()
    async with talking(server, mgp=Mgp()) as (client, served):
        server.forget()
        for _ in range(2):
            with pytest.raises(PeerGone, match="the server ended the session"):
                await client.request("x/y")
        assert len(served.of("initialize")) == 1
    assert "DELETE" not in {exchange.verb for exchange in served.seen}


async def test_leaving_while_a_session_is_opened_again_leaves_nothing_behind():
    server = Forgetful()
    release = asyncio.Event()
    async with talking(server) as (client, served):
        opened = server._open

        async def slowly(exchange: Exchange) -> None:
            await release.wait()
            await opened(exchange)

        server._open = slowly  # type: ignore[method-assign]
        server.forget()
        waiting = asyncio.create_task(client.request("x/y"))
        await until(lambda: len(served.of("initialize")) == 2)
    with pytest.raises(PeerGone):
        await waiting
    assert not [task for task in asyncio.all_tasks() if "defserve.client" in task.get_name()]
    release.set()
