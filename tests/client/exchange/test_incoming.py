"""A peer that sends what is no message: it fills no log, and one that sends nothing else counts as gone."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from defserve.client import Client, HttpLink, ProcessLink, exchange
from defserve.errors import PeerGone
from tests.client.pretend import SILENCE, PretendServer
from tests.client.web import Exchange, web
from tests.rows import for_each_row
from tests.waiting import until

pytestmark = pytest.mark.anyio

VERSION = "2025-11-25"


async def test_only_the_first_lines_that_are_no_messages_are_logged(caplog: pytest.LogCaptureFixture):
    server = PretendServer({"ping": {}})
    async with Client(server, version=VERSION) as client:
        with caplog.at_level(logging.WARNING, "defserve.client"):
            for _ in range(500):
                server.say(b"DEBUG")
            await client.ping()
    assert len(caplog.messages) == exchange.MAX_LOGGED_MESSAGES
    assert "skipped a line that is not a message" in caplog.messages[0]
    assert caplog.messages[-1].endswith("more of this peer's messages are skipped silently")


async def test_requests_with_an_id_in_use_fill_no_log_either(caplog: pytest.LogCaptureFixture):
    server = PretendServer({"ping": {}})
    async with Client(server, version=VERSION) as client:
        with caplog.at_level(logging.WARNING, "defserve.client"):
            for _ in range(500):
                server.say({"id": 7, "method": "ping"})
            await client.ping()
    assert len(caplog.messages) == exchange.MAX_LOGGED_MESSAGES


async def test_what_a_handler_raises_is_logged_without_its_secrets(caplog: pytest.LogCaptureFixture):
    def fail(entry: Any) -> None:
        raise RuntimeError("not stored") from KeyError("Bearer hunter2-canary")

    server = PretendServer({"ping": {}})
    async with Client(server, version=VERSION, on_log=fail) as client:
        server.say({"method": "notifications/message", "params": {"level": "info", "data": "x"}})
        await client.ping()
    assert "the handler of notifications/message failed" in caplog.messages
    assert "KeyError: 'Bearer [redacted]'" in caplog.text and "RuntimeError: not stored" in caplog.text
    assert "hunter2" not in caplog.text


@for_each_row("said", [b"DEBUG", b"{", b"[1]", b'{"id":1}', b"[1,2,3,4]"])
async def test_a_peer_that_sends_nothing_but_rubbish_has_left(said: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exchange, "MAX_MALFORMED_LINES", 100)
    server = PretendServer({"tools/call": SILENCE})
    async with asyncio.timeout(30), Client(server, version=VERSION) as client:
        call = asyncio.create_task(client.call_raw("x"))
        await server.told(lambda message: message.get("method") == "tools/call")
        for _ in range(101):
            server.say(said)
        with pytest.raises(PeerGone, match="more than 100 lines in a row that are no JSON-RPC messages"):
            await call
        with pytest.raises(PeerGone, match="in a row"):
            await client.ping()


async def test_a_message_ends_a_row(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exchange, "MAX_MALFORMED_LINES", 20)
    server = PretendServer({"ping": {}})
    async with asyncio.timeout(30), Client(server, version=VERSION) as client:
        for _ in range(5):
            for _ in range(15):
                server.say(b"DEBUG")
            await client.ping()
            for _ in range(15):
                server.say(b"DEBUG")
            server.say({"method": "notifications/x"})


async def test_a_silence_ends_a_row(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exchange, "MAX_MALFORMED_LINES", 20)
    monkeypatch.setattr(exchange, "ROW_SECONDS", -1.0)
    server = PretendServer({"ping": {}})
    async with asyncio.timeout(30), Client(server, version=VERSION) as client:
        for _ in range(100):
            server.say(b"ping")
        await client.ping()


async def test_a_program_that_prints_without_end_is_no_server(caplog: pytest.LogCaptureFixture):
    async with asyncio.timeout(60):
        link = await ProcessLink.spawn("yes", grace=0.05)
        with pytest.raises(PeerGone, match="no JSON-RPC messages"):
            async with Client(link, version=VERSION):
                pass
    await until(lambda: link.returncode is not None)
    assert len(caplog.messages) < 50


async def test_rubbish_on_the_stream_of_a_call_ends_that_call_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exchange, "MAX_MALFORMED_LINES", 100)

    async def handle(exchange: Exchange) -> None:
        if exchange.method == "initialize":
            about: dict[str, Any] = {"capabilities": {}, "serverInfo": {"name": "web", "version": "1"}}
            await exchange.answer({"protocolVersion": VERSION, **about})
        elif exchange.method == "x/rubbish":
            await exchange.stream(*["data: x\n\n" * 10] * 20)
            await exchange.hung_up.wait()
        elif exchange.method == "x/sloppy":
            await exchange.stream("data: x\n\n" * 60, exchange.reply({"a": 1}))
            exchange.close()
        else:
            await exchange.respond(405 if exchange.verb == "GET" else 202)

    async with asyncio.timeout(60), web(handle) as server:
        async with Client(HttpLink(server.url), version=VERSION, timeout=30) as client:
            with pytest.raises(PeerGone, match="more than 100 lines in a row"):
                await client.request("x/rubbish", {})
            for _ in range(5):
                assert await client.request("x/sloppy", {}) == {"a": 1}
