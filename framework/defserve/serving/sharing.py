"""Several processes as one server: sessions, streams and changes that they share."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from defserve.core.composition import Composition
from defserve.core.extension import Extension
from defserve.protocols.mcp.authorization.authorization import Authorization
from defserve.stores.shared.link import SharedLink
from defserve.stores.shared.rates import SharedRates
from defserve.transports.http.streamable import Streamable

if TYPE_CHECKING:
    from defserve.core.session import Session
    from defserve.protocols.mcp.resources.subscriptions import Subscriptions
    from defserve.transports.http.shared.session import SharedSession
    from defserve.transports.http.shared.sessions import SharedSessions

CHANGE = "change"


class Sharing(Extension):
    """Has the link to the other processes. It is up while the server serves, if something is shared through it."""

    name = "sharing"

    def __init__(self, address: str) -> None:
        self.link, self._is_used = SharedLink(address), False

    def follow(self, composition: Composition, subscriptions: Subscriptions, endpoint: Streamable) -> None:
        """Share the sessions of an endpoint, what subscriptions tell them, and what extensions count and keep."""
        changes = SharedChanges(self.link, subscriptions, cast("SharedSessions", endpoint.sessions))
        if not self._is_used:
            subscriptions.share, changes.is_first, self._is_used = changes.publish, True, True
            for extension in composition.extensions:
                if isinstance(extension, Authorization):
                    extension.counter = SharedRates(self.link)

    def lifespan(self) -> AbstractAsyncContextManager[Any]:
        return self._linked()

    @asynccontextmanager
    async def _linked(self) -> AsyncGenerator[None]:
        if not self._is_used:
            yield
            return
        await self.link.start()
        try:
            yield
        finally:
            await self.link.stop()


class SharedChanges:
    """Changes that one process tells all: each session hears of one once, from its owner."""

    def __init__(self, link: SharedLink, subscriptions: Subscriptions, sessions: SharedSessions) -> None:
        self._link, self._subscriptions, self._sessions = link, subscriptions, sessions
        self.is_first = False
        """Whether it also tells those whom only this process knows. A process may have several endpoints."""
        sessions.replay = self._replay
        link.receive(CHANGE, self._on_change)

    def publish(self, what: str, name: str) -> None:
        """From any thread."""
        self._link.publish("t", CHANGE, "k", what, "v", name)

    async def _on_change(self, fields: dict[str, bytes], id: str) -> None:
        # What was subscribed to before the change was told must be known here.
        await self._sessions.refresh()
        self._pass_on(self._sessions.owned(), fields, id)
        if self.is_first and fields["w"].decode() != self._link.worker:
            self._subscriptions.received_elsewhere(fields["k"].decode(), fields["v"].decode())

    def _replay(self, session: SharedSession, news: list[tuple[str, dict[str, bytes]]] | None) -> None:
        if news is None:
            self._subscriptions.missed(cast("Session", session.conversation))
        for id, fields in news or ():
            if fields["t"] == CHANGE.encode():
                self._pass_on([session], fields, id)

    def _pass_on(self, sessions: list[SharedSession], fields: dict[str, bytes], id: str) -> None:
        told = [cast("Session", each.conversation) for each in sessions]
        self._link.delivering = id
        try:
            self._subscriptions.received(fields["k"].decode(), fields["v"].decode(), told)
        finally:
            self._link.delivering = ""


def sharing_of(composition: Composition) -> Sharing | None:
    """What a server shares with other processes, if it does."""
    return next((each for each in composition.extensions if isinstance(each, Sharing)), None)
