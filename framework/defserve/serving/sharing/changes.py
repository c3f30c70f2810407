"""Changes of lists and resources, told by one process, reach the sessions and listeners of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from defserve.serving.sharing.news import Fields, NewsKind, SessionNews

if TYPE_CHECKING:
    from defserve.core.session import Session
    from defserve.protocols.mcp.resources.subscriptions import Subscriptions

CHANGE = "change"


def share_changes(news: SessionNews, subscriptions: Subscriptions) -> None:
    """Tell the sessions of all processes of changes."""

    def share(what: str, name: str) -> None:
        news.publish(CHANGE, k=what, v=name)

    def deliver(sessions: list[Session], fields: Fields) -> None:
        subscriptions.received(*_change(fields), sessions)

    def concerned(fields: Fields) -> list[Session] | None:
        return subscriptions.concerned(*_change(fields))

    def others(fields: Fields, is_own: bool) -> None:
        if not is_own:
            subscriptions.received_elsewhere(*_change(fields))

    news.add(CHANGE, NewsKind(deliver, others, subscriptions.missed, concerned))
    if news.is_first:
        subscriptions.share = share


def _change(fields: Fields) -> tuple[str, str]:
    return fields["k"].decode(), fields["v"].decode()
