from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from defserve.client import Client, Mcpl, PushedEvent
from tests.raw import until

if TYPE_CHECKING:
    from .conftest import ConnectTo

pytestmark = pytest.mark.anyio


def text_of(event: PushedEvent) -> str:
    (part,) = event.content
    return getattr(part, "text", "")


def example() -> Any:
    """The example in this process, with a clock of the test's. One that runs in another keeps its own time."""
    found = sys.modules["examples.reminders"]
    found.clock.every, found.clock.now = 0.01, 1_000.0
    return found


async def next_event(client: Client) -> PushedEvent:
    assert client.mcpl is not None
    async with asyncio.timeout(10):
        return await anext(client.mcpl.events())


async def inbox(client: Client, count: int) -> list[Any]:
    """What is due, for a client that has to look for itself."""
    async with asyncio.timeout(10):
        while True:
            kept = json.loads(await client.read_text("inbox://reminders.due"))["events"]
            if len(kept) >= count:
                return kept
            await asyncio.sleep(0.01)


@pytest.mark.req("MCPL-9.1", "MCPL-9.3", "MCPL-9.4")
async def test_what_is_due_is_pushed_or_waits_in_the_inbox(connect_to: ConnectTo, transport: str):
    async with connect_to("reminders", mcpl=Mcpl(audit=[])) as client:
        said = await client.call("remind", text="call Alice")
        assert said.startswith("reminder 1 is set")
        if not client.stateless:
            event = await next_event(client)
            assert (event.id, event.feature_set, text_of(event)) == (
                "reminder_1",
                "reminders.due",
                "Reminder: call Alice",
            )
            assert event.origin == {"reminder": 1}
        elif transport in ("memory", "stdio"):
            (event,) = await inbox(client, 1)
            assert (event["eventId"], event["origin"]) == ("reminder_1", {"reminder": 1})
        else:  # over a network, a caller without an identity has no inbox
            assert await inbox(client, 0) == []
            return
        assert await client.call("pending") == []


@pytest.mark.parametrize("transport", ["memory", "stdio"])
async def test_a_plain_client_finds_what_is_due_in_the_inbox(connect_to: ConnectTo):
    async with connect_to("reminders") as client:
        await client.call("remind", text="feed the cat")
        (event,) = await inbox(client, 1)
        assert event["payload"]["content"] == [{"type": "text", "text": "Reminder: feed the cat"}]


@pytest.mark.parametrize("transport", ["memory", "http"])
@pytest.mark.parametrize("version", ["2025-11-25"])
async def test_reminders_wait_for_their_hour(connect_to: ConnectTo):
    async with connect_to("reminders", mcpl=Mcpl(audit=[])) as client:
        reminders = example()
        await client.call("remind", text="later", seconds=60)
        await client.call("remind", text="sooner", seconds=30)
        assert await client.call("pending") == ["sooner", "later"]
        reminders.clock.now += 59
        assert text_of(await next_event(client)) == "Reminder: sooner"
        assert await client.call("pending") == ["later"]
        reminders.clock.now += 1
        assert text_of(await next_event(client)) == "Reminder: later"


@pytest.mark.req("MCPL-6.7u")
@pytest.mark.parametrize("transport", ["memory"])
@pytest.mark.parametrize("version", ["2025-11-25"])
async def test_a_host_that_wants_no_reminders_gets_none(connect_to: ConnectTo):
    events: list[str] = []
    host = Mcpl(feature_sets={"disabled": ["reminders.*"]}, on_event=lambda event: events.append(event.id), audit=[])
    async with connect_to("reminders", mcpl=host) as client:
        reminders = example()
        assert "will not hear" in await client.call("remind", text="never")
        await until(lambda: reminders.waiting == [])
        assert events == []
