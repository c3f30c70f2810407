"""The verbs of the Events panel, against a server that tells of pushes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from defserve import Server
from defserve.client import events
from defserve.errors import PeerError
from defserve.inspector.era_connection import InspectionTarget
from defserve.inspector.followed_events import LoopbackReceiver
from defserve.inspector.inspection import Inspection
from defserve.inspector.protocol import BadMessage
from defserve.protocols.mcp.events.sending import sign_webhook
from defserve.serve.lifespans import connect_in_memory
from defserve.server import EventSettings
from tests.inspector.asking import do
from tests.protocols.mcp.events.repositories import Push, make_server
from tests.waiting import until

pytestmark = pytest.mark.anyio

X = {"repository": "x"}


def inspecting(server: Server, era: str = "stateless") -> Inspection:
    return Inspection(InspectionTarget("it", ("it.py",), lambda: connect_in_memory(server.composition), era))


async def push(server: Server, commits: int) -> str:
    return await server.emit_event("pushed", Push(commits=commits), repository="x")


async def follow(inspection: Inspection, way: str) -> Any:
    return await do(inspection, "events.follow", event="pushed", way=way, arguments=X)


def followed(inspection: Inspection) -> Any:
    return inspection.events.list_followed("stateless")[0]


async def count_cancelled(inspection: Inspection) -> int:
    await inspection.client()
    entries = inspection.recorder.get_messages(0, inspection.recorder.count)
    return sum(entry.note == "cancelled" for entry in entries if entry.method == "events/stream")


async def test_types_are_listed_with_their_ways_and_schemas():
    async with inspecting(make_server()) as inspection:
        told = await do(inspection, "events.list")
        assert (told["offered"], told["followed"]) == (True, [])
        (event,) = told["events"]
        assert (event["name"], event["delivery"]) == ("pushed", ["push", "poll", "webhook"])
        assert event["inputSchema"]["required"] == ["repository"]


@pytest.mark.parametrize("era", ["handshake", "stateless"])
async def test_a_server_without_events_offers_none(era: str):
    async with inspecting(Server("plain", "1"), era) as inspection:
        assert (await do(inspection, "events.list"))["offered"] is False


@pytest.mark.parametrize("way", ["stream", "poll"])
async def test_what_happens_is_told_until_it_is_stopped(way: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(events, "MAX_POLL_SECONDS", 0.02)  # the server wants five seconds
    server = make_server()
    async with inspecting(server) as inspection:
        made = await follow(inspection, way)
        assert (made["way"], made["running"], made["deliveries"]) == (way, True, [])
        id = await push(server, 3)
        await until(lambda: followed(inspection)["count"] == 1)
        (row,) = followed(inspection)["deliveries"]
        assert (row["id"], row["data"], row["gap"]) == (id, {"commits": 3}, False)
        assert (await do(inspection, "events.stop", number=made["number"]))["stopped"] is True
        assert followed(inspection)["running"] is False
        assert followed(inspection)["count"] == 1
        assert await count_cancelled(inspection) == (way == "stream")


async def test_the_inspector_receives_a_webhook_and_checks_it():
    server = make_server(settings=EventSettings(allow_loopback=True))
    async with inspecting(server) as inspection:
        made = await follow(inspection, "webhook")
        assert made["about"]["url"].startswith("http://127.0.0.1:")
        await push(server, 4)
        await until(lambda: followed(inspection)["count"] == 2)
        event, challenge = followed(inspection)["deliveries"]
        assert (challenge["kind"], challenge["check"]) == ("verification", "good")
        assert (event["data"], event["check"]) == ({"commits": 4}, "good")
        assert event["subscription"] == made["about"]["subscription"]


async def test_a_server_that_does_not_send_to_this_machine_says_so():
    async with inspecting(make_server()) as inspection:
        with pytest.raises(PeerError, match="public https address"):
            await follow(inspection, "webhook")
        assert inspection.events.list_followed("stateless") == []


async def test_a_stream_that_the_server_ends_shows_why():
    server = make_server()
    async with inspecting(server) as inspection:
        await follow(inspection, "stream")
        server.remove_event("pushed")
        await until(lambda: not followed(inspection)["running"])
        assert followed(inspection)["error"]["code"] == -32023


async def test_what_cannot_be_followed_is_refused():
    async with inspecting(make_server()) as inspection:
        with pytest.raises(BadMessage, match="not followed by 'mail'"):
            await follow(inspection, "mail")
        with pytest.raises(BadMessage, match="'cursor'"):
            await do(inspection, "events.follow", event="pushed", way="poll", arguments={**X, "cursor": "1"})
        with pytest.raises(PeerError):
            await do(inspection, "events.follow", event="pushed", way="poll", arguments={})
        assert (await do(inspection, "events.stop", number=99))["stopped"] is False


def test_a_receiver_says_what_is_wrong_with_a_request():
    rows: list[Any] = []
    key, now = b"k" * 32, time.time()
    receiver = LoopbackReceiver(key, rows.append, lambda: now)
    body = b'{"eventId": "e", "name": "pushed", "data": {}}'
    signed = sign_webhook([key], "e", int(now), body)
    assert receiver.receive_request("POST", signed, body)[0] == 200
    assert receiver.receive_request("POST", signed, body)[0] == 200
    assert receiver.receive_request("POST", sign_webhook([b"j" * 32], "e", int(now), body), body)[0] == 401
    assert receiver.receive_request("POST", sign_webhook([key], "e", int(now) - 999, body), body)[0] == 401
    assert receiver.receive_request("POST", sign_webhook([key], "e", int(now), b"[]"), b"[]")[0] == 401
    assert receiver.receive_request("GET", signed, body)[0] == 400
    assert [row["check"] for row in rows] == ["good", "repeated", "refused", "refused", "refused"]
