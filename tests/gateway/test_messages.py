"""What passes, what is refused, and that a topic is none the worse for it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.protocol import State

from defserve.gateway.listener import GatewayConnection
from tests.gateway.topics import PATIENCE, Json, Peer, envelope, eventually, gateway, tool_call
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

CALL = "mcp/request:tools/call:add"


@pytest.mark.req("MCPX-8.1", "MCPX-4.2")
async def test_an_envelope_is_passed_on_byte_for_byte():
    odd = '{ "payload" : {"b":1.0e0,"a" : [1E400, {"kind":"chat","kind":"x"}],"t":"\\u00e9é"} ,"kind":"chat",\n'
    odd += '"from":"admin","id":"odd-1","protocol":"mcpx/v0.1","colour":"blue"}'
    async with gateway() as running, running.joined("worker") as worker, running.joined("admin") as admin:
        await admin.raw(odd)
        await worker.until("system/presence")
        assert await worker.socket.recv() == odd


@pytest.mark.req("MCPX-4.2")
async def test_a_gateway_looks_at_the_kind_alone():
    spoofed = tool_call("remove_everything")
    async with gateway() as running, running.joined("worker") as worker, running.joined("admin") as admin:
        await admin.say("mcp/request:tools/call:add", spoofed, to=["worker"])
        assert (await worker.until("mcp/request:tools/call:add"))["payload"] == spoofed


@pytest.mark.req("MCPX-3.5.2", "MCPX-6.4", "MCPX-4.2")
async def test_a_kind_without_capability_is_blocked_and_reported_to_its_sender_alone():
    async with gateway() as running, running.joined("admin") as admin, running.joined("worker") as worker:
        id = await worker.say(CALL, tool_call(), to=["admin"])
        refused = await worker.error()
        await worker.is_well()
        await admin.until("system/presence")
        assert (await admin.hear())["kind"] == "chat"
    assert (refused["from"], refused["to"], refused["correlation_id"]) == ("system:gateway", ["worker"], id)
    assert refused["payload"] == {
        "error": "capability_violation",
        "message": f"You lack capability for '{CALL}'",
        "attempted_kind": CALL,
        "your_capabilities": ["mcp/response:*", "mcp/reject", "chat"],
    }


@pytest.mark.req("MCPX-4.1s")
@for_each_row("kind", ["system/presence", "system/welcome", "system/error", "system/x", "system", "presence"])
async def test_the_gateway_s_own_kinds_are_refused(kind: str):
    async with gateway() as running, running.joined("worker") as worker, running.joined("admin") as admin:
        id = await admin.say(kind, {"event": "leave", "participant": {"id": "worker"}})
        refused = await admin.error()
        assert (refused["payload"]["error"], refused["correlation_id"]) == ("reserved_kind", id)
        await only_hears_that_it_is_well(worker, admin)


async def test_a_forged_sender_is_refused_and_never_rewritten():
    async with gateway() as running, running.joined("worker") as worker, running.joined("admin") as admin:
        for name in ("worker", "system:gateway", "Admin"):
            forged = envelope("chat", name, {"text": "hi"})
            await admin.raw(json.dumps(forged))
            refused = await admin.error()
            assert (refused["payload"]["error"], refused["correlation_id"]) == ("forged_sender", forged["id"])
        await only_hears_that_it_is_well(worker, admin)


@pytest.mark.req("MCPX-6.1v")
@for_each_row("version", ["mcp-x/v0", "mcpx/v0.0", "mcpx/v0.2", "MCPX/v0.1", 1, None])
async def test_another_version_is_refused(version: Any):
    async with gateway() as running, running.joined("worker") as worker, running.joined("admin") as admin:
        await admin.say("chat", {"text": "hi"}, protocol=version, id="old-1")
        refused = await admin.error()
        assert (refused["payload"]["error"], refused["correlation_id"]) == ("wrong_version", "old-1")
        await only_hears_that_it_is_well(worker, admin)


GOOD = envelope("chat", "admin", {"text": "hi"}, id="good-1")


@pytest.mark.req("MCPX-3.0")
@for_each_row(
    ("frame", "error", "correlation"),
    [
        ("", "not_json", None),
        ("{", "not_json", None),
        ("NaN", "not_json", None),
        ("[]", "invalid_envelope", None),
        ("[" * 5000, "not_json", None),
        (b"\xff\xfe", "not_json", None),
        (json.dumps(GOOD).replace("hi", '"'), "not_json", None),
        (json.dumps({**GOOD, "payload": []}), "invalid_envelope", "good-1"),
        (json.dumps({**GOOD, "id": 7}), "invalid_envelope", None),
        (json.dumps({**GOOD, "to": "worker"}), "invalid_envelope", "good-1"),
        (json.dumps({**GOOD, "kind": "chat:"}), "invalid_envelope", "good-1"),
        (json.dumps({**GOOD, "ts": "yesterday"}), "invalid_envelope", "good-1"),
        (json.dumps(GOOD)[:-1] + ', "kind": "mcp/request:tools/call"}', "invalid_envelope", "good-1"),
        (json.dumps(GOOD)[:-1] + ', "\\u006bind": "chat"}', "invalid_envelope", "good-1"),
        (json.dumps(GOOD)[:-1] + ', "from": "worker"}', "invalid_envelope", "good-1"),
    ],
)
async def test_a_malformed_frame_gets_an_error_in_an_envelope(frame: str | bytes, error: str, correlation: str | None):
    async with gateway() as running, running.joined("worker") as worker, running.joined("admin") as admin:
        await admin.raw(frame)
        said = await admin.hear()
        assert (said["protocol"], said["kind"], said["from"]) == ("mcpx/v0.1", "system/error", "system:gateway")
        assert (said["to"], said["payload"]["error"], said.get("correlation_id")) == (["admin"], error, correlation)
        assert isinstance(said["payload"]["message"], str)
        await only_hears_that_it_is_well(worker, admin)


async def test_who_sends_nothing_but_malformed_frames_is_sent_away():
    async with gateway(limits={"malformed_in_a_row": 3}) as running:
        async with running.joined("worker") as worker, running.joined("admin") as admin:
            for frame in ("{", "{", json.dumps(GOOD), "{", "{"):
                await admin.raw(frame)
            await admin.is_well()
            for _ in range(3):
                await admin.raw("{")
            assert await admin.closed() == (1008, "too many malformed messages")
            await worker.is_well()


async def test_an_oversized_frame_ends_its_connection_and_nothing_else():
    async with gateway(limits={"message": 2000}) as running:
        async with running.joined("worker") as worker, running.joined("admin") as admin:
            await admin.say("chat", {"text": "x" * 3000})
            assert (await admin.closed())[0] == 1009
            while (await worker.until("system/presence"))["payload"]["event"] != "leave":
                pass
            await worker.is_well()


@pytest.mark.req("MCPX-6.3", "MCPX-8.1")
async def test_all_hears_everything_and_directed_only_what_is_for_it():
    async with gateway() as running, running.joined("admin") as admin, running.joined("worker") as worker:
        async with running.joined("agent", routing="directed") as agent, running.joined("watcher") as watcher:
            for to in (["worker"], ["agent", "worker"], ["watcher"], [], None):
                more = {} if to is None else {"to": to}
                await admin.say("chat", {"text": str(to)}, **more)
            assert await said(admin, 5) == await said(worker, 5)
            assert await said(agent, 3) == ["['agent', 'worker']", "[]", "None"]
            assert await said(watcher, 3) == ["['watcher']", "[]", "None"]


async def test_the_rate_of_each_participant_is_bounded():
    async with gateway(limits={"rate": 0.001, "burst": 2}) as running:
        async with running.joined("admin") as admin, running.joined("worker") as worker:
            for _ in range(2):
                await admin.is_well()
            id = await admin.say("chat", {"text": "again"})
            refused = await admin.error()
            assert (refused["payload"]["error"], refused["correlation_id"]) == ("rate_limited", id)
            assert refused["payload"]["retry_after"] > 0
            await worker.is_well()


async def test_a_reader_that_stops_does_not_keep_its_seat_or_the_gateway():
    limits: Json = {"ping": 1.0, "message": 600_000, "farewell": 0.1, "rate": 1e6, "burst": 1_000_000}
    async with asyncio.timeout(PATIENCE), gateway(limits=limits) as running, running.joined("admin") as admin:
        stops = running.joined("agent")
        sleeper = await stops.__aenter__()
        sleeper.socket.transport.pause_reading()
        (connection,) = [member.wire for id, member in running.gateway.topics["demo"].members.items() if id == "agent"]
        assert isinstance(connection, GatewayConnection)
        topic = running.gateway.topics["demo"]
        # More than sockets and buffers hold, and less than the gateway lets wait.
        while "agent" in topic.members and not connection.paused:
            await admin.say("chat", {"text": "x" * 500_000})
            await admin.until("chat")
        await eventually(lambda: "agent" not in topic.members and connection.state is State.CLOSED)
        await admin.is_well()
        sleeper.socket.transport.abort()
        await stops.__aexit__(None, None, None)


async def test_a_slow_reader_is_dropped_with_a_notice_and_holds_nobody_up():
    text = "x" * 200_000
    limits: Json = {"waiting": 1_000_000, "rate": 1e6, "burst": 1_000_000, "farewell": 20}
    async with gateway(limits=limits) as running, running.joined("admin") as admin, running.joined("worker") as worker:
        slow = running.joined("agent")
        sleeper = await slow.__aenter__()
        hurried = asyncio.create_task(_until_left(worker, "agent"))
        while not hurried.done():
            # The sleeper reads nothing of this; the others do not notice.
            await admin.say("chat", {"text": text})
            await admin.until("chat")
        assert set(running.gateway.topics["demo"].members) == {"admin", "worker"}
        notice = await sleeper.error()
        assert notice["payload"]["error"] == "slow_reader"
        assert await sleeper.closed() == (1013, "too slow")
        await slow.__aexit__(None, None, None)
        assert 'left_total{reason="slow"} 1' in running.gateway.metrics.text(0, 0)


@pytest.mark.req("MCPX-7.1")
async def test_proposals_and_what_becomes_of_them_are_logged_without_their_payload(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "defserve.gateway")
    async with gateway() as running, running.joined("admin") as admin, running.joined("agent") as agent:
        proposal = {"method": "tools/call", "params": {"name": "add", "arguments": {"password": "hunter2"}}}
        id = await agent.say("mcp/proposal:tools/call:add", proposal)
        await admin.until("mcp/proposal:tools/call:add")
        await admin.say(CALL, tool_call(), to=["worker"], correlation_id=id)
        await agent.until(CALL)
    lines = [json.loads(record.message) for record in caplog.records if record.name == "defserve.gateway"]
    events = {line["event"]: line for line in lines}
    assert (events["proposal"]["participant"], events["proposal"]["id"]) == ("agent", id)
    assert (events["fulfilment"]["participant"], events["fulfilment"]["correlation_id"]) == ("admin", id)
    assert {"join", "leave"} <= events.keys() and "hunter2" not in caplog.text


async def only_hears_that_it_is_well(worker: Peer, admin: Peer) -> None:
    """Of what the admin said before, nothing reached the worker."""
    await admin.is_well()
    await worker.until("system/presence")
    assert (await worker.hear())["payload"] == {"text": "well"}


async def said(peer: Peer, count: int) -> list[str]:
    return [(await peer.until("chat"))["payload"]["text"] for _ in range(count)]


async def _until_left(peer: Peer, id: str) -> None:
    while (await peer.until("system/presence"))["payload"] != {"event": "leave", "participant": {"id": id}}:
        pass


async def test_a_request_to_nobody_here_is_passed_on_and_its_sender_learns_who_is_here():
    async with gateway() as running, running.joined("worker") as worker, running.joined("admin") as admin:
        call = "mcp/request:tools/call:add"
        id = await admin.say(call, tool_call(), to=["nobody", "none"])
        assert (await worker.until(call))["id"] == id
        told = await admin.error()
        assert (told["correlation_id"], told["to"]) == (id, ["admin"])
        assert told["payload"] == {
            "error": "not_present",
            "message": "'nobody', 'none' is not in the topic; here are: worker",
            "participants": ["worker"],
        }
        await admin.say(call, tool_call(), to=["nobody", "worker"])
        await admin.say("mcp/response:ping", {}, to=["nobody"])
        await admin.say("chat", {"text": "?"}, to=["nobody"])
        assert [(await admin.hear())["kind"] for _ in range(3)] == [call, "mcp/response:ping", "chat"]
        await admin.say("chat", {"text": "no refusal came in between"})
        assert (await admin.hear())["kind"] == "chat"
