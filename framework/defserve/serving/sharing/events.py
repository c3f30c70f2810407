"""MGP's events: emitted in one process, they reach the subscribers of all, and all remember the latest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from defserve.serving.sharing.news import Fields, NewsKind, SessionNews

if TYPE_CHECKING:
    from defserve.core.session import Session
    from defserve.protocols.mgp.events.channel import MgpEvent
    from defserve.protocols.mgp.extension import MGP

EVENT = "mgp event"
MOST_BYTES = 1024 * 1024
"""A larger event stays in its process."""


def share_events(news: SessionNews, mgp: MGP) -> None:
    """Send events to the sessions of all processes. The section of `mgp` is made when it is first needed."""

    def share(event: MgpEvent) -> bool:
        to = event.audience_written()
        return to is not None and event.size <= MOST_BYTES and news.publish(EVENT, e=json.dumps([*event.written(), to]))

    def read(fields: Fields) -> MgpEvent | None:
        return mgp.events.remembered(json.loads(fields["e"]), news.session)

    def note(session: Session, name: str, value: str) -> bool:
        return news.note(session, f"kept:{mgp.name}:{name}", value)

    def deliver(sessions: list[Session], fields: Fields) -> None:
        if (event := read(fields)) is not None:
            mgp.events.received(event, sessions, note)

    def concerned(fields: Fields) -> list[Session] | None:
        return None

    def others(fields: Fields, is_own: bool) -> None:
        if (event := read(fields)) is not None:
            mgp.events.received_elsewhere(event, is_own=is_own)

    def lost(session: Session) -> None:
        """The next event shows the gap by its number."""

    news.add(EVENT, NewsKind(deliver, others, lost, concerned))
    if news.is_first:
        mgp.share_events = share
