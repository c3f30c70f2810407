"""Several processes as one server: the link to the others, and what they share beside their sessions.

How it works: a feature that nobody shares knows nothing of it. It has a field for who counts, keeps or passes on for
all processes, and the field is None. `shared_news.py` brings changes to sessions, `shared_features.py` connects MGP's
and MCPL's features; each is imported if it is used.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

from defserve.core.composition import Composition
from defserve.core.extension import Extension
from defserve.protocols.mcp.authorization import Authorization
from defserve.protocols.mgp.extension import MGP
from defserve.serve.http.streamable import StreamableEndpoint
from defserve.server.shared_news import SessionUpdatePublisher, share_list_changes
from defserve.stores.identity import NAMESPACE_VARIABLE as NAMESPACE_VARIABLE
from defserve.stores.shared.shared_tables import SharedRates
from defserve.stores.shared.worker_link import SharedStoreLink

if TYPE_CHECKING:
    from defserve.protocols.mcp.subscriptions import Subscriptions
    from defserve.protocols.mcpl.extension import MCPL
    from defserve.serve.http.redis_sessions import RedisLogs
    from defserve.stores.identity import ServerIdentity


log = logging.getLogger("defserve")


class ProcessSharing(Extension):
    """The link is up while the server serves, if something is shared through it."""

    name = "sharing"

    def __init__(self, address: str, identity: ServerIdentity) -> None:
        self.link, self._identity, self._is_used = SharedStoreLink(address, identity), identity, False

    def share_endpoint(
        self, composition: Composition, subscriptions: Subscriptions, endpoint: StreamableEndpoint
    ) -> None:
        """Share the sessions of an endpoint, what they are told, and what extensions count and keep."""
        # A process may have several endpoints. Only the first one tells those whom only this process knows.
        news = SessionUpdatePublisher(self.link, cast("RedisLogs", endpoint.logs), is_first=not self._is_used)
        share_list_changes(news, subscriptions)
        for extension in composition.extensions:
            if isinstance(extension, Authorization):
                extension.counter = SharedRates(self.link)
            elif isinstance(extension, MGP):
                self._share_security(news, extension, subscriptions)
            elif extension.name == "mcpl" and news.is_first:
                from defserve.server.shared_features import SharedHosts

                SharedHosts(news, cast("MCPL", extension))
        self._is_used = True

    def _share_security(self, news: SessionUpdatePublisher, mgp: MGP, subscriptions: Subscriptions) -> None:
        from defserve.server.shared_features import share_events

        share_events(news, mgp)
        if mgp.access is not None and news.is_first:
            from defserve.server.shared_features import SharedAccessEntries

            SharedAccessEntries(self.link, mgp.access.policy, subscriptions)

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        if not self._is_used:
            yield
            return
        if self._identity.source == "name":
            log.warning(
                "what this server shares through Redis is kept under its name, %s; a second deployment of that name in "
                "the same Redis needs a namespace of its own: set %s, or Server(namespace=…)",
                *(self._identity.value, NAMESPACE_VARIABLE),
            )
        await self.link.start()
        try:
            yield
        finally:
            await self.link.stop()


def find_sharing(composition: Composition) -> ProcessSharing | None:
    """What a server shares with other processes, if it does."""
    return next((each for each in composition.extensions if isinstance(each, ProcessSharing)), None)
