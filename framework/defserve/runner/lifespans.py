"""The lifespans of a server on one event loop, and the end of the calls that need them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

from defserve.core.call import Call
from defserve.core.composition import Composition
from defserve.errors import Draining
from defserve.runner.connection import Connection
from defserve.runner.engine import AsyncioEngine


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

    async def end(self, seconds: float) -> None:
        """Leave the lifespans after the last cancelled call, because its clean-up may need them."""
        if self.engine.tasks:
            await asyncio.wait(self.engine.tasks, timeout=seconds)
        try:
            await self.stack.aclose()
        finally:
            await self.engine.close()


@asynccontextmanager
async def entered_lifespans(composition: Composition) -> AsyncGenerator[AsyncioEngine]:
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
            await lifetime.end(composition.limits.farewell)


async def drain_connection(connection: Connection, seconds: float) -> None:
    """Let the calls of a connection finish, as `finish_calls` does."""
    await finish_calls(connection.calls(), seconds)


async def finish_queued(connection: Connection, seconds: float) -> None:
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
