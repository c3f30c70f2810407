from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from defserve.client import Client, EventStream, Mgp, ServerEvent
from defserve.errors import PeerError, ToolError

if TYPE_CHECKING:
    from .conftest import ConnectTo

pytestmark = pytest.mark.anyio

KITCHEN = ("com.example.*",)


def mgp() -> Mgp:
    return Mgp(audit=[])


def listening(client: Client, *channels: str, **wishes: Any) -> EventStream:
    return client.subscribe_events(channels, every=0.01, **wishes)


async def heard(events: EventStream, count: int) -> list[ServerEvent]:
    return [await anext(events) for _ in range(count)]


@pytest.mark.req("MGP-13.2", "MGP-13.3")
async def test_subscribers_hear_what_is_left(connect_to: ConnectTo):
    async with connect_to("events", mgp=mgp()) as client, listening(client, *KITCHEN, "com.acme.*") as events:
        assert events.unsupported == ("com.acme.*",)
        assert await client.call("take", item="eggs", amount=2) == 10
        assert await client.call("take", item="flour") == 2
        first, second = await heard(events, 2)
    assert (first.channel, first.data, first.severity) == ("com.example.stock", {"item": "eggs", "left": 10}, "info")
    assert (second.data, second.severity) == ({"item": "flour", "left": 2}, "warning")
    assert (first.sequence, second.sequence, first.missed, second.missed) == (1, 2, 0, 0)


@pytest.mark.req("MGP-13.2f")
async def test_only_what_is_grave_enough_comes(connect_to: ConnectTo):
    async with connect_to("events", mgp=mgp()) as client, listening(client, *KITCHEN, min_severity="warning") as events:
        await client.call("take", item="eggs")
        await client.call("take", item="flour")
        (only,) = await heard(events, 1)
    assert only.data == {"item": "flour", "left": 2}


async def test_what_is_for_the_caller_needs_a_session(connect_to: ConnectTo):
    async with connect_to("events", mgp=mgp()) as client, listening(client, *KITCHEN) as events:
        assert await client.call("is_heard") is not client.stateless
        await client.call("cook", dishes_of_table=["soup", "pie"], table=4)
        await client.call("take", item="eggs")
        if client.stateless:
            assert [event.channel for event in await heard(events, 1)] == ["com.example.stock"]
        else:
            soup, pie, _ = await heard(events, 3)
            assert (soup.data, pie.data) == ({"name": "soup", "table": 4}, {"name": "pie", "table": 4})


@pytest.mark.req("MGP-13.5")
async def test_a_session_hears_of_its_own_calls(connect_to: ConnectTo):
    async with connect_to("events", mgp=mgp()) as client, listening(client, "tool.*") as events:
        if client.stateless:
            assert events.unsupported == ("tool.*",)
            return
        assert events.subscribed == ("tool.completed", "tool.failed", "tool.started")
        await client.call("take", item="eggs")
        with pytest.raises(ToolError):
            await client.call("take", item="caviar")
        story = [(event.channel, event.data["tool_name"]) for event in await heard(events, 4)]
    assert story == [
        ("tool.started", "take"),
        ("tool.completed", "take"),
        ("tool.started", "take"),
        ("tool.failed", "take"),
    ]


async def test_a_plain_client_is_served_as_ever(connect_to: ConnectTo):
    notifications: list[str] = []
    async with connect_to("events", on_notification=lambda method, _: notifications.append(method)) as client:
        assert await client.call("take", item="eggs") == 11
        assert await client.call("is_heard") is False
        with pytest.raises(PeerError, match="Method not found"):
            await client.subscribe_events(["*"]).open()
    assert notifications == []
