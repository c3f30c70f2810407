"""News that sessions are told in every process: each session by the process that owns it, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from defserve.base.redaction import get_logger
from defserve.stores.shared.worker_link import SharedStoreLink, UpdateDelivery, make_preceding_id

if TYPE_CHECKING:
    from defserve.core.session import Session
    from defserve.protocols.mcp.subscriptions import Subscriptions
    from defserve.serve.http.redis_log import RedisLog
    from defserve.serve.http.redis_sessions import RedisLogs


UpdateFields: TypeAlias = dict[str, bytes]
KIND, WORKER = "t", "w"

log = get_logger()


class UpdateHandlers(NamedTuple):
    """What is done with one kind of news.

    `deliver` tells sessions. `others` tells those whom only this process knows; it gets whether the news is its own.
    `lost` tells a session that news is no longer known. `concerned` are the sessions of this process that news may
    concern, or None for all of them.
    """

    deliver: Callable[[list[Session], UpdateFields], None]
    others: Callable[[UpdateFields, bool], None]
    lost: Callable[[Session], None]
    concerned: Callable[[UpdateFields], list[Session] | None]


class SessionUpdatePublisher:
    """The news for the sessions of one endpoint."""

    def __init__(self, link: SharedStoreLink, sessions: RedisLogs, *, is_first: bool) -> None:
        self.link, self.sessions, self.is_first = link, sessions, is_first
        self._kinds: dict[str, UpdateHandlers] = {}
        self.missed: dict[str, Callable[[Session, UpdateFields, str], asyncio.Task[None]]] = {}
        """Kinds of news that this process handles by itself. A session is told those that it has missed."""
        sessions.ownership.replay = self._replay

    def add_update_handlers(self, name: str, kind: UpdateHandlers) -> None:
        self._kinds[name] = kind
        self.link.add_receiver(name, self._on_news)

    def publish(self, name: str, **fields: str) -> bool:
        """Send news to all processes, this one too. From any thread. False: there is no way to them."""
        return self.link.publish_update(KIND, name, *(part for pair in fields.items() for part in pair))

    def find_session(self, id: str) -> Session | None:
        """The session of this id, if this process knows it."""
        found = self.sessions.find_log(id)
        return found.conversation if found is not None else None

    def record_with_delivery(self, session: Session, field: str, value: str) -> bool:
        """Keep this in a session's record together with the message that is delivered next.

        False: that message was delivered already, by another process, and is to be left out.
        """
        delivery, shared = self.link.delivering, cast("RedisLog", session.sharer)
        if delivery is None or delivery.skip_if_delivered(shared.id, shared.delivered):
            return False
        delivery.record = field, value
        return True

    async def _on_news(self, fields: UpdateFields, id: str) -> None:
        # What was subscribed to before the news was published must be known here.
        await self.sessions.reload_stale_owned_logs()
        kind, behind = self._kinds[fields[KIND].decode()], self.sessions.list_owned_logs_behind()
        for session in behind:  # in its order: a session forgets what comes too late
            session.defer_update(id, fields)
        told = [each for each in self._find_concerned_sessions(kind, fields) if each not in behind]
        if told:
            self._deliver(kind, told, fields, id)
        if self.is_first:
            kind.others(fields, fields[WORKER].decode() == self.link.worker)

    def _find_concerned_sessions(self, kind: UpdateHandlers, fields: UpdateFields) -> list[RedisLog]:
        """The sessions of this endpoint that this process owns, and that news may concern."""
        found = kind.concerned(fields)
        if found is None:
            return self.sessions.list_owned_logs()
        shared = [cast("RedisLog", each.sharer) for each in found if each.sharer is not None]
        return [each for each in shared if each.is_owner and self.sessions.find_log(each.id) is each]

    def _replay(self, session: RedisLog, news: list[tuple[str, UpdateFields]] | None) -> dict[str, asyncio.Task[None]]:
        left = dict[str, asyncio.Task[None]]()
        if news is None:
            for kind in self._kinds.values():
                kind.lost(session.conversation)
        for id, fields in news or ():
            name = fields[KIND].decode()
            if (kind := self._kinds.get(name)) is not None:
                self._deliver(kind, [session], fields, id)
            elif (tell := self.missed.get(name)) is not None:
                left[id] = tell(session.conversation, fields, make_preceding_id(id))
        return left

    def _deliver(self, kind: UpdateHandlers, sessions: Iterable[RedisLog], fields: UpdateFields, id: str) -> None:
        told = [each.conversation for each in sessions]
        try:
            self._deliver_news(kind, told, fields, id)
        except Exception:
            log.exception("news could not be told to all sessions at once")
            for each in told:  # one that fails must not keep it from the others; who was told is not told twice
                try:
                    self._deliver_news(kind, [each], fields, id)
                except Exception:
                    log.exception("news could not be told to a session")

    def _deliver_news(self, kind: UpdateHandlers, sessions: list[Session], fields: UpdateFields, id: str) -> None:
        self.link.delivering = UpdateDelivery(id)
        try:
            kind.deliver(sessions, fields)
        finally:
            self.link.delivering = None


# -- Changes of lists and resources, told by one process, reach the sessions and listeners of all.


CHANGE = "change"


def share_list_changes(news: SessionUpdatePublisher, subscriptions: Subscriptions) -> None:
    """Tell the sessions of all processes of changes."""

    def deliver(sessions: list[Session], fields: UpdateFields) -> None:
        subscriptions.deliver_shared_change(*_change(fields), sessions)

    def find_concerned(fields: UpdateFields) -> list[Session] | None:
        return subscriptions.find_concerned_sessions(*_change(fields))

    def others(fields: UpdateFields, is_own: bool) -> None:
        if not is_own:
            subscriptions.deliver_change_locally(*_change(fields))

    news.add_update_handlers(
        CHANGE, UpdateHandlers(deliver, others, subscriptions.tell_session_everything_changed, find_concerned)
    )
    if news.is_first:
        subscriptions.share = lambda what, name: news.publish(CHANGE, k=what, v=name)


def _change(fields: UpdateFields) -> tuple[str, str]:
    return fields["k"].decode(), fields["v"].decode()
