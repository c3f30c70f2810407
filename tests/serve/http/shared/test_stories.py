"""Workers that are killed, deaf, slow or cut off, in any order: who subscribed hears of each change once.

Hypothesis chooses what happens and in which order. The workers are whole apps with a real Redis. What a scheduler would
do to them is done to their links: what one reads and writes is held back, what it asks fails, or its reply gets lost.
The same story is told of one worker whose sessions are in memory. No such trouble befalls it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, suppress
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from defserve.errors import Refused
from defserve.serve.http import redis_log, redis_sessions
from defserve.stores.shared import worker_link as links
from defserve.stores.store import StoreUnavailable
from tests.asgi import Exchange, Peer, living
from tests.effort import examples
from tests.serve.http.shared.group import Worker, sessions
from tests.stores.redis_server import RedisServer
from tests.waiting import until

WORKERS, CLIENTS, STEPS = 3, 2, 30
UPDATED = "notifications/resources/updated"
SECONDS = 20


class Trouble:
    """What a worker's link can and cannot do now."""

    def __init__(self, link: Any) -> None:
        self.hears, self.writes, self.is_dead = asyncio.Event(), asyncio.Event(), False
        self.refuses = self.loses_reply = False
        self._read, self._send, self._run = link._read_streams, link._writes._send, link.run_script
        link._read_streams, link._writes._send, link.run_script = self.read, self.send, self.run

    async def read(self, *args: Any) -> Any:
        await self.hears.wait()
        found = await self._read(*args)
        await self.hears.wait()
        return found

    async def send(self, batch: Any) -> Any:
        await self.writes.wait()
        return await self._send(batch)

    async def run(self, *args: Any) -> Any:
        refuses, self.refuses = self.refuses, False
        loses, self.loses_reply = self.loses_reply, False
        if refuses or self.is_dead:
            raise StoreUnavailable("The store cannot be reached")
        reply = await self._run(*args)
        if loses or self.is_dead:
            raise StoreUnavailable("The store cannot be reached")
        return reply

    def end(self) -> None:
        self.hears.set()
        self.writes.set()
        self.refuses = self.loses_reply = False


class Listener:
    """One session. `heard` has each change it was told of, with the id of its event."""

    def __init__(self, id: str) -> None:
        self.id, self.uris = id, list[str]()
        self.heard: list[tuple[str, str]] = []
        self.last: str | None = None
        self._stream: Exchange | None = None

    def at(self, worker: Worker) -> Peer:
        peer = Peer(worker.app)
        peer.session = self.id
        return peer

    def take(self) -> None:
        """What has arrived."""
        for event in self._stream.events if self._stream is not None else ():
            if event.id is None or event.id in {id for id, _ in self.heard}:
                continue
            self.last = event.id
            if event.data and event.message["method"] == UPDATED:
                self.heard.append((event.id, event.message["params"]["uri"]))

    async def listen(self, worker: Worker) -> None:
        await self.leave()
        stream = self.at(worker).listen(self.last)
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                await stream.started()
        self._stream = stream

    async def leave(self) -> None:
        self.take()
        if self._stream is not None:
            self._stream.leave()
            assert self._stream.task is not None
            self._stream.task.cancel()  # its worker may wait for a store that does not answer
            await asyncio.gather(self._stream.task, return_exceptions=True)
        self._stream = None


def note(name: str) -> str:
    return name


class Story:
    def __init__(self, address: str | None, stack: AsyncExitStack) -> None:
        self._address, self._stack = address, stack
        self.workers: list[Worker] = []
        self.troubles: list[Trouble] = []
        self.listeners: list[Listener] = []
        self.told, self.perhaps_told = set[str](), set[str]()
        self._named = 0

    async def begin(self) -> None:
        for place in range(WORKERS if self._address is not None else 1):
            await self.start(place)
        for place in range(CLIENTS):
            peer = await Peer(self.workers[place].app).open()
            self.listeners.append(Listener(str(peer.session)))

    async def start(self, place: int, *, is_deaf: bool = False) -> None:
        worker = Worker(f"w{place}", self._address)
        worker.server.resource("memo://{name}")(note)
        worker.app = worker.server.asgi()
        if self._address is None:
            await self._stack.enter_async_context(living(worker.app))
            self.workers = [worker] * WORKERS
            return
        trouble = Trouble(worker.link)
        trouble.writes.set()
        if is_deaf:
            follow = worker.link._follow

            async def follow_later(redis: Any) -> None:
                await trouble.hears.wait()
                await follow(redis)

            worker.link._follow = follow_later
        else:
            trouble.hears.set()
        await self._stack.enter_async_context(living(worker.app))
        await until(lambda: is_deaf or worker.link.is_up)
        self.workers[place : place + 1], self.troubles[place : place + 1] = [worker], [trouble]

    # -- steps -------------------------------------------------------------------------------------------

    async def kill(self, place: int, other: int) -> None:
        """A worker dies, and another one takes its place. It may take a moment until that one receives anything."""
        self.troubles[place].is_dead = True
        await self.workers[place].kill()
        await self.start(place, is_deaf=other < 2)

    async def subscribe(self, place: int, other: int) -> None:
        self._named += 1
        listener, uri = self.listeners[other % CLIENTS], f"memo://{self._named}"
        asked = listener.at(self.workers[place]).begin_request("resources/subscribe", {"uri": uri})
        if (await asked.ended()).status == 200:
            listener.uris.append(uri)

    async def tell(self, place: int, other: int) -> None:
        """Each change is told once."""
        untold = [uri for uri in self.listeners[other % CLIENTS].uris if uri not in self.told | self.perhaps_told]
        if untold:
            self.workers[place].server.resource_updated(untold[0])
            is_written = self._address is None or await self.workers[place].link.wait_until_written(0.1)
            (self.told if is_written else self.perhaps_told).add(untold[0])

    async def listen(self, place: int, other: int) -> None:
        await self.listeners[other % CLIENTS].listen(self.workers[place])

    async def call(self, place: int, other: int) -> None:
        await self.listeners[other % CLIENTS].at(self.workers[place]).begin_call("who").ended()

    async def forget(self, place: int, other: int) -> None:
        """A worker forgets its sessions, as if they had been idle there."""
        for each in list(sessions(self.workers[place])):
            each.evict()

    async def beat(self, place: int, other: int) -> None:
        for renewed in self.workers[place].link.renewed if self._address is not None else ():
            renewed()

    async def be_deaf(self, place: int, other: int) -> None:
        self.troubles[place].hears.clear()

    async def hear(self, place: int, other: int) -> None:
        self.troubles[place].hears.set()

    async def be_slow(self, place: int, other: int) -> None:
        self.troubles[place].writes.clear()

    async def write(self, place: int, other: int) -> None:
        self.troubles[place].writes.set()

    async def refuse(self, place: int, other: int) -> None:
        self.troubles[place].refuses = True

    async def lose_reply(self, place: int, other: int) -> None:
        self.troubles[place].loses_reply = True

    # -- the end -----------------------------------------------------------------------------------------

    async def check(self) -> None:
        """The trouble ends. All hear what they have missed, once and in order."""
        for trouble in self.troubles:
            trouble.end()
        async with asyncio.timeout(SECONDS):
            for number, listener in enumerate(self.listeners):
                await listener.listen(self.workers[number])
            while not all(self._has_heard_all(each) for each in self.listeners):
                for place in range(WORKERS):
                    await self.beat(place, 0)
                await asyncio.sleep(0.02)
        for listener in self.listeners:
            await listener.leave()
            assert max(Counter(uri for _, uri in listener.heard).values(), default=1) == 1, "told twice"
            places = [int(id.rpartition("-")[2]) for id, _ in listener.heard]
            assert places == sorted(places), "told out of order"

    def _has_heard_all(self, listener: Listener) -> bool:
        listener.take()
        return self.told & {*listener.uris} <= {uri for _, uri in listener.heard}


ORDINARY = [Story.subscribe, Story.tell, Story.tell, Story.call, Story.listen, Story.beat]
FAULTS = [
    Story.kill,
    Story.be_deaf,
    Story.be_slow,
    Story.refuse,
    Story.lose_reply,
    Story.forget,
    Story.hear,
    Story.write,
]
steps = st.one_of(st.sampled_from(ORDINARY), st.sampled_from(FAULTS))
stories = st.lists(st.tuples(steps, st.integers(0, WORKERS - 1), st.integers(0, 3)), min_size=5, max_size=STEPS)


async def tell_story(address: str | None, steps: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncExitStack() as stack:
        story = Story(address, stack)
        monkeypatch.setattr(redis_log, "WRITE_TIMEOUT", SECONDS)
        await story.begin()
        monkeypatch.setattr(redis_log, "WRITE_TIMEOUT", 0.1)
        for step, place, other in steps if address is not None else (each for each in steps if each[0] in ORDINARY):
            with suppress(Refused):
                await step(story, place, other)
        try:
            await story.check()
        finally:
            for each in story.listeners:
                await each.leave()


@pytest.mark.slow
@pytest.mark.parametrize("log", ["memory", "redis"])
@settings(
    max_examples=examples(12),
    # A story that fails waits to its end: to find a shorter one would take an hour.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=stories)
def test_who_subscribed_hears_of_each_change_once(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch, log: str, steps: list[Any]
):
    monkeypatch.setattr(links, "START_TIMEOUT", 0.02)
    monkeypatch.setattr(links.SharedStoreLink, "can_trust_leases", True)
    monkeypatch.setattr(redis_sessions, "TRIES", 5)
    address = f"{redis.address}?prefix={uuid4().hex}:" if log == "redis" else None
    asyncio.run(tell_story(address, steps, monkeypatch))
