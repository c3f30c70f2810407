"""Which process tells a session news: one that lives. A new one begins with what the one before has left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from defserve.base.concurrency import BackgroundTasks
from defserve.serve.http.shared.session import SharedSession
from defserve.stores.shared import lua_scripts
from defserve.stores.shared.worker_link import SharedStoreLink

# Seconds before a new owner looks again whether it knows everything, and how often it looks for its own news.
PAUSE, TRIES = 0.01, 100

SessionUpdates = list[tuple[str, dict[str, bytes]]]
Replay = Callable[[SharedSession, SessionUpdates | None], Mapping[str, "asyncio.Task[None]"]]


class SessionOwnership:
    """`heard` says how often others have said something about a session that is being loaded.

    `replay` tells a session news that it has missed, and gives the work that goes on, by the id of its news. For None
    it is no longer known what was missed. Whoever delivers news sets it.
    """

    def __init__(
        self, link: SharedStoreLink, heard: Mapping[str, int], forget: Callable[[SharedSession], None]
    ) -> None:
        self._link, self._heard, self._forget = link, heard, forget
        self._tasks = BackgroundTasks()
        self.replay: Replay = lambda session, news: {}

    async def claim_if_orphaned(self, session: SharedSession, owner: str, is_alive: bool) -> None:
        """Become the owner of a session whose own is dead. A claim whose reply got lost is repeated."""
        if session.owner == self._link.worker == owner:
            return
        claimed = None
        if owner == self._link.worker or not is_alive:
            if self._link.is_following_updates:
                claimed = await self._link.run_script(lua_scripts.CLAIM_SESSION, session.id, self._link.worker)
            else:
                session.schedule_reload()
        if claimed:
            since, claim = (each.decode() for each in claimed)
            await self.take_over(session, since, claim)
        elif session.owner != self._link.worker:
            session.owner = owner

    async def take_over(self, session: SharedSession, since: str, claim: str) -> None:
        """This process is the new owner of a session: from here on it tells it news, beginning with what it missed."""
        found, news, is_all = await self._read_session(session, since)
        tried = 0
        # What this process has said to everyone before it reads that itself reaches its new session by news alone.
        while not is_all or (not self._link.has_read_own_updates and tried < TRIES):
            await asyncio.sleep(PAUSE)
            found, news, is_all = await self._read_session(session, since)
            tried += 1
        if found is None:
            self._forget(session)
            return
        session.owner, session.claim = self._link.worker, claim
        try:
            session.restore(decode_session_record(found))  # what only an owner does begins
            left = self.replay(session, news)
        except BaseException:
            session.owner = ""  # so that the claim is made again, and what was missed is told then
            raise
        if left:
            self._tasks.start(self._caught_up(session.id, claim, left))
        else:
            self._link.queue_script(lua_scripts.END_CATCH_UP, session.id, claim)

    async def _read_session(self, session: SharedSession, since: str) -> tuple[Any, SessionUpdates | None, bool]:
        """The record of a session, what it has missed, and whether nothing has come meanwhile."""
        if session.has_changed:
            await session.save_changes()
        if not self._link.is_written:
            await session.wait_until_written()  # what was changed here must not be read as it was before
        before = self._state(session)
        # What was subscribed to before news was published must be known when it is told.
        found = await self._link.run_script(lua_scripts.LOAD_SESSION, session.id)
        news = await self._link.read_updates_after(since)
        return found, news, before == self._state(session) and not session.has_changed

    def _state(self, session: SharedSession) -> tuple[object, ...]:
        return self._link.last_read_update_id, self._heard.get(session.id), session.changes

    async def _caught_up(self, session: str, claim: str, left: Mapping[str, asyncio.Task[None]]) -> None:
        """Say how far it is: if this process dies, the next one goes on from there."""
        for id, task in left.items():
            await asyncio.wait((task,))
            self._link.queue_script(lua_scripts.MARK_DELIVERED, session, claim, id)
        self._link.queue_script(lua_scripts.END_CATCH_UP, session, claim)

    def close(self) -> None:
        self._tasks.cancel()


def decode_session_record(found: Any) -> dict[str, str]:
    """The record that `LOAD` has found."""
    texts = [each.decode() for each in found[0]]
    return dict(zip(texts[::2], texts[1::2], strict=True))
