"""MCPL's hosts in other processes: those of a principal are found, and what is for everyone reaches them."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

from defserve.errors import Refused
from defserve.serving.sharing.news import KIND, WORKER, Fields, SessionNews
from defserve.stores.shared.once import SharedOnce, Work

if TYPE_CHECKING:
    from defserve.core.session import Session
    from defserve.protocols.mcpl.extension import MCPL

VERB = "mcpl"
MOST_BYTES = 4 * 1024 * 1024
"""What is longer stays in its process."""
MOST_TASKS = 4096


class SharedHosts:
    """The hosts that other processes serve."""

    def __init__(self, news: SessionNews, mcpl: MCPL) -> None:
        self._news, self._mcpl = news, mcpl
        self._tasks: set[asyncio.Task[None]] = set()
        self._once = SharedOnce(news.link)
        news.link.receive(VERB, self._on_verb)
        news.missed[VERB] = self._receive
        mcpl.server.others = self

    async def find(self, principal: str) -> None:
        """Get to know the sessions of a principal. While the store is away, only those are known that were."""
        if self._news.link.is_on_loop and self._news.link.is_up:
            try:
                await self._news.sessions.load_all(principal)
            except Refused as error:
                logging.getLogger("defserve").warning("sessions of %s cannot be looked for: %s", principal, error)

    async def once(self, session: Session, key: str, work: Work) -> str:
        """What came of `work`, which one process does for this session and key.

        Raises TimedOut if another one does it, and its host has not answered in the time that a host has.
        """
        if session.sharer is None:
            return (await work())[0]
        limits = session.composition.limits
        return await self._once.run(f"{session.sharer.id}\n{key}", limits.idle, work, limits.callback)

    def publish(self, verb: str, value: Any) -> None:
        """Have the other processes do this for the sessions that they own."""
        written = json.dumps(value)
        if len(written) > MOST_BYTES:
            logging.getLogger("defserve").warning("%s: too long to be told to other processes", verb)
        else:
            self._news.link.publish(KIND, VERB, "v", verb, "d", written)

    def _on_verb(self, fields: Fields, id: str) -> None:
        if fields[WORKER].decode() == self._news.link.worker:
            return
        if len(self._tasks) >= MOST_TASKS:
            logging.getLogger("defserve").warning(
                "what another process says to everyone is lost: hosts have not answered %d others", MOST_TASKS
            )
        else:
            self._receive(None, fields, self._news.link.handled_news)

    def _receive(self, only: Session | None, fields: Fields, before: str) -> asyncio.Task[None]:
        """Tell one session, or all that this process owns. A new owner may tell again what the one before has told.

        Hosts know events and messages by their ids.
        """
        # The next news must not wait for hosts that answer slowly.
        task = asyncio.create_task(self._mcpl.received(fields["v"].decode(), json.loads(fields["d"]), only))
        self._tasks.add(task)
        self._news.link.unfinished[task] = before
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._news.link.unfinished.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logging.getLogger("defserve").warning("what another process says to everyone is lost: %s", error)
