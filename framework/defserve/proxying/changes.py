"""What a backend tells by itself: that its lists have changed, or a resource that somebody wants to hear of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Hashable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from defserve.base.background import BackgroundTasks
from defserve.core.call import Call
from defserve.core.identity import PeerIdentity, may_act_for
from defserve.errors import DefserveError, PeerError
from defserve.host.fields import Json, object_of
from defserve.host.listening import KINDS as NEWS_KINDS
from defserve.proxying import failures
from defserve.proxying.catalogue.catalogue import BackendCatalogue
from defserve.proxying.catalogue.listing import KINDS
from defserve.proxying.conversations.channel import Channel
from defserve.proxying.conversations.conversations import Conversations
from defserve.proxying.conversations.fronts import Front, front_of
from defserve.proxying.mounted import MountedServer
from defserve.proxying.states import BackendState
from defserve.proxying.watching import SHARED, Watching

if TYPE_CHECKING:
    from defserve.core.session import Session
    from defserve.protocols.mcp.resources.subscriptions import Subscriptions

REOPEN_SECONDS: Final = 1.0
SKILLS_SECONDS: Final = 5.0
"""How old a list of skills may be."""

LIFECYCLE: Final = "notifications/mgp.lifecycle"

# A notification of a backend, and the lists that it says have changed.
CHANGES: Final[Mapping[str, tuple[str, ...]]] = {
    "notifications/tools/list_changed": ("tools",),
    "notifications/prompts/list_changed": ("prompts",),
    "notifications/resources/list_changed": ("resources", "templates", "skills"),
}


class Changes:
    """Listens to the conversations with one backend. `subscriptions` tells the fronts."""

    def __init__(
        self,
        server: MountedServer,
        state: BackendState,
        conversations: Conversations,
        catalogue: BackendCatalogue,
        subscriptions: Subscriptions,
    ) -> None:
        self._server, self._state, self._conversations = server, state, conversations
        self._catalogue, self._subscriptions = catalogue, subscriptions
        self._watching = Watching(conversations.of, self._watch_group)
        self._skills_read = 0.0
        self._tasks = BackgroundTasks()

    def stop(self) -> None:
        """The backend ends."""
        self._tasks.cancel()

    async def listen(self, main: Channel) -> None:
        """Have it tell what changes, and ask again for what its fronts want to hear of."""
        await self._want_changes(main)
        await self._watching.repeat(main, SHARED)

    async def listen_for(self, channel: Channel, front: Front) -> None:
        """The same in the conversation of a front."""
        await self._want_changes(channel)
        await self._watching.repeat(channel, front.key)

    def heard(self, channel: Channel, method: str, params: Json) -> None:
        """A notification came that belongs to no call."""
        if (kinds := CHANGES.get(method)) is not None:
            self._catalogue.refresh_soon(channel, kinds)
        elif method == "notifications/resources/updated" and isinstance(params.get("uri"), str):
            self._updated(channel, params["uri"])
        elif method == LIFECYCLE and self._server.on_lifecycle is not None:
            self._server.on_lifecycle(params)

    def lost(self, front: Front | None) -> None:
        """The conversation of a front has ended by itself."""
        if front is not None and self._watching.watches(front):
            self._tasks.start(self._reopen(front))

    def left(self, session: Session) -> None:
        """A front has left."""
        conversations = self._conversations
        is_forgotten = self._watching.forget(lambda front: front.session is session)
        # A conversation of its own ends with it. In one that is shared, the backend must be told.
        if is_forgotten and conversations.per == "shared" and conversations.main is not None:
            self._tasks.start(self._watching.settle(conversations.main, SHARED))

    # -- skills ------------------------------------------------------------------------------------------

    def skills_were_read(self) -> None:
        self._skills_read = time.monotonic()

    async def read_skills(self, within: float) -> None:
        """Read its skills again, if they were not read a moment ago: no notification says that they have changed."""
        main, is_old = self._conversations.main, time.monotonic() >= self._skills_read + SKILLS_SECONDS
        is_offered = KINDS["skills"].offered(self._server.capabilities)
        if not is_offered or main is None or self._state.now != "connected" or not is_old:
            return
        self.skills_were_read()
        with suppress(PeerError, TimeoutError):
            async with asyncio.timeout(within):
                await self._catalogue.refresh(main, ("skills",))

    # -- resources ---------------------------------------------------------------------------------------

    async def watch_resources(self, call: Call, uris: Collection[str]) -> None:
        """A front wants to hear when these resources, by their URIs outside, change. Raises what it is told if not."""
        server = self._server
        if not object_of(server.capabilities.get("resources")).get("subscribe"):
            return
        try:
            await self._watching.add(_watcher(call), self._inner(uris))
        except PeerError as error:
            raise failures.failed(server.id, error, self._state.now, server.secrets) from None

    async def unwatch_resources(self, call: Call, uris: Collection[str]) -> None:
        """It no longer does."""
        front = _watcher(call)
        await self._watching.drop(front, self._inner(uris), self._conversations.known)
        if front.key is call:
            self._conversations.pool.end(front)

    def _inner(self, uris: Collection[str]) -> list[str]:
        return [inner for uri in uris if (inner := self._server.prefix.inner_uri(uri)) is not None]

    def _watch_group(self, front: Front) -> Hashable:
        return SHARED if self._conversations.per == "shared" else front.key

    def _updated(self, channel: Channel, uri: str) -> None:
        """Tell who asked, and nobody else: other fronts have other conversations, with other contents."""
        outer, front = self._server.prefix.uri(uri), channel.front
        if front is None:
            self._subscriptions.updated(outer, hears=self._server.open_to)
            return
        tell = partial(self._subscriptions.updated, hears=partial(self._hears, front))
        if front.session is not None:
            tell(outer, session=front.session)
        elif front.key is not None:
            tell(outer, principal=front.principal)

    def _hears(self, front: Front, session: Session, who: PeerIdentity | None) -> bool:
        """Whether who asked may hear what the conversation of a front tells. Its other keys may have fewer rights."""
        is_open = self._server.open_to is None or self._server.open_to(session, who)
        return is_open and may_act_for(who, front.caller)

    async def _want_changes(self, channel: Channel) -> None:
        capabilities = self._server.capabilities
        changing = [kind for kind in NEWS_KINDS if object_of(capabilities.get(kind)).get("listChanged")]
        with suppress(PeerError):
            await channel.updates.want(kinds=changing)

    async def _reopen(self, front: Front) -> None:
        """A front that waits for news gets another conversation, though it calls nothing."""
        await asyncio.sleep(REOPEN_SECONDS)
        if self._watching.watches(front):
            with suppress(DefserveError):
                await self._conversations.of(front)


def _watcher(call: Call) -> Front:
    """The front that waits for news. One that nobody vouches for is known by its request alone."""
    front = front_of(call)
    return front if front.key is not None else front._replace(key=call, place=call, session=call.session)
