from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from defserve import Context, Limits, Server, Shell, ShellCommand, ToolError, UsageError, moderate
from defserve.auth import Principal
from defserve.auth.principals import LOCAL_PRINCIPAL
from defserve.protocols.mcp.lifecycle import LOG_LEVELS
from defserve.protocols.mgp.events import EVENT, UNDER_WAY, WAITING, WAITING_BYTES
from defserve.serve.connection import Connection
from defserve.serve.lifespans import enter_lifespans
from defserve.serve.stdio import StdioTransport
from defserve.server import AccessPolicy
from tests.asgi import Peer, living
from tests.protocols.mgp.callers import ALICE, BOB, LOOPBACK, STRANGER, speaking
from tests.raw import HANDSHAKE, STATELESS, Json, Raw, raw, text_of, turns, until
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

SESSION = HANDSHAKE[-1]
STANDARD = [
    "security.access_denied",
    "security.permission_denied",
    "security.validation_failed",
    "tool.completed",
    "tool.failed",
    "tool.started",
]


class Usage(BaseModel):
    tokens_used: int
    model: str = "m"


class Plant:
    """A server with channels of its own, and tools that emit on them."""

    def __init__(self, **options: Any) -> None:
        self.server = server = Server("plant", "1", **options)
        self.usage = server.event_channel("model.token_usage", Usage)
        self.load = server.event_channel("system.load")

        @server.tool
        async def think(tokens: int) -> str:
            await self.usage.emit(tokens_used=tokens)
            return "thought"

        @server.tool
        def think_in_thread(count: int) -> str:
            for number in range(count):
                self.usage.emit_now(Usage(tokens_used=number))
            return "thought"

        @server.tool
        async def mine(ctx: Context) -> str:
            await self.usage.emit(tokens_used=1, to=ctx.session)
            return "told"

        @server.tool
        async def can(ctx: Context) -> bool:
            return ctx.can("events")

        @server.tool
        async def fail(how: str) -> str:
            raise ToolError("so it is") if how == "tool" else RuntimeError("a secret")

        @server.tool
        @moderate("shell.execute")
        async def run(command: Annotated[ShellCommand, Shell(allowed={"git": ["status"]})]) -> str:
            return command.text


@asynccontextmanager
async def subscriber(
    server: Server, *channels: str, who: Principal = LOCAL_PRINCIPAL, **filter: Any
) -> AsyncGenerator[tuple[Raw, str]]:
    async with speaking(server, SESSION, ["events"], who=who) as peer:
        yield peer, (await subscribed(peer, *channels, **filter))["subscription_id"]


async def subscribed(peer: Raw, *channels: str, **filter: Any) -> Json:
    params: Json = {"channels": list(channels), **({"filter": filter} if filter else {})}
    reply = await peer.ask("mgp/events/subscribe", params)
    assert "result" in reply, reply
    return reply["result"]


async def events(peer: Raw) -> list[Json]:
    """The params of every event that came, and nothing else did."""
    news: list[Json] = []
    while more := await peer.news():
        news += more
    assert {message["method"] for message in news} <= {EVENT}
    return [message["params"] for message in news]


def channels(heard: list[Json]) -> list[str]:
    return [event["channel"] for event in heard]


# -- subscribing -----------------------------------------------------------------------------------------


@pytest.mark.req("MGP-13.2", "MGP-13.5")
async def test_a_subscription_names_the_channels_there_are_and_the_wishes_that_fit_none():
    async with speaking(Plant().server, SESSION, ["bidirectional"]) as peer:
        wishes = ["model.*", "system.load", "tool.started", "system.error", "com.example.*", "mo*", "a b", "model.**"]
        found = await subscribed(peer, *wishes)
        assert found["subscribed"] == ["model.token_usage", "system.load", "tool.started"]
        assert found["unsupported"] == ["system.error", "com.example.*", "mo*", "a b", "model.**"]
        assert len(found["subscription_id"]) >= 22  # 128 bits and more
        assert (await subscribed(peer, "*"))["subscribed"] == [
            "model.token_usage",
            *STANDARD[:3],
            "system.load",
            *STANDARD[3:],
        ]


@pytest.mark.req("MGP-13.5")
async def test_every_server_has_tool_and_security_channels():
    async with speaking(Server("bare", "1"), SESSION, ["events"]) as peer:
        assert (await subscribed(peer, "*"))["subscribed"] == STANDARD


@for_each_row("wish", [None, [], "tool.*", [1], {"tool.*": True}])
async def test_channels_that_are_no_list_of_texts_are_refused(wish: Any):
    async with speaking(Plant().server, SESSION, ["events"]) as peer:
        assert (await peer.ask("mgp/events/subscribe", {"channels": wish}))["error"]["code"] == -32602


async def test_a_session_has_only_so_many_subscriptions_and_patterns():
    async with speaking(Plant(limits=Limits(subscriptions=3)).server, SESSION, ["events"]) as peer:
        first = await subscribed(peer, "tool.*", "model.*")
        too_many = await peer.ask("mgp/events/subscribe", {"channels": ["tool.started", "system.*"]})
        assert too_many["error"]["code"] == 3001
        await peer.ask("mgp/events/unsubscribe", {"subscription_id": first["subscription_id"]})
        await subscribed(peer, "tool.started", "system.*")


async def test_who_did_not_negotiate_events_finds_no_such_method():
    async with raw(Plant().server, SESSION) as plain, speaking(Plant().server, SESSION, ["audit"]) as other:
        for peer in (plain, other):
            for verb in ("subscribe", "unsubscribe", "replay"):
                reply = await peer.ask(f"mgp/events/{verb}", {"channels": ["*"]})
                assert reply["error"]["code"] == -32601


@for_each_row("name", ["model.token_usage", "com.example.shop.order_shipped", "builds", "x-y.Z_1", "tool.index_built"])
def test_a_channel_may_have_any_name_of_words_and_dots(name: str):
    assert Server("s", "1").event_channel(name).name == name


@for_each_row("name", ["", "model.*", "a b", ".a", "a.", "a..b", "a\n", "é", "a" * 129])
def test_a_name_that_cannot_be_a_channel_is_an_error_when_it_is_declared(name: str):
    with pytest.raises(UsageError, match="cannot be an event channel"):
        Server("s", "1").event_channel(name)


@for_each_row("name", ["model.token_usage", "tool.started"])
def test_a_channel_is_declared_once(name: str):
    with pytest.raises(UsageError, match="exists already"):
        Plant().server.event_channel(name)


# -- events ----------------------------------------------------------------------------------------------


@pytest.mark.req("MGP-13.3")
async def test_an_event_carries_its_subscription_channel_time_and_data():
    plant = Plant()
    async with subscriber(plant.server, "model.*") as (peer, id):
        await plant.usage.emit(tokens_used=12)
        (event,) = await events(peer)
    assert event.pop("timestamp").endswith("Z")
    assert event == {
        "subscription_id": id,
        "channel": "model.token_usage",
        "data": {"tokens_used": 12, "model": "m"},
        "severity": "info",
        "sequence": 1,
    }


@pytest.mark.req("MGP-13.3")
async def test_only_subscribers_hear_and_each_counts_for_itself():
    plant = Plant()
    async with speaking(plant.server, SESSION, ["events"]) as idle, raw(plant.server, SESSION) as plain:
        async with subscriber(plant.server, "model.*") as (peer, first):
            await plant.usage.emit(tokens_used=1)
            second = (await subscribed(peer, "*"))["subscription_id"]
            await plant.usage.emit(tokens_used=2)
            await plant.load.emit(0.5)
            heard = await events(peer)
        assert await idle.news() == await plain.news() == []
    told = {(e["subscription_id"], e["channel"], e["sequence"]) for e in heard}
    assert told == {
        (first, "model.token_usage", 1),
        (first, "model.token_usage", 2),
        (second, "model.token_usage", 1),
        (second, "system.load", 2),
    }


async def test_a_channel_declared_later_fits_the_patterns_there_are():
    plant = Plant()
    async with subscriber(plant.server, "system.*") as (peer, _):
        await plant.server.event_channel("system.disk").emit({"free": 1})
        assert channels(await events(peer)) == ["system.disk"]


async def test_what_was_unsupported_stays_so():
    plant = Plant()
    async with subscriber(plant.server, "build.*", "system.load") as (peer, _):
        await plant.server.event_channel("build.done").emit()
        assert await events(peer) == []


@pytest.mark.req("MGP-13.2f")
@for_each_row("least", LOG_LEVELS)
async def test_events_below_the_wanted_severity_are_left_out(least: str):
    plant = Plant()
    async with subscriber(plant.server, "system.*", min_severity=least) as (peer, _):
        for severity in LOG_LEVELS:
            await plant.load.emit(1, severity=severity)
        heard = await events(peer)
    assert [e["severity"] for e in heard] == list(LOG_LEVELS[LOG_LEVELS.index(least) :])
    assert [e["sequence"] for e in heard] == list(range(1, len(heard) + 1))


@pytest.mark.req("MGP-13.2f")
@for_each_row("filter", [{"min_severity": "loud"}, {"min_severity": 3}, {"min_severity": None}, "warning"])
async def test_a_filter_that_means_nothing_is_refused(filter: Any):
    async with speaking(Plant().server, SESSION, ["events"]) as peer:
        reply = await peer.ask("mgp/events/subscribe", {"channels": ["*"], "filter": filter})
        assert reply["error"]["code"] == -32602


async def test_what_does_not_fit_the_channel_is_the_authors_error():
    plant = Plant()
    with pytest.raises(ValueError, match="tokens_used"):
        await plant.usage.emit(tokens_used="many")
    with pytest.raises(ValueError, match="severity 'loud'"):
        await plant.load.emit(1, severity="loud")
    with pytest.raises(ValueError, match="not both"):
        await plant.usage.emit(Usage(tokens_used=1), tokens_used=2)
    with pytest.raises(ValueError):
        await plant.load.emit(object())


async def test_events_of_a_call_come_before_its_result_from_threads_too():
    plant = Plant()
    async with subscriber(plant.server, "model.*") as (peer, _):
        await peer.call("think", {"tokens": 7})
        assert [m["params"]["data"]["tokens_used"] for m in peer.heard] == [7]
        peer.heard.clear()
        await peer.call("think_in_thread", {"count": 5})
        assert [m["params"]["data"]["tokens_used"] for m in peer.heard] == [0, 1, 2, 3, 4]


async def test_threads_of_nobody_may_emit_at_once():
    plant = Plant()
    async with subscriber(plant.server, "model.*") as (peer, _):
        threads = [
            threading.Thread(target=lambda: [plant.usage.emit_now(tokens_used=n) for n in range(10)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        heard: list[Json] = []
        while len(heard) < 40:
            heard += await events(peer)
    assert [e["sequence"] for e in heard] == list(range(1, 41))


async def test_an_emit_from_another_loop_arrives():
    plant = Plant()
    async with subscriber(plant.server, "model.*") as (peer, _):
        await asyncio.to_thread(lambda: asyncio.run(plant.usage.emit(tokens_used=1)))
        assert channels(await events(peer)) == ["model.token_usage"]


# -- ends ------------------------------------------------------------------------------------------------


@pytest.mark.req("MGP-13.2u")
async def test_after_unsubscribing_nothing_is_heard_and_the_id_is_unknown():
    plant = Plant()
    async with subscriber(plant.server, "model.*") as (peer, id):
        reply = await peer.ask("mgp/events/unsubscribe", {"subscription_id": id})
        assert reply["result"] == {"unsubscribed": True, "subscription_id": id}
        await plant.usage.emit(tokens_used=1)
        assert await events(peer) == []
        again = await peer.ask("mgp/events/unsubscribe", {"subscription_id": id})
        assert (again["error"]["code"], again["error"]["data"]["error_type"]) == (-32602, "unknown_subscription")


@pytest.mark.req("MGP-13.2u")
async def test_a_foreign_subscription_is_as_unknown_as_one_that_never_was():
    plant = Plant()
    async with subscriber(plant.server, "model.*") as (peer, id), speaking(plant.server, SESSION, ["events"]) as thief:
        foreign, never = [
            (await thief.ask("mgp/events/unsubscribe", {"subscription_id": guess}))["error"]
            for guess in (id, "sub-001")
        ]
        assert {**foreign, "data": 0} == {**never, "data": 0}
        assert foreign["data"]["error_type"] == never["data"]["error_type"]
        await plant.usage.emit(tokens_used=1)
        assert len(await events(peer)) == 1


async def test_a_session_that_ends_takes_its_subscriptions_along():
    plant = Plant()
    async with subscriber(plant.server, "*"):
        assert plant.server.mgp.events.listeners == 1
    assert plant.server.mgp.events.listeners == 0
    assert not plant.server.mgp.events.has_call_subscribers
    await plant.usage.emit(tokens_used=1)


# -- whom it concerns ------------------------------------------------------------------------------------


@pytest.mark.req("MGP-13.3")
async def test_two_principals_never_see_each_others_events():
    plant = Plant()
    async with (
        subscriber(plant.server, "*", who=ALICE) as (alice, _),
        subscriber(plant.server, "*", who=BOB) as (bob, _),
        subscriber(plant.server, "*", who=ALICE) as (alice_too, _),
    ):
        await plant.usage.emit(tokens_used=1, to="alice")
        await plant.usage.emit(tokens_used=2, to=BOB)
        await plant.usage.emit(tokens_used=3)
        for peer, expected in ((alice, [1, 3]), (bob, [2, 3]), (alice_too, [1, 3])):
            heard = await events(peer)
            assert [e["data"]["tokens_used"] for e in heard] == expected
            # What one is not told leaves no hole in what it is told.
            assert [e["sequence"] for e in heard] == [1, 2]
        await bob.call("think", {"tokens": 4})
        assert channels([m["params"] for m in bob.heard]) == ["tool.started", "model.token_usage", "tool.completed"]
        assert channels(await events(alice)) == ["model.token_usage"]


@for_each_row("who", [LOOPBACK, STRANGER], ids=["on this machine", "elsewhere"])
async def test_of_callers_nobody_can_tell_apart_only_the_session_names_one(who: Principal):
    plant = Plant()
    async with (
        subscriber(plant.server, "*", who=who) as (one, _),
        subscriber(plant.server, "*", who=who) as (other, _),
    ):
        await plant.usage.emit(tokens_used=1, to=who)
        assert await events(one) == await events(other) == []
        await one.call("mine")
        assert channels([m["params"] for m in one.heard]) == ["tool.started", "model.token_usage", "tool.completed"]
        assert await events(other) == []


async def test_a_channel_with_scopes_is_not_there_for_those_without():
    plant = Plant()
    ledger = plant.server.event_channel("com.example.ledger", scopes="tools:admin")
    async with (
        subscriber(plant.server, "com.example.ledger", "*", who=ALICE) as (alice, _),
        speaking(plant.server, SESSION, ["events"], who=BOB) as bob,
    ):
        found = await subscribed(bob, "com.example.*", "*")
        assert "com.example.ledger" not in found["subscribed"]
        assert found["unsupported"] == ["com.example.*"]
        await ledger.emit(1)
        assert channels(await events(alice)) == ["com.example.ledger"]
        assert await events(bob) == []
        replayed = await bob.ask("mgp/events/replay", {"channels": ["*"]})
        assert replayed["result"]["events"] == []


# -- slow readers ----------------------------------------------------------------------------------------


async def test_a_slow_reader_loses_the_oldest_and_is_told_which():
    plant = Plant()
    async with subscriber(plant.server, "model.*") as (peer, _):
        lost, total = 100, UNDER_WAY + WAITING + 100
        for number in range(1, total + 1):
            await plant.usage.emit(tokens_used=number)
        assert peer.link._queue.qsize() == UNDER_WAY  # the rest waits with us, and is bounded
        heard = await events(peer)
    after = UNDER_WAY + lost + 1
    assert [e["sequence"] for e in heard] == [*range(1, UNDER_WAY + 1), *range(after, total + 1)]
    assert [e["data"]["tokens_used"] for e in heard] == [e["sequence"] for e in heard]
    gaps = {e["sequence"]: e["gap"] for e in heard if "gap" in e}
    assert gaps == {after: {"from": UNDER_WAY + 1, "to": after - 1}}


async def test_what_waits_is_bounded_in_bytes_and_the_newest_is_kept():
    plant = Plant()
    async with subscriber(plant.server, "system.*") as (peer, _):
        for _ in range(UNDER_WAY):
            await plant.load.emit(0)
        for _ in range(5):
            await plant.load.emit("x" * WAITING_BYTES)
        heard = await events(peer)
    assert [e["sequence"] for e in heard] == [*range(1, UNDER_WAY + 1), UNDER_WAY + 5]


async def test_a_slow_subscription_does_not_hold_up_another():
    plant = Plant()
    async with subscriber(plant.server, "model.*") as (peer, _):
        for number in range(UNDER_WAY + 10):
            await plant.usage.emit(tokens_used=number)
        calm = await peer.begin("mgp/events/subscribe", {"channels": ["system.*"]})
        await turns()
        await plant.load.emit(1)
        await peer.reply_to(calm)
        assert "system.load" in channels(await events(peer))


async def test_over_http_events_wait_for_the_sessions_stream_and_a_gap_is_told():
    plant = Plant()
    offer = {"mgp": {"version": "0.3.0", "extensions": ["events"]}}
    async with living(plant.server.asgi()) as app:
        peer = await Peer(app, SESSION, offer).open()
        await peer.ask("mgp/events/subscribe", {"channels": ["model.*"]})
        total = UNDER_WAY + WAITING + 3
        for number in range(1, total + 1):
            await plant.usage.emit(tokens_used=number)
        stream = await peer.listen().started()
        await stream.until(lambda: stream.body.count(EVENT.encode()) == UNDER_WAY + WAITING)
        heard = [message["params"] for message in stream.messages]
        stream.leave()
    assert heard[-1]["data"]["tokens_used"] == total
    assert [e["gap"] for e in heard if "gap" in e] == [{"from": UNDER_WAY + 1, "to": UNDER_WAY + 3}]


async def test_on_a_pipe_that_nobody_reads_little_waits_and_the_newest_comes_last():
    plant, stdio = Plant(), StdioTransport(1 << 20)
    stdio._input, say = os.pipe()
    hear, stdio._output = os.pipe()
    mgp = {"version": "0.3.0", "extensions": ["events"]}
    opening = {"protocolVersion": SESSION, "capabilities": {"mgp": mgp}, "clientInfo": {"name": "n", "version": "1"}}
    async with enter_lifespans(plant.server.composition) as engine:
        connection = Connection(plant.server.composition, stdio)
        connection.attach(engine)
        stdio.start(asyncio.get_running_loop(), connection.feed_frames, connection.close)
        for id, (method, params) in enumerate(
            [("initialize", opening), ("mgp/events/subscribe", {"channels": ["system.*"]})]
        ):
            os.write(say, json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n")
        await until(lambda: plant.server.mgp.events.listeners == 1)
        for _ in range(2_000):
            await plant.load.emit("x" * 1_000)
            await asyncio.sleep(0)
        assert stdio.queued < UNDER_WAY * 2_000
        os.set_blocking(hear, False)
        lines = b""
        async with asyncio.timeout(10):
            while b'"sequence":2000' not in lines:
                with suppress(BlockingIOError):
                    lines += os.read(hear, 1 << 20)
                await asyncio.sleep(0)
        stdio.close()
        for descriptor in (say, hear, stdio._input, stdio._output):
            os.close(descriptor)
    heard = [m["params"] for m in map(json.loads, lines.splitlines()) if m.get("method") == EVENT]
    (gap,) = [e["gap"] for e in heard if "gap" in e]
    assert len(heard) + gap["to"] - gap["from"] + 1 == 2_000


# -- tools and security ----------------------------------------------------------------------------------


@pytest.mark.req("MGP-13.5")
async def test_each_call_is_started_and_then_completed_or_failed():
    async with subscriber(Plant().server, "tool.*") as (peer, _):
        await peer.call("can")
        await peer.call("fail", {"how": "tool"})
        await peer.call("fail", {"how": "else"})
        heard = [message["params"] for message in peer.heard]
    assert [(e["channel"], e["data"]["tool_name"], e["data"].get("reason"), e["severity"]) for e in heard] == [
        ("tool.started", "can", None, "info"),
        ("tool.completed", "can", None, "info"),
        ("tool.started", "fail", None, "info"),
        ("tool.failed", "fail", "tool_error", "error"),
        ("tool.started", "fail", None, "info"),
        ("tool.failed", "fail", "internal_error", "error"),
    ]
    assert "secret" not in str(heard)
    assert heard[1]["data"]["duration_ms"] >= 0
    assert heard[0]["data"]["trace_id"] == heard[1]["data"]["trace_id"] != heard[2]["data"]["trace_id"]


@pytest.mark.req("MGP-13.5")
async def test_refusals_are_security_events_without_the_arguments():
    policy = AccessPolicy()
    async with subscriber(Plant(access=policy).server, "security.*", who=BOB) as (peer, _):
        await peer.ask("tools/call", {"name": "can", "arguments": {}})
        (denied,) = await events(peer)
        assert (denied["channel"], denied["data"]["tool_name"]) == ("security.access_denied", "can")
        assert denied["severity"] == "warning"
    async with subscriber(Plant().server, "security.*") as (peer, _):
        await peer.ask("tools/call", {"name": "run", "arguments": {"command": "rm -rf /hidden"}})
        (rejected,) = await events(peer)
        assert rejected["channel"] == "security.validation_failed"
        assert "hidden" not in str(rejected["data"])
    async with subscriber(Plant(permissions="deny_all").server, "security.*") as (peer, _):
        await peer.ask("tools/call", {"name": "run", "arguments": {"command": "git status"}})
        assert channels(await events(peer)) == ["security.permission_denied"]


async def test_calls_are_not_watched_unless_somebody_listens():
    plant = Plant()
    audit = plant.server.mgp.audit
    async with speaking(plant.server, SESSION, ["events"]) as peer:
        assert audit.listeners() is None
        await subscribed(peer, "model.*")
        assert audit.listeners() is None
        id = (await subscribed(peer, "tool.*"))["subscription_id"]
        assert audit.listeners() is not None
        await peer.ask("mgp/events/unsubscribe", {"subscription_id": id})
        assert audit.listeners() is None


# -- without a session -----------------------------------------------------------------------------------


async def replayed(peer: Raw, *wanted: str, **more: Any) -> Json:
    reply = await peer.ask("mgp/events/replay", {"channels": list(wanted), **more})
    assert "result" in reply, reply
    return reply["result"]


async def test_without_a_session_subscribing_is_refused_with_the_way_out():
    async with speaking(Plant().server, STATELESS, ["events"]) as peer:
        error = (await peer.ask("mgp/events/subscribe", {"channels": ["*"]}))["error"]
        assert error["code"] == -32601
        assert "mgp/events/replay" in error["message"]


@for_each_row("version", [SESSION, STATELESS])
@for_each_row("extensions", [["events"], ["audit"], []])
async def test_can_says_whether_events_can_be_sent(version: str, extensions: list[str]):
    async with speaking(Plant().server, version, extensions) as peer:
        can = text_of(await peer.call("can"))
    assert can == ("true" if version == SESSION and extensions == ["events"] else "false")


@for_each_row("version", [SESSION, STATELESS])
async def test_the_last_events_can_be_read_from_where_one_was(version: str):
    plant = Plant()
    async with speaking(plant.server, version, ["events"]) as peer:
        empty = await replayed(peer, "model.*", "tool.*", "x")
        assert (empty["events"], empty["gap"], empty["next"]) == ([], False, None)
        assert empty["unsupported"] == ["tool.*", "x"]
        await plant.usage.emit(tokens_used=1)
        await plant.load.emit(1, severity="debug")
        await plant.load.emit(2, severity="error")
        found = await replayed(peer, "*")
        assert [e["data"] for e in found["events"]] == [{"tokens_used": 1, "model": "m"}, 1, 2]
        assert found["next"] == found["events"][-1]["event_id"]
        middle = found["events"][0]["event_id"]
        severe = await replayed(peer, "system.*", since=middle, filter={"min_severity": "warning"})
        assert [e["data"] for e in severe["events"]] == [2]
        nothing = await replayed(peer, "*", since=found["next"])
        assert (nothing["events"], nothing["gap"], nothing["next"]) == ([], False, found["next"])


async def test_a_place_that_is_no_longer_known_is_a_gap():
    plant = Plant()
    async with speaking(plant.server, STATELESS, ["events"]) as peer:
        await plant.load.emit(-1)
        start = (await replayed(peer, "*"))["next"]
        for number in range(WAITING):
            await plant.load.emit(number)
        found = await replayed(peer, "*", since=start)
        assert found["gap"] is True
        assert len(found["events"]) == WAITING
        assert (await replayed(peer, "*", since="forged"))["gap"] is True


@for_each_row("version", [SESSION, STATELESS])
async def test_what_was_for_one_session_is_not_kept(version: str):
    plant = Plant()
    async with speaking(plant.server, version, ["events"]) as peer:
        await peer.call("mine")
        assert (await replayed(peer, "*"))["events"] == []


async def test_a_replay_shows_a_principal_what_concerns_it_alone():
    plant = Plant()
    async with (
        speaking(plant.server, STATELESS, ["events"], who=ALICE) as alice,
        speaking(plant.server, STATELESS, ["events"], who=BOB) as bob,
    ):
        await plant.usage.emit(tokens_used=1, to="alice")
        await plant.usage.emit(tokens_used=2, to="bob")
        await plant.usage.emit(tokens_used=3)
        for peer, expected in ((alice, [1, 3]), (bob, [2, 3])):
            assert [e["data"]["tokens_used"] for e in (await replayed(peer, "*"))["events"]] == expected


# -- neighbours ------------------------------------------------------------------------------------------


async def test_events_of_a_mounted_server_reach_the_subscribers_of_its_parent():
    plant, parent, grandparent = Plant(), Server("parent", "1"), Server("grandparent", "1")
    parent.mount(plant.server, prefix="p")
    grandparent.mount(parent)
    later = plant.server.event_channel("system.later")
    async with subscriber(grandparent, "model.*", "system.*") as (peer, _):
        await plant.usage.emit(tokens_used=1)
        await later.emit(1)
        assert channels(await events(peer)) == ["model.token_usage", "system.later"]


@for_each_row("params", [{}, {"subscription_id": 1, "channel": None}, {"data": [1]}])
async def test_events_and_audits_of_the_peer_do_no_harm(params: Json):
    plant = Plant()
    async with subscriber(plant.server, "model.*") as (peer, _):
        for name in ("event", "audit", "lifecycle", "callback.request"):
            await peer.tell(f"notifications/mgp.{name}", params)
        await peer.call("think", {"tokens": 1})
        assert len(peer.heard) == 1


@pytest.mark.req("MGP-13.3")
async def test_an_event_is_told_once_and_to_a_plain_client_never():
    plant = Plant()
    async with (
        raw(plant.server, SESSION) as plain,
        subscriber(plant.server, "model.token_usage", "model.*", "*") as (peer, _),
    ):
        await plant.usage.emit(tokens_used=1)
        assert len(await events(peer)) == 1
        assert await plain.news() == []
