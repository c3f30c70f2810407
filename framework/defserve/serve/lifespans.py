"""The lifespans of a server on one event loop, and the shortest way to serve on one: in memory, in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

from defserve.core.call import Call
from defserve.core.composition import Composition
from defserve.errors import Draining
from defserve.serve.asyncio_engine import AsyncioEngine
from defserve.serve.connection import Connection


class LoopLifetime:
    """The engine of one loop and the lifespans entered there. All that serve the composition on this loop share it."""

    def __init__(self, engine: AsyncioEngine) -> None:
        self.engine, self.users = engine, 0
        self.stack = AsyncExitStack()
        self.starting = asyncio.Lock()
        self.started = False

    async def start(self, composition: Composition) -> None:
        async with self.starting:
            if self.started:
                return
            try:
                for extension in composition.extensions:
                    if (lifespan := extension.lifespan()) is not None:
                        await self.stack.enter_async_context(lifespan)
            except BaseException:
                await self.stack.aclose()
                raise
            self.started = True

    async def exit_lifespans(self, seconds: float) -> None:
        """Leave the lifespans after the last cancelled call, because its clean-up may need them."""
        if self.engine.tasks:
            await asyncio.wait(self.engine.tasks, timeout=seconds)
        try:
            await self.stack.aclose()
        finally:
            await self.engine.close()


@asynccontextmanager
async def enter_lifespans(composition: Composition) -> AsyncGenerator[AsyncioEngine]:
    """Enter every extension's lifespan, once on this loop, however often it is served there. Yields the engine."""
    loop = asyncio.get_running_loop()
    lifetime = composition.lives.get(loop)
    if not isinstance(lifetime, LoopLifetime):
        lifetime = composition.lives[loop] = LoopLifetime(AsyncioEngine(composition.limits.threads))
    lifetime.users += 1
    try:
        await lifetime.start(composition)
        yield lifetime.engine
    finally:
        lifetime.users -= 1
        if lifetime.users == 0:
            del composition.lives[loop]
            await lifetime.exit_lifespans(composition.limits.farewell)


async def drain_connection(connection: Connection, seconds: float) -> None:
    """Let the calls of a connection finish, as `finish_calls` does."""
    await finish_calls(connection.calls(), seconds)


async def finish_queued_calls(connection: Connection, seconds: float) -> None:
    """Let the calls finish that waited for room. They were sent in time, and only the others' number held them up."""
    await wait_for_calls([call for call in connection.calls() if call.queued is not None], seconds)


async def finish_calls(calls: list[Call], seconds: float) -> None:
    """Let calls finish. Endless calls are stopped; calls that are not done in time are refused."""
    for call in calls:
        if call.endless:
            call.stop()
    await wait_for_calls(calls, seconds)
    for call in calls:
        if not call.settled:
            call.session.fail(call, Draining("the server is shutting down"))
            call.stop()


async def close_connection(connection: Connection, seconds: float) -> None:
    """Close a connection. The calls that it cancels have `seconds` to clean up."""
    calls = connection.calls()
    connection.close()
    await asyncio.sleep(0)  # a call that was just received runs its first step
    await wait_for_calls(calls, seconds)


async def wait_for_calls(calls: list[Call], seconds: float) -> None:
    """Wait until the tasks of calls are done, for at most so many seconds."""
    tasks = [cast("asyncio.Task[Any]", call.task) for call in calls if call.task is not None]
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)


# -- Serving in memory: a connection whose other end is in the same process.


@asynccontextmanager
async def connect_in_memory(composition: Composition) -> AsyncGenerator[MemoryPeer]:
    """Serve one peer on this loop. Yields the peer's link to the server."""
    loop, service = asyncio.get_running_loop(), composition.service
    transport = MemoryTransport(composition.limits.message)

    def stop(seconds: float) -> None:
        loop.call_soon_threadsafe(lambda: engine.spawn(finish(seconds)))

    async def finish(seconds: float) -> None:
        await drain_connection(connection, seconds)
        service.remove_runner(stop)
        connection.close()

    async with enter_lifespans(composition) as engine:
        connection = Connection(composition, transport)
        connection.attach(engine)
        service.add_runner(stop)
        transport.start(loop, connection.feed_frames, connection.close)
        service.mark_ready()
        try:
            yield transport.peer
        finally:
            service.remove_runner(stop)
            await close_connection(connection, composition.limits.farewell)


# -- Two ends in one process: what one sends, the other receives.


class MemoryTransport:
    """The server's end. `peer` is the client's: a link with `send`, `receive` and `aclose`."""

    queued = 0

    def __init__(self, limit: int) -> None:
        self.closed, self.limit = False, limit
        self.peer = MemoryPeer(self)
        self._received: Callable[[list[bytes | None]], None] | None = None
        self._ended: Callable[[], None] | None = None

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        received: Callable[[list[bytes | None]], None],
        ended: Callable[[], None],
    ) -> None:
        self._received, self._ended = received, ended
        self.peer.attach(loop)

    def send(self, message: bytes, taken: Callable[[], None] | None = None) -> None:
        if not self.closed:
            self.peer.deliver(message, taken)
        elif taken is not None:
            taken()

    def flush(self) -> None:
        """Nothing is held back."""

    def pause(self) -> None:
        self.peer.hold_senders()

    def resume(self) -> None:
        self.peer.release_senders()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.peer.deliver(None)

    def feed_message(self, message: bytes) -> None:
        """The peer sent a message."""
        if self._received is not None and not self.closed:
            self._received([message if len(message) <= self.limit else None])

    def disconnect(self) -> None:
        """The peer has left."""
        if self._ended is not None and not self.closed:
            self._ended()


class MemoryPeer:
    """The client's end."""

    def __init__(self, server: MemoryTransport) -> None:
        self._server = server
        self._queue: asyncio.Queue[tuple[bytes | None, Callable[[], None] | None]] | None = None
        self._left = False
        self._free: asyncio.Event | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        import asyncio

        self._queue, self._free = asyncio.Queue(), asyncio.Event()
        self._free.set()

    def deliver(self, message: bytes | None, taken: Callable[[], None] | None = None) -> None:
        if self._queue is not None and not self._left:
            self._queue.put_nowait((message, taken))
        elif taken is not None:
            taken()

    def hold_senders(self) -> None:
        """Let senders wait."""
        if self._free is not None:
            self._free.clear()

    def release_senders(self) -> None:
        if self._free is not None:
            self._free.set()

    async def send(self, message: bytes) -> None:
        """Send a message, when the server reads."""
        if self._free is not None and not self._free.is_set():
            await self._free.wait()
        self._server.feed_message(message)

    async def receive(self) -> bytes | None:
        """The next message, or None when the server has gone."""
        if self._queue is None or self._left:
            return None
        message, taken = await self._queue.get()
        if taken is not None:
            taken()
        self._left = message is None
        return message

    async def aclose(self) -> None:
        """Leave. What was not received is dropped."""
        self._left = True
        while self._queue is not None and not self._queue.empty():
            _, taken = self._queue.get_nowait()
            if taken is not None:
                taken()
        self._server.disconnect()
