"""The verbs of the Topics panel, at a real gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from defserve import Server
from defserve.client import join_topic
from defserve.errors import DefserveError, PeerError, PeerGone, UsageError
from defserve.inspector.era_connection import InspectionTarget
from defserve.inspector.inspection import Inspection
from defserve.inspector.joined_topic import JoinedTopic
from defserve.inspector.panels.live_topics import MAX_SEATS, PAGE_HANDLERS
from defserve.inspector.protocol import PageRequest
from defserve.serve.lifespans import connect_in_memory
from tests.gateway.topics import Running, gateway
from tests.inspector.asking import do, following
from tests.waiting import until

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def inspecting() -> AsyncGenerator[Inspection]:
    server = Server("it")
    async with Inspection(
        InspectionTarget("it", ("it.py",), lambda: connect_in_memory(server.composition))
    ) as inspection:
        yield inspection


@asynccontextmanager
async def seated(inspection: Inspection, here: Running, name: str = "admin") -> AsyncGenerator[list[Any]]:
    arguments = {"url": here.url, "topic": "demo", "token": f"t-{name}"}
    async with following(inspection, "topics.follow", **arguments) as parts:
        await until(lambda: bool(parts))
        yield parts


def calculator() -> Server:
    server = Server("calculator")

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    return server


async def test_a_proposal_is_shown_and_approved_by_a_person_at_the_page():
    async with (
        gateway() as here,
        inspecting() as inspection,
        seated(inspection, here) as parts,
        calculator().join(here.topic(), token="t-worker"),
        join_topic(here.topic(), token="t-agent") as agent,
    ):
        await until(lambda: {one["name"] for one in parts[-1]["participants"]} == {"admin", "worker", "agent"})
        asked = asyncio.create_task(agent.call_tool("worker", "add", a=1, b=2))
        await until(lambda: bool(parts[-1]["proposals"]))
        (proposal,) = parts[-1]["proposals"]
        assert (proposal["proposer"], proposal["to"], proposal["status"]) == ("agent", "worker", "pending")
        assert (proposal["what"], proposal["arguments"]) == ("tools/call add", "a: 1\nb: 2")
        seat = parts[-1]["seat"]
        done = await do(inspection, "topics.approve", seat=seat, proposal=proposal["digest"])
        assert done["by"] == "worker"
        assert str(await asked) == "3"
        await until(lambda: parts[-1]["proposals"][0]["status"] == "completed")
        assert parts[-1]["proposals"][0]["by"] == "admin"


@pytest.mark.slow
async def test_a_proposal_is_rejected_with_a_reason_and_chat_is_said_and_heard():
    async with (
        gateway() as here,
        inspecting() as inspection,
        seated(inspection, here) as parts,
        calculator().join(here.topic(), token="t-worker"),
        join_topic(here.topic(), token="t-agent") as agent,
    ):
        await until(lambda: "worker" in agent.participants)
        asked = asyncio.create_task(agent.call_tool("worker", "add", a=1, b=2))
        await until(lambda: bool(parts[-1]["proposals"]))
        seat, id = parts[-1]["seat"], parts[-1]["proposals"][0]["digest"]
        await do(inspection, "topics.decline", seat=seat, proposal=id, reason="too large")
        with pytest.raises(DefserveError, match="too large"):
            await asked
        await until(lambda: parts[-1]["proposals"][0]["status"] == "declined")
        await do(inspection, "topics.say", seat=seat, text="ask for less")
        agent.chat("I will")
        await until(lambda: ("agent", "I will") in [(line["who"], line["text"]) for line in parts[-1]["said"]])
        with pytest.raises(UsageError, match="this proposal is over"):
            await do(inspection, "topics.approve", seat=seat, proposal="unknown")


async def test_a_yes_is_for_what_was_shown_and_not_for_another_proposal_with_its_id():
    async with gateway() as here, inspecting() as inspection, seated(inspection, here) as parts:
        async with here.joined("agent") as agent:

            async def propose(**arguments: Any) -> None:
                payload = {"method": "tools/call", "params": {"name": "add", "arguments": arguments}}
                await agent.say("mcp/proposal:tools/call:add", payload, to=["worker"], id="same")

            await propose(a=1)
            await until(lambda: bool(parts[-1]["proposals"]))
            shown, seat = parts[-1]["proposals"][0], parts[-1]["seat"]
            known = inspection.seats[seat].me.topic.proposals
            known._known.clear()  # pyright: ignore[reportPrivateUsage]  as if its proposer had made very many
            await propose(a=1000)
            await until(lambda: known.get("same") is not None)
            for verb in ("topics.approve", "topics.decline"):
                with pytest.raises(UsageError, match="this proposal is over"):
                    await do(inspection, verb, seat=seat, proposal=shown["digest"])


async def test_leaving_frees_the_seat_and_strangers_are_refused():
    async with gateway() as here, inspecting() as inspection:
        async with seated(inspection, here) as parts:
            seat = parts[-1]["seat"]
            assert list(inspection.seats) == [seat]
        assert inspection.seats == {}
        with pytest.raises(UsageError, match="not in this topic any more"):
            await do(inspection, "topics.say", seat=seat, text="hello")
        with pytest.raises(PeerError):
            await do(inspection, "topics.follow", url=here.url, topic="demo", token="t-nobody")
        inspection.seats |= dict.fromkeys(range(MAX_SEATS), JoinedTopic.__new__(JoinedTopic))
        with pytest.raises(UsageError, match="8 topics are open"):
            await do(inspection, "topics.follow", url=here.url, topic="demo", token="t-admin")


async def test_the_person_is_told_that_the_gateway_has_left():
    async with inspecting() as inspection:
        parts: list[Any] = []

        def take(part: Any) -> None:
            parts.append(part)

        async with gateway() as here:
            arguments = {"url": here.url, "topic": "demo", "token": "t-admin"}

            async def follow() -> None:
                await PAGE_HANDLERS["topics.follow"](inspection, PageRequest(arguments, take))

            following = asyncio.create_task(follow())
            await until(lambda: bool(parts))
        with pytest.raises(PeerGone, match="the gateway has closed the connection"):
            await following
