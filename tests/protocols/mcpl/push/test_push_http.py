"""Events over HTTP: they outlive connections, keep their order, and reach only those they are for."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from defserve import Context, Limits, Server
from defserve.auth import Principal, StaticTokens
from defserve.errors import NoBackChannel
from defserve.protocols.mcpl.peers import everyone
from defserve.stores.stream_events import SessionEventStreams
from tests.asgi import Event as SentEvent
from tests.asgi import Exchange, Peer, living
from tests.auth.web import client, post
from tests.protocols.mcpl.hosts import MCPL, Json
from tests.raw import HANDSHAKE, STATELESS, turns

pytestmark = pytest.mark.anyio

SET = "memory.proactive"
OFFER = {"experimental": {"mcpl": MCPL}}
EVENTS = int(os.environ.get("DEFSERVE_EVENTS", "2000"))
CUTS = 10


class WebHost:
    """An MCPL host over HTTP: reads the session's stream, answers what it reads, and loses its connection at will."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.events: list[Json] = []
        self.last: str | None = None
        self._stream: Exchange | None = None
        self._read = 0

    async def listen(self) -> None:
        self._stream, self._read = await self.peer.listen(self.last).started(), 0
        assert self._stream.status == 200

    async def cut(self) -> None:
        """The connection breaks: what is on its way is lost."""
        assert self._stream is not None
        self._stream.leave()
        await self._stream.ended()

    async def take(self, count: int) -> None:
        """Read so many events and answer each."""
        for _ in range(count):
            message = await self._next()
            assert message["method"] == "push/event"
            self.events.append(message["params"])
            reply = {"jsonrpc": "2.0", "id": message["id"], "result": {"accepted": True}}
            answered = await self.peer.post(reply, self.peer.its_headers).started()
            assert answered.status == 202

    async def _next(self) -> Json:
        stream = self._stream
        assert stream is not None
        while True:
            await stream.until(lambda: stream.body.find(b"\n\n", self._read) >= 0)
            end = stream.body.index(b"\n\n", self._read)
            event = SentEvent(stream.body[self._read : end].decode())
            self._read = end + 2
            if event.is_comment:
                continue
            self.last = event.id or self.last
            if event.data and "id" in (message := json.loads(event.data)):
                return message

    @property
    def numbers(self) -> list[int]:
        """The events in the order they came, each once, as a host sees them after de-duplication."""
        return list(dict.fromkeys(int(event["payload"]["content"][0]["text"]) for event in self.events))


async def web_host(app: Any, **options: Any) -> WebHost:
    return WebHost(await Peer(app, HANDSHAKE[-1], OFFER, **options).open())


@pytest.mark.slow
@pytest.mark.req("MCPL-9.4")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", ["source", "pushes"])
async def test_no_event_is_lost_or_doubled_when_the_connection_is_cut(how: str):
    server = Server("clock", "1")
    clock = server.feature_set(SET, "Tick")
    finished = asyncio.Event()

    async def ticks() -> AsyncIterator[str]:
        for number in range(EVENTS):
            yield str(number)
        finished.set()

    if how == "source":
        clock.events(ticks)
    chance = random.Random(7)
    cuts = sorted(chance.sample(range(1, EVENTS), CUTS))
    async with living(server.asgi()) as app:
        host = await web_host(app)
        pushing = [asyncio.create_task(clock.push(str(number))) for number in range(EVENTS)] if how == "pushes" else []
        for start, end in zip([0, *cuts], [*cuts, EVENTS], strict=True):
            await host.listen()
            await host.take(end - start)
            if chance.random() < 0.5:
                await turns()  # what is written meanwhile is lost with the connection
            await host.cut()
        receipts = await asyncio.gather(*pushing)
        assert all(receipt.accepted for receipt in receipts)
        if how == "source":
            await asyncio.wait_for(finished.wait(), 10)
    assert host.numbers == list(range(EVENTS))
    assert len(host.events) == EVENTS
    assert len({event["eventId"] for event in host.events}) == EVENTS


async def test_an_event_waits_for_a_stream_to_be_opened():
    server = Server("clock", "1")
    clock = server.feature_set(SET, "Tick")
    async with living(server.asgi()) as app:
        host = await web_host(app)
        pushing = [asyncio.create_task(clock.push(str(number))) for number in range(3)]
        await turns()
        await host.listen()
        await host.take(3)
        assert all(receipt.accepted for receipt in await asyncio.gather(*pushing))
        assert host.numbers == [0, 1, 2]
        await host.cut()


async def test_an_event_pushed_in_a_call_travels_on_the_stream_of_the_call():
    server = Server("clock", "1")
    clock = server.feature_set(SET, "Tick")

    @server.tool
    async def tick() -> str:
        return str((await clock.push("0")).accepted)

    async with living(server.asgi()) as app:
        host = await web_host(app)
        call = host.peer.begin_call("tick")
        asked = await call.next()
        assert asked["method"] == "push/event"
        await host.peer.answer(asked, {"accepted": True})
        assert (await call.next())["result"]["content"][0]["text"] == "True"
        await call.ended()


ALICE, BOB = Principal("alice"), Principal("bob")


def bearer(token: str) -> Any:
    class Authorized(Peer):
        @property
        def its_headers(self) -> dict[str, str | None]:
            return {**super().its_headers, "authorization": f"Bearer {token}"}

        def post(self, body: Any, headers: Any = None, **more: Any) -> Exchange:
            return super().post(body, {"authorization": f"Bearer {token}", **(headers or {})}, **more)

    return Authorized


@pytest.mark.req("MCPL-9.1")
async def test_two_principals_never_see_each_others_events():
    server = Server("clock", "1", auth=StaticTokens({"a" * 32: ALICE, "b" * 32: BOB}))
    clock = server.feature_set(SET, "Tick", inbox=True)
    alices, bobs = range(0, 20, 2), range(1, 20, 2)

    @clock.events
    async def own(session: Any) -> AsyncIterator[str]:
        for number in alices if session.principal == "alice" else bobs:
            yield str(number)

    async with living(server.asgi()) as app:
        alice = WebHost(await bearer("a" * 32)(app, HANDSHAKE[-1], OFFER).open())
        bob = WebHost(await bearer("b" * 32)(app, HANDSHAKE[-1], OFFER).open())
        pushing = [
            asyncio.create_task(clock.push("100", to="alice")),
            asyncio.create_task(clock.push("101", to="bob")),
            asyncio.create_task(clock.push("200", to=everyone)),
        ]
        for host in (alice, bob):
            await host.listen()
            await host.take(12)
            await host.cut()
        await asyncio.gather(*pushing)
        assert sorted(alice.numbers) == [*alices, 100, 200]
        assert sorted(bob.numbers) == [*bobs, 101, 200]
        # Those who cannot be sent events find their own in the inbox, and what was for everyone.
        reader = bearer("a" * 32)(app, STATELESS, OFFER)
        assert (await clock.push("301", to="carol")).inbox
        reply = await reader.ask("resources/read", {"uri": f"inbox://{SET}"})
        kept = json.loads(reply["result"]["contents"][0]["text"])["events"]
        assert [event["payload"]["content"][0]["text"] for event in kept] == ["200"]


async def test_an_event_that_was_lost_on_its_way_is_sent_again():
    """A client that does not say what it saw last is not given it again by the transport."""
    server = Server("clock", "1", limits=Limits(callback=0.05))
    clock = server.feature_set(SET, "Tick")
    server.mcpl.push.delays = (0.0,) * 5
    async with living(server.asgi()) as app:
        host = await web_host(app)
        await host.listen()
        pushing = asyncio.create_task(clock.push("0", id="evt_0"))
        await turns()
        await host.cut()
        host.last = None
        await host.listen()
        await host.take(1)
        assert (await pushing).accepted
        assert [event["eventId"] for event in host.events] == ["evt_0"]
        await host.cut()


@pytest.mark.slow
async def test_what_was_answered_is_not_kept_for_a_reader_who_might_come_back():
    server = Server("clock", "1")
    clock = server.feature_set(SET, "Tick")
    async with living(server.asgi()) as app:
        host = await web_host(app)
        await host.listen()
        pushing = [asyncio.create_task(clock.push("0" * 1_000)) for number in range(600)]
        await host.take(600)
        await asyncio.gather(*pushing)
        (web,) = app.streamable.sessions
        assert isinstance(web.log.events, SessionEventStreams)
        (stream,) = web.log.events._streams.values()
        assert len(stream.kept) <= web.log.events.events
        await host.cut()


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "2001:db8::1"])
async def test_a_stranger_reads_nobody_s_events_but_those_for_everyone(address: str):
    server = Server("post")
    letters = server.feature_set("post.letters", "Letters", uses=["pushEvents"], inbox=True)

    @letters.tool
    async def arrive() -> str:
        try:
            return (await letters.push("a secret letter")).inbox or "pushed"
        except NoBackChannel:
            return "not kept"

    @letters.tool
    def can(ctx: Context) -> bool:
        return ctx.can("push")

    assert letters.inbox is not None
    with pytest.raises(NoBackChannel):
        await letters.push("named by its address", to=f"anonymous:{address}")
    letters.inbox.store_event({"text": "of an earlier version"}, f"anonymous:{address}")
    async with client(server, address) as one, client(server, address) as other:
        said = (await post(one, None, "tools/call", name="arrive", arguments={})).text
        assert "not kept" in said
        assert '"false"' in (await post(one, None, "tools/call", name="can", arguments={})).text
        await letters.push("for all", to=everyone)
        more = {"mcp-name": "inbox://post.letters"}
        for reader in (one, other):
            found = (await post(reader, None, "resources/read", uri="inbox://post.letters", more=more)).text
            assert "for all" in found and "secret" not in found and "earlier" not in found
