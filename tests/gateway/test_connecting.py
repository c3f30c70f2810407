from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import replace

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from defserve.serve.sockets import MAX_SMALL_FRAGMENTS
from tests.gateway.topics import PEOPLE, envelope, eventually, gateway
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


@pytest.mark.req("MCPX-3.4", "MCPX-3.5.1", "MCPX-6.2w", "MCPX-8.1")
async def test_a_participant_hears_of_its_own_join_and_is_then_welcomed():
    async with gateway() as running, running.joined("admin"), running.open("t-agent") as agent:
        presence, welcome = await agent.hear(), await agent.hear()
    held = ["mcp/proposal:*", "mcp/withdraw", "mcp/response:*", "chat"]
    assert (presence["kind"], presence["from"]) == ("system/presence", "system:gateway")
    agent_shown = {"id": "agent", "capabilities": held, "authenticated": True}
    assert presence["payload"] == {"event": "join", "participant": agent_shown}
    assert (welcome["kind"], welcome["to"]) == ("system/welcome", ["agent"])
    assert welcome["payload"] == {
        "you": agent_shown,
        "participants": [{"id": "admin", "capabilities": ["mcp/*", "chat"], "authenticated": True}],
    }


@pytest.mark.req("MCPX-3.4")
async def test_the_others_hear_who_comes_and_who_goes():
    async with gateway() as running, running.joined("admin") as admin:
        async with running.joined("agent"):
            came = await admin.until("system/presence")
        went = await admin.until("system/presence")
    assert came["payload"]["participant"]["id"] == "agent"
    assert went["payload"] == {"event": "leave", "participant": {"id": "agent"}}


@pytest.mark.req("MCPX-7.1", "MCPX-4.1p")
async def test_who_is_given_nothing_else_may_only_propose():
    async with gateway() as running, running.joined("agent") as agent:
        await agent.say("mcp/request:tools/call:add", to=["worker"])
        assert (await agent.error())["payload"]["error"] == "capability_violation"
        await agent.say("mcp/proposal:tools/call:add", {"method": "tools/call", "params": {"name": "add"}})
        assert (await agent.hear())["kind"] == "mcp/proposal:tools/call:add"


@pytest.mark.req("MCPX-6.2w", "MCPX-5.1")
@for_each_row(
    ("token", "topic"),
    [
        (None, "demo"),
        ("wrong", "demo"),
        ("t-admin", ""),
        ("t-admin", "no%20spaces"),
        ("t-admin", "demo&topic=other"),
        ("t-admin", "demo&routing=sideways"),
        ("t-admin", "closed"),
        ("t-agent", "private"),
    ],
)
async def test_a_bad_token_or_topic_is_closed_with_1008(token: str | None, topic: str):
    people = {**PEOPLE, "agent": {"token": "t-agent", "topics": ["demo", "open-*"]}}
    async with gateway(topics=["demo", "private"], participants=people) as running:
        async with running.open(token, running.topic(topic)) as peer:
            assert (await peer.closed())[0] == 1008
        assert running.gateway.topics == {}


async def test_of_two_tokens_none_counts():
    async with gateway() as running:
        twice = [("Authorization", "Bearer t-admin"), ("Authorization", "Bearer t-agent")]
        async with running.open(None, additional_headers=twice) as peer:
            assert (await peer.closed())[0] == 1008


async def test_another_path_is_not_found_and_a_page_of_another_site_is_refused():
    async with gateway() as running:
        with pytest.raises(InvalidStatus, match="404"):
            async with running.open("t-admin", f"ws://127.0.0.1:{running.port}/elsewhere?topic=demo"):
                pass
        with pytest.raises(InvalidStatus, match="403"):
            async with running.open("t-admin", origin="https://evil.example"):
                pass


async def test_a_newer_connection_takes_the_place_of_the_older():
    async with gateway() as running, running.joined("worker") as worker, running.joined("admin") as first:
        async with running.joined("admin") as second:
            assert await first.closed() == (1000, "replaced by a newer connection")
            await second.is_well()
            events = [(await worker.until("system/presence"))["payload"]["event"] for _ in range(2)]
            assert events == ["join", "join"]
            assert set(running.gateway.topics["demo"].members) == {"worker", "admin"}


@pytest.mark.req("MCPX-2.2", "MCPX-10.1")
async def test_nothing_of_a_topic_persists():
    async with gateway() as running:
        async with running.joined("admin") as admin:
            await admin.say("chat", {"text": "remember this"})
            member = running.gateway.topics["demo"].members["admin"]
            assert member.connection.startswith("ws-") and member.connected_at.endswith("Z")
        await eventually(lambda: not running.gateway.topics)
        async with running.joined("agent") as agent:
            await agent.say("chat", {"text": "?"})
            assert (await agent.hear())["payload"] == {"text": "?"}


async def test_topics_do_not_hear_one_another():
    async with gateway() as running, running.joined("admin", "one") as one, running.joined("agent", "two") as two:
        await one.say("chat", {"text": "in one"})
        await two.say("chat", {"text": "in two"})
        assert (await one.hear())["payload"]["text"] == "in one"
        assert (await two.hear())["payload"]["text"] == "in two"


async def test_a_full_topic_takes_nobody_more_but_lets_a_member_come_again():
    async with gateway(limits={"participants": 1}) as running, running.joined("admin"):
        async with running.open("t-agent") as agent:
            assert await agent.closed() == (1013, "too many participants in this topic")
        async with running.joined("admin") as again:
            await again.is_well()


async def test_a_connection_ends_with_its_token(monkeypatch: pytest.MonkeyPatch):
    async with gateway() as running:
        admit = running.gateway.policy.admit

        async def briefly(token: str | None, topic: str):
            return replace(await admit(token, topic), expires=time.time() + 0.4)

        monkeypatch.setattr(running.gateway.policy, "admit", briefly)
        async with running.joined("admin") as admin:
            assert await admin.closed() == (1008, "the token has expired")


async def test_who_speaks_before_the_welcome_is_heard_in_order(monkeypatch: pytest.MonkeyPatch):
    async with gateway() as running, running.joined("worker") as worker:
        admit, let_in = running.gateway.policy.admit, asyncio.Event()

        async def late(token: str | None, topic: str):
            await let_in.wait()
            return await admit(token, topic)

        monkeypatch.setattr(running.gateway.policy, "admit", late)
        async with running.open("t-admin") as admin:
            admin.id = "admin"
            said = [await admin.say("chat", {"text": str(number)}) for number in range(50)]
            let_in.set()
            said += [await admin.say("chat", {"text": str(number)}) for number in range(50)]
            assert [(await worker.until("chat"))["id"] for _ in said] == said


async def test_a_message_in_fragments_is_one_message():
    async with gateway() as running, running.joined("worker") as worker, running.joined("admin") as admin:
        whole = json.dumps(envelope("chat", "admin", {"text": "é" * 100}))
        await admin.socket.send([whole[:40], whole[40:41], whole[41:]])
        await admin.is_well()
        await worker.until("system/presence")
        assert await worker.socket.recv() == whole


async def test_fragments_are_counted_for_each_message():
    async with gateway() as running, running.joined("admin") as admin:
        for _ in range(3):
            await admin.socket.send([json.dumps(envelope("chat", "admin")), *[""] * (MAX_SMALL_FRAGMENTS // 2)])
        await admin.is_well()


@pytest.mark.parametrize("fragment", ["", " "])
async def test_who_sends_a_message_in_very_many_small_fragments_is_cut_off(fragment: str):
    async with gateway() as running, running.joined("worker") as worker, running.joined("admin") as admin:
        with suppress(ConnectionClosed):
            await admin.socket.send([json.dumps(envelope("chat", "admin")), *[fragment] * (2 * MAX_SMALL_FRAGMENTS)])
        assert await admin.closed() == (1009, "too many fragments")
        await worker.until("system/presence")
        gone = await worker.hear()
        assert (gone["kind"], gone["payload"]["event"]) == ("system/presence", "leave")


async def test_a_gateway_that_ends_tells_everyone_to_come_back():
    async with gateway() as running:
        peer = running.joined("admin")
        admin = await peer.__aenter__()
    assert (await admin.closed())[0] == 1012
    await peer.__aexit__(None, None, None)


@for_each_row("path", ["/healthz", "/ws?topic=demo"])
async def test_a_page_of_another_site_is_refused(path: str):
    async with gateway() as running:
        assert (await running.http("GET", path, sec_fetch_site="cross-site"))[0] == 403
