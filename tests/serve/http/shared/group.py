"""The workers of one server, as apps of this process, and a client that chooses where each request goes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import pytest

from defserve import Context, Limits, Server
from tests.asgi import Exchange, Peer, living


async def becomes(found: Callable[[], Awaitable[Any]], wanted: Any) -> None:
    """Until it gives this: the other process knows it."""
    async with asyncio.timeout(20):
        while await found() != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Worker:
    """One of the processes. `steps` lets `count` go on; `go` lets `wait` end."""

    def __init__(self, name: str, address: str | None, auth: Any = None, options: Any = None, **limits: Any) -> None:
        self.name = name
        made = {"secret": "s" * 32, "limits": Limits(**limits), "auth": auth, **(options or {})}
        self.server = Server("web", "1", shared=address, **made)
        self.extras = self.server.feature_set("extras", "More")
        self.steps: asyncio.Queue[int] = asyncio.Queue()
        self.go = asyncio.Event()
        self.ended: list[str] = []
        self.app: Any = None
        for tool in (self.who, self.wait, self.count, self.asks, self.speaks):
            self.server.tool(tool)
        self.extras.tool(self.extra)
        self.server.resource("memo://a")(self.memo)

    async def who(self) -> str:
        """Which process answers."""
        return self.name

    async def wait(self) -> str:
        try:
            await self.go.wait()
        finally:
            self.ended.append("wait")
        return f"{self.name} waited"

    async def count(self, total: int, ctx: Context) -> str:
        number = 0
        while number < total:
            for _ in range(min(await self.steps.get(), total - number)):
                ctx.log.info(str(number))
                number += 1
        return f"{total} counted"

    async def asks(self, ctx: Context) -> str:
        return f"{self.name} heard {await ctx.ask('your name?', str)}"

    async def speaks(self, ctx: Context) -> str:
        ctx.log.debug("a detail")
        return "spoken"

    async def extra(self) -> str:
        return "more"

    async def memo(self) -> str:
        return "a"

    async def kill(self) -> None:
        """Its connection to the others ends at once, and its lease with it, as if the process had died."""
        left = set(self.link._tasks)
        while left:  # redis-py sometimes takes a cancellation for itself
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=0.05)
        for key in ("lease:", "mail:"):
            await self.link._redis.delete(f"{self.link._prefix}{key}{self.link.worker}")
        self.link.is_up = False

    async def lose_lease(self) -> None:
        """It lives, and the others think that it is dead."""
        beating = self.link._tasks[-1]
        beating.cancel()
        await asyncio.wait((beating,))
        await self.link._redis.delete(f"{self.link._prefix}lease:{self.link.worker}")

    @property
    def link(self) -> Any:
        return self.app.streamable.logs.link

    @property
    def known(self) -> set[str]:
        return {session.id for session in self.app.streamable.sessions}


class Group:
    """Processes that share a Redis at `address`; without one a single process, which answers to all names."""

    def __init__(self, address: str | None, stack: AsyncExitStack) -> None:
        self.address, self._stack = address or "", stack
        self.workers: dict[str, Worker] = {}
        self._lives: dict[str, AsyncExitStack] = {}

    async def start(self, name: str, *, declare: Callable[[Server], None] | None = None, **limits: Any) -> Worker:
        if self.workers and not self.address:
            self.workers[name] = next(iter(self.workers.values()))
            return self.workers[name]
        worker = self.workers[name] = Worker(name, self.address or None, **limits)
        if declare is not None:
            declare(worker.server)
        self._lives[name] = AsyncExitStack()
        self._stack.push_async_callback(self._lives[name].aclose)
        worker.app = await self._lives[name].enter_async_context(living(worker.server.asgi()))
        return worker

    async def stop(self, name: str) -> None:
        """As by SIGTERM, when there is no time left to drain."""
        await self._lives[name].aclose()

    def __getitem__(self, name: str) -> Worker:
        return self.workers[name]

    async def client(self, at: str = "one", **more: Any) -> Client:
        return await Client(self, at, **more).opened()


class Client:
    """One session, whose requests go to any of the workers: `client.at("two").call(…)`."""

    def __init__(self, group: Group, at: str, token: str | None = None, **more: Any) -> None:
        self._group, self._more, self._token = group, more, token
        self._peers: dict[str, Peer] = {}
        self._first, self._last_id = at, 1000

    async def opened(self) -> Client:
        await self.at(self._first).open()
        return self

    async def knows(self, at: str, condition: Callable[[Any], bool]) -> None:
        """Until a worker that is asked knows this of the session."""
        async with asyncio.timeout(20):
            while True:
                await self.at(at).call("who")
                if condition(log(self._group[at], self)):
                    return

    @property
    def session(self) -> str:
        found = self.at(self._first).session
        assert found is not None
        return found

    def at(self, name: str) -> Peer:
        if name not in self._peers:
            peer = self._peers[name] = Peer(self._group[name].app, **self._more)
            peer.token = self._token
            if name != self._first:
                peer.session = self._peers[self._first].session
            peer._last_id = 1000 * len(self._peers)  # ids of one session are its own
        return self._peers[name]


def sessions(worker: Worker) -> Any:
    return worker.app.streamable.sessions


def logs(worker: Worker) -> Any:
    return worker.app.streamable.logs


def session(worker: Worker, client: Client) -> Any:
    return next(each for each in sessions(worker) if each.id == client.session)


def log(worker: Worker, client: Client) -> Any:
    return session(worker, client).log


async def leave(exchange: Exchange) -> None:
    exchange.leave()
    await exchange.ended()


@contextmanager
def held_back(patch: pytest.MonkeyPatch, link: Any) -> Generator[None]:
    """Inside, what is written waits. What is asked is answered."""
    gate, real = asyncio.Event(), link._writes._send

    async def send(batch: Any) -> Any:
        await gate.wait()
        return await real(batch)

    patch.setattr(link._writes, "_send", send)
    yield
    gate.set()
