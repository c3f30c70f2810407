"""The host and a server of ours, over every road."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from defserve import Text
from defserve.client import Client, Delivery, Mcpl, RemoteServer, ScriptedModel
from defserve.errors import DefserveError, PeerError, ToolError
from defserve.protocols.mcpl.content import ModelInfo, Turn
from tests.at_address import at_address
from tests.client.mcpl import lively
from tests.forking.spawning import spawn
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

ROADS = ["memory", "stdio", "http", "ws"]
KEY = "K" * 43
HANDSHAKE, STATELESS = "2025-11-25", "2026-07-28"
TURN = Turn(inference_id="inf_1", conversation_id="conv_1", turn_index=3, user_message="Hello")


@asynccontextmanager
async def hosting(road: str, version: str = HANDSHAKE, **options: Any) -> AsyncGenerator[Client]:
    mcpl = Mcpl(**{"audit": [], **options})
    lively.heard.clear()
    if road == "memory":
        async with lively.server.connect(version, mcpl=mcpl) as client:
            yield client
    elif road == "stdio":
        link = await spawn(Path(lively.__file__))
        async with Client(link, version=version, mcpl=mcpl, timeout=20) as client:
            yield client
    else:
        async with at_address(lively.server, road, KEY) as url:
            async with RemoteServer(url, token=KEY).connect(version, mcpl=mcpl) as client:
                yield client


@for_each_row("version", [HANDSHAKE, STATELESS])
@for_each_row("road", ROADS)
async def test_hooks_run_in_both_eras(road: str, version: str):
    async with hosting(road, version) as client:
        assert client.mcpl is not None
        found = await client.mcpl.before_inference(TURN)
        assert [(one.position, one.content) for one in found] == [
            ("system", [Text("Turn 3")]),
            ("afterUser", [Text("After: Hello")]),
        ]
        reviewed = await client.mcpl.after_inference(TURN, "The key is sk-123")
        assert reviewed.text == "The key is [REDACTED]"
        assert reviewed.rewrites[0].metadata == {"redactions": 1}
        await client.mcpl.update(disabled=["memory.*"])
        assert await client.mcpl.before_inference(TURN) == []


@for_each_row("road", ROADS)
async def test_events_inference_and_the_model_are_asked_of_the_host(road: str):
    model = ScriptedModel("Short", ["Bit ", "by bit"], info=ModelInfo("tiny", "acme"))
    events: list[str] = []

    def take(event: Any) -> str:
        events.append(event.id)
        return "inf_7"

    async with hosting(road, model=model, on_event=take) as client:
        assert await client.call("remind", text="Ring", id="evt_1") == "True inf_7"
        assert await client.call("remind", text="Ring", id="evt_1") == "True inf_7"
        assert await client.call("summarise", text="Long") == ["Short"]
        assert await client.call("summarise", text="Long", bit_by_bit=True) == ["Bit ", "by bit", "Bit by bit"]
        assert await client.call("model") == "tiny"
        assert client.mcpl is not None
        await client.mcpl.update(disabled=["memory.*"])
        for tool, arguments in {"remind": {"text": "", "id": "e2"}, "summarise": {"text": ""}}.items():
            with pytest.raises((PeerError, ToolError), match="not enabled"):
                await client.call(tool, **arguments)
    assert events == ["evt_1"]


@for_each_row("road", ROADS)
async def test_scopes_are_elevated(road: str):
    scopes = {"files.edit": {"whitelist": ["/project/**"], "blacklist": ["**/.env"]}}
    async with hosting(road, scopes=scopes, approve=lambda e: {**e.payload, "by": "me"}) as client:
        assert await client.call("edit", path="/project/a") == "/project/a {'path': '/project/a'}"
        assert await client.call("edit", path="/etc/hosts") == "/etc/hosts {'path': '/etc/hosts', 'by': 'me'}"
        assert client.mcpl is not None
        assert "/project/b" in await client.mcpl.call("edit", "/project/b", path="/project/b")
        with pytest.raises(DefserveError):
            await client.call("edit", path="/project/.env")
        with pytest.raises(DefserveError):
            await client.mcpl.call("edit", "/project/b", path="/project/c")


@for_each_row("road", ROADS)
async def test_channels_are_opened_published_to_watched_and_heard_from(road: str):
    async with hosting(road, on_message=lambda message: f"conv_{message.id}") as client:
        mcpl = client.mcpl
        assert mcpl is not None
        channel = await mcpl.open("chat", {"room": "hall"})
        assert (channel.id, channel.address) == ("chat:hall", {"room": "hall"})
        assert await mcpl.publish("chat:hall", "Hello") == Delivery(True, "m_1")
        await mcpl.publish("chat:hall", "again", ack=False)
        async with mcpl.outgoing("chat:hall", inference_id="inf_1", conversation_id="c") as out:
            await out.chunk("Hi ")
            await out.chunk("all")
        assert await client.call("say", room="hall", text="What's up?") == "True conv_m_1"
        async with asyncio.timeout(10):
            while len(heard := await client.call("listen")) < 3:
                pass
        assert sorted(heard) == ["chat:hall saw Hi all", "chat:hall: Hello", "chat:hall: again"]
        assert [one.id for one in await mcpl.channels.refresh()] == ["chat:hall"]
        assert await mcpl.close("chat:hall") is True
        with pytest.raises(PeerError) as caught:
            await mcpl.open("chat", {"room": "closed"})
        assert caught.value.code == -32024
        with pytest.raises(PeerError) as caught:
            await mcpl.publish("chat:hall", "too late")
        assert caught.value.code == -32023


async def test_a_host_without_mcpl_uses_the_tools():
    async with lively.server.connect(HANDSHAKE) as client:
        assert "edit" in {tool["name"] for tool in await client.tools()}
        assert await client.call("listen") == lively.heard
