"""Our client and receiver against the events of another implementation, where it is installed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from defserve import Limits
from defserve.client import Client, HttpLink
from defserve.serve.session_opener import serve_on_loopback
from defserve.testing import WebhookReceiver

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
