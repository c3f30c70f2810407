"""Our host and our server by the 0.5 draft, over every road and in both eras."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from defserve import Text
from defserve.client import Client, Delivery, Mcpl, RemoteServer, ScriptedModel
from defserve.errors import PeerError
from defserve.protocols.mcpl.content import ModelInfo, Turn, Usage
from tests.at_address import at_address
from tests.forking.spawning import spawn
from tests.protocols.mcpl import both
from tests.raw import until
from tests.rows import for_each_row

pytestmark = [pytest.mark.anyio, pytest.mark.req("MCPL-05")]

ROADS = ["memory", "stdio", "http", "ws"]
HANDSHAKE, STATELESS = "2025-11-25", "2026-07-28"
TURN = Turn(inference_id="inf_1", conversation_id="c", turn_index=3, user_message="tea")


@asynccontextmanager
async def hosting(road: str, version: str = HANDSHAKE, **options: Any) -> AsyncGenerator[tuple[Client, Any]]:
    model = ScriptedModel(["ab", "cd"], info=ModelInfo("m1"))
    mcpl = Mcpl(**{"version": "0.5", "model": model, "audit": [], **options})
    both.heard.clear()
    if road == "memory":
        async with both.server.connect(version, mcpl=mcpl) as client:
            yield client, client.mcpl
    elif road == "stdio":
        link = await spawn(Path(both.__file__))
        async with Client(link, version=version, mcpl=mcpl, timeout=20) as client:
            yield client, client.mcpl
    else:
        async with at_address(both.server, road) as url, RemoteServer(url).connect(version, mcpl=mcpl) as client:
            yield client, client.mcpl


@for_each_row("road", ROADS)
async def test_everything_that_is_granted_works(road: str):
    async with hosting(road) as (client, mcpl):
        assert (mcpl.version, mcpl.receipt.accepted) == ("0.5", True)
        assert mcpl.receipt.unavailable == {"memory.review": ("contextHooks.afterInference",)}
        (injected,) = await mcpl.before_inference(TURN)
        assert (injected.position, injected.content) == ("beforeUser", [Text("about tea")])
        assert (await mcpl.after_inference(TURN, "yes", Usage(1, 7))).text == "yes"
        assert await client.call("alert", text="fire") == "True"
        assert (await anext(mcpl.events())).tags == ("acme:alert", "chat:mention", "chat:addressed")
        assert await client.call("write", prompt="hi") == "ab|cd|abcd"
        assert await client.call("model") == "m1"
        await until(lambda: "chat:lobby" in mcpl.channels)
        assert await client.call("say", text="hello") == "True"
        assert (await anext(mcpl.messages())).content == [Text("hello")]
        assert await mcpl.publish("chat:lobby", "hi") == Delivery(True, "m_1")
        await client.call("note", line="a")
        assert mcpl.state("notes.keep").content == {"lines": ["a"]}
        assert "inf_1 completed 7" in await client.call("listen")


@for_each_row("road", ROADS)
async def test_nothing_else_does(road: str):
    async with hosting(road, grants=["channels.typing"]) as (client, mcpl):
        assert mcpl.receipt.accepted
        assert await mcpl.before_inference(TURN) == []
        assert len(mcpl.channels) == 0
        assert [tool["name"] for tool in await client.tools()] == ["listen"]
        with pytest.raises(PeerError):
            await client.call("note", line="a")
        await mcpl.update(enabled=["*"])
        with pytest.raises(PeerError):
            await client.request("context/beforeInference", {"inferenceId": "i"})


@for_each_row("road", ROADS)
async def test_without_sessions_the_grant_travels_along(road: str):
    async with hosting(road, STATELESS) as (client, mcpl):
        assert (mcpl.version, mcpl.receipt) == ("0.5", None)
        (injected,) = await mcpl.before_inference(TURN)
        assert injected.content == [Text("about tea")]
        assert [channel.id for channel in await mcpl.channels.refresh()] == ["chat:lobby"]
        assert await mcpl.publish("chat:lobby", "hi") == Delivery(True, "m_1")
        assert await client.call("note", line="a") == "1"
    async with hosting(road, STATELESS, grants=["channels.typing"]) as (client, mcpl):
        assert await mcpl.before_inference(TURN) == []
        assert [tool["name"] for tool in await client.tools()] == ["listen"]
