"""Our client, receiver and sender against other implementations of webhooks, where they are installed."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from defserve import Limits
from defserve.client import Client, HttpLink
from defserve.protocols.mcp.events import webhook_records
from defserve.protocols.mcp.events.sending import make_webhook_secret
from defserve.serve.session_opener import serve_on_loopback
from defserve.server import EventSettings
from defserve.testing import WebhookReceiver
from tests.protocols.mcp.events.repositories import ask_result, make_server
from tests.raw import raw, until

pytestmark = pytest.mark.anyio


def get_caller(context: Any) -> str:
    return "alice"


async def test_a_server_of_the_official_sdk_delivers_to_our_receiver(tmp_path: Path):
    library: Any = pytest.importorskip("mcp_webhook_events")
    from mcp.server import MCPServer

    other: Any = MCPServer("tickets")
    ticket = {"type": "object", "properties": {"ticket": {"type": "string"}}, "required": ["ticket"]}
    definition = library.EventDefinition("ticket.updated", "A ticket was updated.", ticket, ticket)
    http = library.SafeHttp(allow_insecure_for_tests=True)
    events = library.McpEvents(
        other, store=str(tmp_path / "events.db"), definitions=[definition], http=http, principal=get_caller
    )
    events.install()
    app = other.streamable_http_app(stateless_http=True, json_response=True)
    with WebhookReceiver() as receiver:
        async with (
            app.router.lifespan_context(app),
            serve_on_loopback(app, Limits()) as url,
            Client(HttpLink(f"{url}mcp"), version="2026-07-28") as client,
        ):
            assert [event["name"] for event in await client.events.list_types()] == ["ticket.updated"]
            made = await client.events.subscribe_webhook("ticket.updated", receiver.url, receiver.secret, ticket="T-1")
            await asyncio.to_thread(events.publish, "ticket.updated", {"ticket": "T-1"})
            await asyncio.to_thread(events.publish, "ticket.updated", {"ticket": "T-2"})
            await asyncio.to_thread(events.deliver_pending)
            (event,) = await asyncio.to_thread(receiver.wait_for_events, 1)
            assert (event.data, event.subscription) == ({"ticket": "T-1"}, made.id)
            assert receiver.refused == []
            await made.unsubscribe()


class StandardReceiver:
    """A receiver whose checks are those of the library of Standard Webhooks. It answers the first event with 500."""

    def __init__(self) -> None:
        self.secret = make_webhook_secret()
        self.bodies: list[Any] = []
        self.refused: list[str] = []
        self.connections = 0
        self.has_failed = False

    def receive(self, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
        library: Any = pytest.importorskip("standardwebhooks.webhooks")
        try:
            message = library.Webhook(self.secret).verify(body, headers)
        except library.WebhookVerificationError as error:
            self.refused.append(str(error))
            return 401, {}
        if message.get("type") == "verification":
            return 200, {"challenge": message["challenge"]}
        if not self.has_failed:
            self.has_failed = True
            return 500, {}
        self.bodies.append((headers["webhook-id"], message))
        return 200, {}

    @contextmanager
    def serve(self) -> Generator[str]:
        """Its address."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                receiver.connections += 1

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, answer = receiver.receive(headers, body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                """Tests have an output of their own."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/hook"
        finally:
            server.shutdown()
            server.server_close()


async def test_the_library_of_standard_webhooks_takes_all_that_we_send(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("standardwebhooks.webhooks")
    monkeypatch.setattr(webhook_records, "FIRST_RETRY_SECONDS", 0.02)
    receiver = StandardReceiver()
    with receiver.serve() as url:
        async with raw(make_server(settings=EventSettings(allow_loopback=True))) as peer:
            delivery = {"mode": "webhook", "url": url, "secret": receiver.secret}
            about = {"name": "pushed", "arguments": {"repository": "x"}, "delivery": delivery}
            await ask_result(peer, "events/subscribe", **about)
            for number in range(3):
                await peer.call("push", {"repository": "x", "commits": number})
            await until(lambda: len(receiver.bodies) == 3)
            receiver.secret = delivery["secret"] = make_webhook_secret()
            await ask_result(peer, "events/subscribe", **about)
            await peer.call("push", {"repository": "x", "commits": 3})
            await until(lambda: len(receiver.bodies) == 4)
    assert [message["data"]["commits"] for _, message in receiver.bodies] == [0, 1, 2, 3]
    assert [id for id, _ in receiver.bodies] == [message["eventId"] for _, message in receiver.bodies]
    assert receiver.refused == []
