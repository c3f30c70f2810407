"""MGP §11.2, §11.4 in memory: states, who hears of them, who may ask for an end, and what becomes of the calls."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve import Limits, Server
from defserve.core.composition import Composition
from defserve.core.service import Phase
from defserve.protocols.mgp.lifecycle import (
    LIFECYCLE_STATE_BY_PHASE,
    LIFECYCLE_TRANSITIONS,
    SHUTDOWN_REASONS,
    IllegalTransition,
    LifecycleState,
    check_transition,
)
from defserve.server import AccessPolicy
from tests.asgi import Peer, last, living, text
from tests.protocols.mgp.callers import ALICE, BOB, LOOPBACK, STRANGER, Trail, code_of, offer, speaking
from tests.raw import ERAS, HANDSHAKE, STATELESS, Json, Raw, text_of, turns, until
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

EVERY_STATE: tuple[LifecycleState, ...] = get_args(LifecycleState)
HANDSHAKEN = HANDSHAKE[-1]
CHANGED = "notifications/mgp.lifecycle"

NO_REASON: tuple[Any, ...] = ("boredom", "", None, 1, ["idle_timeout"], {})
NO_TIME: tuple[Any, ...] = (-1, "1000", None, True, [], {})

# §11.2 as it is drawn.
DRAWN = {
    ("registered", "connecting"),
    ("connecting", "error"),
    ("connecting", "connected"),
    ("connected", "draining"),
    ("draining", "disconnected"),
    ("draining", "restarting"),
    ("error", "restarting"),
    ("restarting", "connected"),
}
# §11.2, §11.5 as they are written: a runtime error, and restarts that do not help.
WRITTEN = {("connected", "error"), ("restarting", "error")}


class World:
    """A server whose calls wait until they are told to finish."""

    def __init__(self, limits: Limits | None = None, **options: Any) -> None:
        self.server = Server("world", "1", limits=limits or Limits(), **options)
        self.go, self.ended = asyncio.Event(), list[str]()

        @self.server.tool
        async def wait() -> str:
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.ended.append("cancelled")
                raise
            return "finished"

        @self.server.tool(timeout=2)
        async def quick() -> str:
            return "quick"


async def shut_down(peer: Raw, **params: Any) -> Json:
    return await peer.ask("mgp/lifecycle/shutdown", params)


async def heard(peer: Raw) -> list[tuple[str, str, str]]:
    """Every change of state a peer was told of after the handshake, up to the end of the conversation."""
    async with asyncio.timeout(10):
        while (line := await peer.link.receive()) is not None:
            peer.heard.append(json.loads(line))
    told = [m["params"] for m in peer.heard if m.get("method") == CHANGED and m["params"]["new_state"] != "connected"]
    return [(params["previous_state"], params["new_state"], params["reason"]) for params in told]


# -- the states ------------------------------------------------------------------------------------------


@pytest.mark.req("MGP-11.2")
def test_the_legal_transitions_are_those_of_the_specification():
    legal = {
        (state, following) for state, all_following in LIFECYCLE_TRANSITIONS.items() for following in all_following
    }
    assert legal == DRAWN | WRITTEN
    assert set(LIFECYCLE_TRANSITIONS) == set(EVERY_STATE) and len(EVERY_STATE) == 7


@pytest.mark.req("MGP-11.2")
@given(st.lists(st.sampled_from(EVERY_STATE), max_size=20))
def test_a_server_goes_where_it_may_and_nowhere_else(wishes: list[LifecycleState]):
    walked: list[LifecycleState] = ["registered"]
    for wish in wishes:
        before = walked[-1]
        if (before, wish) in DRAWN | WRITTEN:
            check_transition(before, wish)
            walked.append(wish)
        else:
            with pytest.raises(IllegalTransition, match=f"{before} cannot become {wish}"):
                check_transition(before, wish)
    # Nobody serves without having connected, and what has ended stays so.
    assert "draining" not in walked or walked.index("connected") < walked.index("draining")
    assert "disconnected" not in walked[:-1]


@pytest.mark.req("MGP-11.2")
@given(st.lists(st.sampled_from(["begin", "ready", "drain", "end", "stop"]), max_size=30))
def test_whatever_runners_do_the_server_only_takes_legal_steps(steps: list[str]):
    server = Server("s", "1")
    service, runners = server.composition.service, list[Any]()
    walked: list[tuple[LifecycleState, LifecycleState]] = []

    def watch(composition: Composition, previous: Phase) -> None:
        walked.append((LIFECYCLE_STATE_BY_PHASE[previous], LIFECYCLE_STATE_BY_PHASE[composition.service.phase]))

    server.composition.phase_watchers = (watch,)
    for step in steps:
        if step == "begin":
            runners.append(list[float]().append)
            service.add_runner(runners[-1])
        elif step == "end" and runners:
            service.remove_runner(runners.pop())
        elif step == "ready":
            service.mark_ready()
        elif step == "drain":
            service.drain()
        elif step == "stop":
            service.stop(1)
    assert set(walked) <= DRAWN
    assert server.composition.draining or service.phase not in ("draining", "stopped")


# -- shutdown --------------------------------------------------------------------------------------------


@pytest.mark.req("MGP-11.4s", "MGP-11.4d", "MGP-11.4n")
async def test_a_shutdown_lets_calls_finish_refuses_new_ones_and_ends_the_conversation():
    world = World()
    async with speaking(world.server, HANDSHAKEN, ["lifecycle"]) as peer:
        running = await peer.begin("tools/call", {"name": "wait"})
        answer = await shut_down(peer, reason="configuration_change", timeout_ms=30_000)
        assert answer["result"] == {"accepted": True, "pending_requests": 1, "estimated_drain_ms": 30_000}
        _connected, told = peer.heard
        assert set(told["params"]) == {"server_id", "previous_state", "new_state", "reason", "timestamp"}
        assert told["params"]["server_id"] == "world" and told["params"]["timestamp"].endswith("Z")
        assert code_of(await peer.ask("tools/call", {"name": "quick"})) == 2001
        world.go.set()
        assert text_of((await peer.reply_to(running))["result"]) == "finished"
        assert await heard(peer) == [
            ("connected", "draining", "configuration_change"),
            ("draining", "disconnected", "configuration_change"),
        ]


@pytest.mark.req("MGP-11.4d", "MGP-11.4n")
async def test_everyone_is_told_before_anything_is_refused():
    world = World()
    async with speaking(world.server, HANDSHAKEN, ["lifecycle"]) as peer:
        running = await peer.begin("tools/call", {"name": "wait"})
        for message in ("mgp/lifecycle/shutdown", "tools/call"):
            await peer.begin(message, {"name": "quick"} if message == "tools/call" else {})
        await turns()
        said = [m.get("method", m.get("error", {}).get("code", "answer")) for m in await peer.news()]
        assert said == [CHANGED, CHANGED, "answer", 2001]
        world.go.set()
        await peer.reply_to(running)


@pytest.mark.req("MGP-11.4d")
async def test_a_drain_ends_at_its_timeout_and_what_did_not_finish_is_told():
    world = World()
    async with speaking(world.server, HANDSHAKEN, ["lifecycle"]) as peer:
        running = await peer.begin("tools/call", {"name": "wait"})
        assert (await shut_down(peer, timeout_ms=50))["result"]["estimated_drain_ms"] == 50
        assert code_of(await peer.reply_to(running)) == 2001
        assert [new for _, new, _ in await heard(peer)] == ["draining", "disconnected"]
        await turns()
        assert world.ended == ["cancelled"]


@pytest.mark.req("MGP-11.4s")
async def test_an_idle_server_has_nothing_to_wait_for():
    async with speaking(World().server, STATELESS, ["lifecycle"]) as peer:
        result = (await shut_down(peer, reason="idle_timeout"))["result"]
        assert (result["accepted"], result["pending_requests"], result["estimated_drain_ms"]) == (True, 0, 0)
        assert await peer.link.receive() is None


@pytest.mark.req("MGP-11.4s")
@for_each_row("version", ERAS)
async def test_a_server_that_is_full_still_hears_a_shutdown(version: str):
    world = World(Limits(in_flight=1, in_flight_total=1))
    async with speaking(world.server, version, ["lifecycle"]) as peer:
        running = await peer.begin("tools/call", {"name": "wait"})
        assert (await shut_down(peer))["result"]["accepted"]
        world.go.set()
        assert text_of((await peer.reply_to(running))["result"]) == "finished"


@pytest.mark.req("MGP-11.4s")
async def test_a_second_shutdown_changes_nothing():
    world = World()
    async with speaking(world.server, HANDSHAKEN, ["lifecycle"]) as peer:
        running = await peer.begin("tools/call", {"name": "wait"})
        await shut_down(peer, reason="resource_limit")
        assert (await shut_down(peer, reason="idle_timeout", timeout_ms=0))["result"]["accepted"]
        await turns()
        world.go.set()
        assert text_of((await peer.reply_to(running))["result"]) == "finished"
        assert {reason for _, _, reason in await heard(peer)} == {"resource_limit"}


@pytest.mark.req("MGP-11.4r")
@for_each_row("reason", SHUTDOWN_REASONS)
async def test_five_reasons_are_taken_and_passed_on(reason: str):
    async with speaking(World().server, HANDSHAKEN, ["lifecycle"]) as peer:
        assert "result" in await shut_down(peer, reason=reason)
        assert [told for _, _, told in await heard(peer)] == [reason, reason]


@pytest.mark.req("MGP-11.4r")
@for_each_row("params", [*({"reason": wrong} for wrong in NO_REASON), *({"timeout_ms": n} for n in NO_TIME)])
async def test_a_wish_that_cannot_be_read_is_refused_and_the_server_goes_on(params: Json):
    async with speaking(World().server, HANDSHAKEN, ["lifecycle"]) as peer:
        assert (await shut_down(peer, **params))["error"]["code"] == -32602
        assert text_of(await peer.call("quick")) == "quick"
        assert [told["params"]["new_state"] for told in await peer.news()] == ["connected"]


@pytest.mark.req("MGP-11.4s")
@for_each_row("version", ERAS)
@for_each_row("who", [LOOPBACK, STRANGER, BOB], ids=lambda who: who.id)
async def test_who_is_neither_local_nor_an_admin_cannot_end_the_server(who: Any, version: str):
    trail = Trail()
    world = World(access=AccessPolicy("opt-out", admin_scopes=["tools:admin"]), audit=trail)
    async with speaking(world.server, version, ["lifecycle"], who=who) as peer:
        assert code_of(await shut_down(peer, reason="operator_request")) == 1001
        assert text_of(await peer.call("quick")) == "quick"
    assert [event["result"] for event in trail.events if event["event_type"].endswith("shutdown_refused")] == [
        "BLOCKED"
    ]


@pytest.mark.req("MGP-11.4s")
async def test_a_token_without_a_policy_is_no_admin_and_an_admin_of_the_policy_is_one():
    async with speaking(World().server, HANDSHAKEN, ["lifecycle"], who=ALICE) as peer:
        assert code_of(await shut_down(peer)) == 1001
    trail = Trail()
    world = World(access=AccessPolicy("opt-in", admin_scopes=["tools:admin"]), audit=trail)
    async with speaking(world.server, HANDSHAKEN, ["lifecycle"], who=ALICE) as peer:
        assert (await shut_down(peer, reason="idle_timeout"))["result"]["accepted"]
    assert trail.told("SERVER_DISCONNECTED") == [("SERVER_DISCONNECTED", {"reason": "idle_timeout"})]
    assert trail.events[0]["actor"]["id"] == "alice"


@pytest.mark.req("MGP-11.2", "MGP-11.4n")
async def test_who_has_opened_a_conversation_is_told_that_it_is_connected():
    world = World()
    async with speaking(world.server, HANDSHAKEN, ["lifecycle"]) as peer, speaking(world.server, HANDSHAKEN) as plain:
        (told,) = await peer.news()
        assert told["method"] == CHANGED
        assert told["params"] == {
            "server_id": "world",
            "previous_state": "connecting",
            "new_state": "connected",
            "reason": "operator_request",
            "timestamp": told["params"]["timestamp"],
        }
        assert await plain.news() == []


# -- a kernel says so with a notification -----------------------------------------------------------------

DRAIN: Json = {"server_id": "world", "previous_state": "connected", "new_state": "draining", "timestamp": "x"}


@pytest.mark.req("MGP-11.4d", "MGP-11.4n")
@for_each_row("reason", SHUTDOWN_REASONS)
async def test_a_kernel_that_announces_draining_is_obeyed(reason: str):
    world = World()
    async with speaking(world.server, HANDSHAKEN, ["lifecycle"]) as peer:
        running = await peer.begin("tools/call", {"name": "wait"})
        await peer.tell(CHANGED, {**DRAIN, "reason": reason})
        assert code_of(await peer.ask("tools/call", {"name": "quick"})) == 2001
        world.go.set()
        assert text_of((await peer.reply_to(running))["result"]) == "finished"
        assert await heard(peer) == [("connected", "draining", reason), ("draining", "disconnected", reason)]


@for_each_row(
    "params",
    [
        {},
        {"new_state": "draining", "server_id": "another"},
        {"new_state": "draining", "server_id": 7},
        {"new_state": "draining", "reason": "because"},
        {"new_state": ["draining"]},
        {"new_state": "connected"},
        {"new_state": "disconnected"},
    ],
)
async def test_an_announcement_that_is_not_for_this_server_or_not_to_drain_changes_nothing(params: Json):
    async with speaking(World().server, HANDSHAKEN, ["lifecycle"]) as peer:
        await peer.tell(CHANGED, params)
        assert text_of(await peer.call("quick")) == "quick"


@for_each_row("who", [LOOPBACK, STRANGER, BOB], ids=lambda who: who.id)
async def test_the_announcement_of_who_may_not_end_the_server_is_ignored(who: Any):
    trail = Trail()
    world = World(access=AccessPolicy("opt-out", admin_scopes=["tools:admin"]), audit=trail)
    async with speaking(world.server, HANDSHAKEN, ["lifecycle"], who=who) as peer:
        await peer.tell(CHANGED, DRAIN)
        assert text_of(await peer.call("quick")) == "quick"
    async with speaking(world.server, HANDSHAKEN, who=ALICE) as peer:  # an admin that did not negotiate it
        await peer.tell(CHANGED, DRAIN)
        assert text_of(await peer.call("quick")) == "quick"
    async with speaking(world.server, HANDSHAKEN, ["lifecycle"], who=ALICE) as peer:
        await peer.tell(CHANGED, DRAIN)
        assert code_of(await peer.ask("tools/call", {"name": "quick"})) == 2001


async def test_over_http_a_stranger_in_a_session_cannot_end_the_server():
    world = World()
    async with living(world.server.asgi()) as app:
        peer = await Peer(app, HANDSHAKEN, offer(HANDSHAKEN, "lifecycle")).open()
        await peer.tell(CHANGED, DRAIN)
        assert text(await peer.ask("tools/call", {"name": "quick"})) == "quick"


@pytest.mark.req("MGP-11.4n")
async def test_only_those_who_negotiated_it_are_told():
    world = World()
    async with AsyncExitStack() as stack:
        plain, streams, listening = [
            await stack.enter_async_context(speaking(world.server, HANDSHAKEN, names))
            for names in ((), ("streaming",), ("lifecycle",))
        ]
        assert "method not found" in (await shut_down(plain))["error"]["message"].lower()
        assert "method not found" in (await shut_down(streams))["error"]["message"].lower()
        await shut_down(listening, reason="kernel_shutdown")
        assert await heard(plain) == await heard(streams) == []
        # The server ends as a whole, with everyone it talks to.
        assert [new for _, new, _ in await heard(listening)] == ["draining", "disconnected"]


@pytest.mark.req("MGP-11.4n")
async def test_over_http_the_stream_of_a_session_carries_the_news_and_then_ends():
    world = World()
    async with living(world.server.asgi()) as app:
        peer = await Peer(app, HANDSHAKEN, offer(HANDSHAKEN, "lifecycle")).open()
        stream = await peer.listen().started()
        running = peer.begin_call("wait")
        await until(lambda: world.server.composition.running == 1)
        world.server.composition.service.stop(10)
        assert (await stream.next())["params"]["new_state"] == "connected"
        assert (await stream.next())["params"]["new_state"] == "draining"
        assert code_of(await peer.ask("tools/call", {"name": "quick"})) == 2001
        world.go.set()
        assert text(last(await running.ended())) == "finished"
        await stream.ended()
        assert [m["params"]["new_state"] for m in stream.messages] == ["connected", "draining", "disconnected"]
        assert stream.complete
        # Whoever runs the app decides when it goes; until then nothing is served.
        assert code_of(await peer.ask("tools/call", {"name": "quick"})) == 2001


async def test_a_server_that_was_shut_down_can_be_served_again():
    world = World()
    for _ in range(2):
        async with speaking(world.server, HANDSHAKEN, ["lifecycle"]) as peer:
            assert text_of(await peer.call("quick")) == "quick"
            await shut_down(peer)
            assert [new for _, new, _ in await heard(peer)] == ["draining", "disconnected"]
