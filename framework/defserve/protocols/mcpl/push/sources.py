"""MCPL §9: sources of push events. One runs for each session whose host wants its events, or one for all of them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from defserve.binding.functions import name_of, where
from defserve.core.engine import Task
from defserve.core.profile import LONGEST_TRACEBACK
from defserve.core.session import Session
from defserve.errors import PeerError, PeerGone, Refused, UsageError
from defserve.protocols.mcpl.errors import FeatureDisabled
from defserve.protocols.mcpl.extension import CURRENT
from defserve.protocols.mcpl.peers import SPEAKING_TO

if TYPE_CHECKING:
    import logging

    from defserve.protocols.mcpl.feature_sets import FeatureSet

# Seconds before a source that crashed is started again; the last one holds from then on.
RESTARTS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)

Push: TypeAlias = Callable[["FeatureSet", Any, Session | None], Awaitable[None]]
MayRun: TypeAlias = Callable[["FeatureSet", Session], bool]


class Source:
    """An author's async generator function, and what its events belong to."""

    __slots__ = ("feature_set", "function", "per", "_takes_session")

    def __init__(self, feature_set: FeatureSet, function: Callable[..., Any], per: str) -> None:
        self.feature_set, self.function, self.per = feature_set, function, per
        subject = f"events {name_of(function)!r}"
        if per not in ("session", "server"):
            raise UsageError(f"{subject}: per={per!r}", where=where(function), fix='use "session" or "server"')
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


class Running:
    """The sources that run for one session."""

    __slots__ = ("tasks",)

    def __init__(self) -> None:
        self.tasks: dict[Source, Task] = {}


class Sources:
    """Starts and stops them. `push` takes what they yield; `may_run` says whether a session's host wants a set's."""

    def __init__(self, push: Push, may_run: MayRun) -> None:
        self.declared: list[Source] = []
        self.restarts = RESTARTS
        self._push, self._may_run = push, may_run

    def add(self, feature_set: FeatureSet, function: Callable[..., Any], per: str) -> None:
        self.declared.append(Source(feature_set, function, per))

    def follow(self, session: Session) -> None:
        """Let exactly those sources run that the session's host wants now. From any thread."""
        engine = session.engine
        if not engine.ready:
            return
        if not engine.on_loop():
            engine.post(lambda: self.follow(session))
            return
        for source in self.declared:
            if source.per == "session":
                self._switch(source, session, self._may_run(source.feature_set, session))

    def _switch(self, source: Source, session: Session, wanted: bool) -> None:
        tasks = session.local(Running).tasks
        if wanted and source not in tasks:
            tasks[source] = session.engine.spawn(self._run(source, session))
        elif not wanted and source in tasks:
            tasks.pop(source).cancel()

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """While the server lives, so do the sources that belong to all sessions."""
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._run(source, None)) for source in self.declared if source.per == "server"]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def _run(self, source: Source, session: Session | None) -> None:
        # It belongs to no call, whatever this task was begun in.
        CURRENT.set(None)
        SPEAKING_TO.set(session)
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

    async def _sent(self, source: Source, event: Any, session: Session | None) -> bool:
        """Send what was yielded; False when nobody is there any more to yield for."""
        try:
            await self._push(source.feature_set, event, session)
        except (FeatureDisabled, PeerGone):
            return False
        except (PeerError, Refused) as error:
            _log().warning("an event of %s was not delivered: %s", name_of(source.function), error)
        return True


def _log_crash(source: Source, error: Exception) -> None:
    import traceback

    from defserve.redaction import redact_text

    told = redact_text("".join(traceback.format_exception(error)), limit=LONGEST_TRACEBACK, multiline=True)
    _log().error("events %s crashed; it is started again\n%s", name_of(source.function), told)


def _log() -> logging.Logger:
    import logging

    return logging.getLogger("defserve")
