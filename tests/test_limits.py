from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from defserve import Context, Limits, Server, ToolError, UsageError
from defserve.auth.rates import Rate
from defserve.code_mode.run import CodeMode
from defserve.errors import LimitExceeded
from defserve.proxying.mounted import RestartPolicy
from defserve.sandbox.job import SandboxLimits
from defserve.server import EventSettings
from tests.raw import ERAS, STATELESS, Json, Raw, raw, text_of, turns, until
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

eras = pytest.mark.parametrize("version", ERAS)


def shop(limits: Limits) -> Server:
    server = Server("s", "1", limits=limits)

    @server.tool
    async def wait() -> str:
        await asyncio.Event().wait()
        return "never"

    @server.tool
    async def big(size: int) -> str:
        return "x" * size

    @server.tool
    async def echo(value: Any = None) -> str:
        return "fine"

    @server.tool
    async def ask(ctx: Context) -> bool:
        return await ctx.confirm("Sure?")

    @server.resource("x://{name}")
    def thing(name: str) -> str:
        return name

    return server


def refusal(reply: Json) -> Json:
    """The details of a refusal, whichever shape the method gives it."""
    if "error" in reply:
        return {**reply["error"]["data"], "said": reply["error"]["message"]}
    assert reply["result"]["isError"] is True
    return {**reply["result"]["_meta"]["dev.defserve/error"], "said": text_of(reply["result"])}


async def still_works(peer: Raw) -> None:
    assert text_of(await peer.call("echo")) == "fine"


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


# A limit: what goes past it, and what the refusal says.
CALLS: dict[str, tuple[Limits, Json, str]] = {
    "response": (Limits(response=10_000), {"name": "big", "arguments": {"size": 10_001}}, "larger than 10000 bytes"),
}


@eras
@pytest.mark.parametrize("limit", CALLS)
async def test_a_call_past_a_limit_is_refused_with_its_name(version: str, limit: str):
    limits, params, said = CALLS[limit]
    async with raw(shop(limits), version) as peer:
        refused = refusal(await peer.ask("tools/call", params))
        assert (refused["error_type"], refused["limit"]) == ("limit_exceeded", limit)
        assert said in refused["said"]
        await still_works(peer)


@eras
@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
async def test_an_error_may_not_be_larger_than_a_result(version: str, method: str):
    server = shop(Limits(response=10_000))

    def rant() -> str:
        raise ToolError("x" * 10_001)

    server.add_tool(rant)
    server.add_prompt(rant)
    async with raw(server, version) as peer:
        reply = await peer.ask(method, {"name": "rant"})
        # The text of an error beside a result is cut, so it never comes near the limit.
        told = "larger than 10000 bytes" if method == "tools/call" else "(10001 characters)"
        assert len(str(reply)) < 5000 and told in str(reply)


@eras
@pytest.mark.parametrize("limit", ["in_flight", "in_flight_total"])
async def test_a_call_too_many_waits_while_the_others_go_on(version: str, limit: str):
    async with raw(shop(Limits(**{limit: 2})), version) as peer:
        ids = [await peer.begin("tools/call", {"name": "wait"}) for _ in range(2)]
        waiting = await peer.begin("tools/call", {"name": "echo", "arguments": {"value": 1}})
        if version != STATELESS:
            assert (await peer.ask("ping"))["result"] == {}
        assert await peer.news() == []
        await peer.tell("notifications/cancelled", {"requestId": ids[0]})
        assert "result" in await peer.reply_to(waiting)
        await still_works(peer)


async def test_calls_in_flight_are_counted_for_each_session_and_for_the_server():
    server = shop(Limits(in_flight=1, in_flight_total=2))
    async with raw(server) as one, raw(server) as other, raw(server) as third:
        first = await one.begin("tools/call", {"name": "wait"})
        second = await one.begin("tools/call", {"name": "echo", "arguments": {"value": 1}})
        await still_works(other)
        await other.begin("tools/call", {"name": "wait"})
        waiting = await third.begin("tools/call", {"name": "echo", "arguments": {"value": 1}})
        assert await one.news() == await third.news() == []
        await one.tell("notifications/cancelled", {"requestId": first})
        assert "result" in await third.reply_to(waiting)
        assert "result" in await one.reply_to(second)


@for_each_row("limit", ["sessions", "sessions_per_principal"])
async def test_a_session_too_many_is_refused_and_one_that_left_makes_room(limit: str):
    server = shop(Limits(**{limit: 1}))
    async with raw(server):
        with pytest.raises(LimitExceeded) as refused:
            async with raw(server):
                pass
        assert refused.value.data["limit"] == limit
    async with raw(server) as peer:
        await still_works(peer)


# Frames that are refused before anything is made of them.
FRAMES: dict[str, tuple[Limits, Callable[[], Any], str]] = {
    "message": (Limits(message=1_000), lambda: "x" * 1_000, "longer than 1000 bytes"),
    "depth": (Limits(depth=20), lambda: nested(30), "deep"),
    "keys": (Limits(keys=50), lambda: {str(n): n for n in range(60)}, "50"),
}


@eras
@for_each_row("limit", FRAMES)
async def test_a_message_past_a_limit_is_refused_and_the_connection_stays_usable(version: str, limit: str):
    limits, value, said = FRAMES[limit]
    async with raw(shop(limits), version) as peer:
        params = peer.with_meta({"name": "echo", "arguments": {"value": value()}})
        await peer.send({"jsonrpc": "2.0", "id": 900, "method": "tools/call", "params": params})
        reply = json.loads(await peer.link.receive())
        assert reply["error"]["code"] == -32600
        assert said in reply["error"]["message"]
        # The id could be read unless the message was too long to read at all.
        assert reply.get("id") == (None if limit == "message" else 900)
        await still_works(peer)


async def test_after_too_many_broken_messages_in_a_row_there_is_silence_until_a_good_one():
    async with raw(shop(Limits(malformed_in_a_row=2)), "2025-11-25") as peer:
        for _ in range(5):
            await peer.send(b"{")
        assert len(await peer.news()) == 2
        assert (await peer.ask("ping"))["result"] == {}
        await peer.send(b"{")
        assert len(await peer.news()) == 1


@eras
async def test_subscriptions_too_many_are_refused(version: str):
    async with raw(shop(Limits(subscriptions=1)), version) as peer:
        if version == STATELESS:
            filter = {"resourceSubscriptions": ["x://a", "x://b"]}
            reply = await peer.ask("subscriptions/listen", {"notifications": filter})
        else:
            assert (await peer.ask("resources/subscribe", {"uri": "x://a"}))["result"] == {}
            reply = await peer.ask("resources/subscribe", {"uri": "x://b"})
            assert (await peer.ask("resources/subscribe", {"uri": "x://a"}))["result"] == {}
        assert refusal(reply)["limit"] == "subscriptions"


@eras
async def test_subscriptions_that_are_too_long_are_refused(version: str):
    server = Server("long", "1")

    @server.resource("x://{name}")
    async def any_name(name: str) -> str:
        return name

    async with raw(server, version) as peer:
        uris = [f"x://{number}-" + "y" * 1_000 for number in range(300)]
        if version == STATELESS:
            reply = await peer.ask("subscriptions/listen", {"notifications": {"resourceSubscriptions": uris}})
        else:
            replies = [await peer.ask("resources/subscribe", {"uri": uri}) for uri in uris]
            assert all(reply["result"] == {} for reply in replies[:250])
            reply = replies[-1]
        assert refusal(reply)["limit"] == "subscriptions"


@pytest.mark.req("MCP-4.4t")
async def test_a_question_nobody_answers_times_out_and_is_taken_back():
    async with raw(shop(Limits(question=0.01)), "2025-11-25", {"elicitation": {}}) as peer:
        result = await peer.call("ask")
        question, withdrawal = peer.heard
        assert result["isError"] is True
        assert refusal({"result": result})["error_type"] == "peer_timeout"
        assert withdrawal["method"] == "notifications/cancelled"
        assert withdrawal["params"]["requestId"] == question["id"]


async def test_no_more_threads_work_than_allowed():
    server, release, running, most = Server("s", "1", limits=Limits(threads=2)), threading.Event(), set[int](), [0]

    @server.tool
    def block() -> None:
        running.add(threading.get_ident())
        most[0] = max(most[0], len(running))
        release.wait(10)
        running.discard(threading.get_ident())

    async with raw(server) as peer:
        ids = [await peer.begin("tools/call", {"name": "block"}) for _ in range(4)]
        await until(lambda: len(running) == 2)
        release.set()
        for id in ids:
            await peer.reply_to(id)
        assert most == [2]


DECLARED: dict[str, tuple[Limits, dict[str, Any], str]] = {
    "tool_max": (Limits(tool_max=10), {"timeout": 11}, "timeout=11 is longer than the 10 s allowed"),
    "description": (Limits(description=10), {"description": "x" * 11}, "longer than 10 characters"),
}


@for_each_row("limit", DECLARED)
def test_a_declaration_past_a_limit_is_refused_at_once(limit: str):
    limits, options, said = DECLARED[limit]
    with pytest.raises(UsageError, match=said) as refused:
        Server("s", "1", limits=limits).add_tool(turns, **options)
    assert f"Limits({limit}=" in refused.value.fix


@for_each_row("name", [field.name for field in fields(Limits)])
@for_each_row("value", [0, -1, "5", float("inf"), float("nan")])
def test_a_limit_that_would_allow_nothing_is_refused(name: str, value: Any):
    with pytest.raises(UsageError, match=rf"Limits\({name}={value!r}\) must be positive"):
        Limits(**{name: value})


@for_each_row(
    ("options", "name"),
    [
        *((SandboxLimits, name) for name in ("seconds", "cpu_seconds", "memory_bytes", "output_bytes")),
        *((CodeMode, name) for name in ("seconds", "memory_bytes", "calls")),
        *((EventSettings, name) for name in ("max_age", "max_events", "webhook_ttl")),
        *((RestartPolicy, name) for name in ("window", "base", "cap")),
        *((Rate, name) for name in ("per_second", "burst")),
    ],
)
@for_each_row("value", [-1, float("inf"), float("nan"), -float("inf")])
def test_an_option_that_is_no_amount_is_refused_where_it_is_given(options: Any, name: str, value: float):
    with pytest.raises(UsageError):
        options(**{name: value})


def test_limits_are_frozen():
    with pytest.raises(FrozenInstanceError):
        Limits().page = 1  # type: ignore[misc]
