"""MCPL §9: sources of push events. A source runs for each session whose host wants it, or once for everyone."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from defserve.binding.functions import name_of, where
from defserve.core.engine import Task
from defserve.core.profile import LONGEST_TRACEBACK
from defserve.core.session import Session
from defserve.errors import PeerError, PeerGone, Refused, UsageError
from defserve.protocols.mcpl.current import CURRENT, SOURCE_SESSION
from defserve.protocols.mcpl.errors import FeatureDisabled
from defserve.protocols.mcpl.peers import is_ours

if TYPE_CHECKING:
    from defserve.protocols.mcpl.feature import Feature

# Seconds before a crashed source is started again; the last value repeats.
RESTARTS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)

Push: TypeAlias = Callable[["Feature", Any, Session | None], Awaitable[None]]
MayRun: TypeAlias = Callable[["Feature", Session], bool]


class EventSource:
    """An author's async generator function, its feature set, and whether it runs per session or per server."""

    __slots__ = ("feature_set", "function", "per", "_takes_session")

    def __init__(self, feature_set: Feature, function: Callable[..., Any], per: str) -> None:
        self.feature_set, self.function, self.per = feature_set, function, per
        subject = f"events {name_of(function)!r}"
        if per not in ("session", "server"):
            raise UsageError(
                f"{subject}: per={per!r} is not possible", where=where(function), fix='use "session" or "server"'
            )
        if not inspect.isasyncgenfunction(function):
            raise UsageError(
                f"{subject} is not an async generator", where=where(function), fix="write async def … with yield in it"
            )
        required = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
        if len(required) > (1 if per == "session" else 0):
            raise UsageError(
                f"{subject} takes {len(required)} arguments",
                where=where(function),
                fix="take none, or the session that a source per session runs for",
            )
        self._takes_session = bool(required)

    def begin(self, session: Session | None) -> AsyncGenerator[Any, None]:
        return self.function(session) if self._takes_session else self.function()


class RunningSources:
    """The sources that run for one session."""

    __slots__ = ("tasks",)

    def __init__(self) -> None:
        self.tasks: dict[EventSource, Task] = {}


class EventSources:
    """Starts and stops sources. `push` sends what they yield; `may_run` tells if a session's host wants a set."""

    def __init__(self, push: Push, may_run: MayRun) -> None:
        self.declared: list[EventSource] = []
        self.restarts = RESTARTS
        self._push, self._may_run = push, may_run

    def follow(self, session: Session) -> None:
        """Start and stop sources, so that exactly those that the session's host wants now run. From any thread."""
        engine = session.engine
        if not engine.ready:
            return
        if not engine.on_loop():
            engine.post(lambda: self.follow(session))
            return
        tasks = session.local(RunningSources).tasks
        for source in self.declared:
            wanted = source.per == "session" and is_ours(session) and self._may_run(source.feature_set, session)
            if wanted and source not in tasks:
                tasks[source] = engine.spawn(self._run(source, session))
            elif not wanted and source in tasks:
                tasks.pop(source).cancel()

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Runs the sources per server."""
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._run(source, None)) for source in self.declared if source.per == "server"]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def _run(self, source: EventSource, session: Session | None) -> None:
        # A source belongs to no call, even if this task was started in one.
        CURRENT.set(None)
        SOURCE_SESSION.set(session)
        crashes = 0
        while True:
            try:
                async with aclosing(source.begin(session)) as events:
                    async for event in events:
                        crashes = 0
                        if not await self._sent(source, event, session):
                            return
                return
            except Exception as error:
                _log_crash(source, error)
            await asyncio.sleep(self.restarts[min(crashes, len(self.restarts) - 1)])
            crashes += 1

    async def _sent(self, source: EventSource, event: Any, session: Session | None) -> bool:
        """Send an event. False if the host has left or has disabled the set."""
        try:
            await self._push(source.feature_set, event, session)
        except (FeatureDisabled, PeerGone):
            return False
        except (PeerError, Refused) as error:
            logging.getLogger("defserve").warning(
                "an event of %s was not delivered: %s", name_of(source.function), error
            )
        return True


def _log_crash(source: EventSource, error: Exception) -> None:
    import traceback

    from defserve.redaction import redact_text

    told = redact_text("".join(traceback.format_exception(error)), limit=LONGEST_TRACEBACK, multiline=True)
    logging.getLogger("defserve").error("events %s crashed; it is started again\n%s", name_of(source.function), told)
