"""All conversations with one backend: which one a front's call takes, and how one is opened."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from defserve.errors import PeerError, PeerGone
from defserve.host.mgp.said import mgp_offer, said_mgp
from defserve.protocols.mgp.agreed import SECTIONS
from defserve.proxying import failures
from defserve.proxying.conversations.channel import Channel, ChannelOwner
from defserve.proxying.conversations.fronts import Front
from defserve.proxying.conversations.granting import ChannelGrants, permission_offer, permissions_of
from defserve.proxying.conversations.pool import Pool
from defserve.proxying.restarts import RestartPolicy, RestartRefusal, RestartsByKey
from defserve.proxying.targets import Per

if TYPE_CHECKING:
    from defserve.core.session import Session
    from defserve.proxying.conversations.granting import Decide
    from defserve.proxying.mounted import MountedServer
    from defserve.proxying.states import BackendState

WAIT_SECONDS: Final = 5.0
"""How long a call waits for a backend that is being restarted."""
CLEAN_EXIT: Final = "exited with code 0"

log = logging.getLogger("defserve.proxying")


class Conversations:
    """`main` is the backend's own conversation, while it is connected. `pool` has those that belong to a front each.

    `opened` is called with each new conversation of a front; a backend that sleeps is woken by `wake`.
    """

    def __init__(
        self, server: MountedServer, state: BackendState, owner: ChannelOwner, policy: Callable[[], RestartPolicy]
    ) -> None:
        self._server, self._state, self._owner = server, state, owner
        self._restarts = RestartsByKey(policy)
        self.main: Channel | None = None
        self.pool = self._new_pool()
        self.ended: Callable[[Front], None] = lambda front: None
        """Called with the front of each conversation that ends."""
        self.opened: Callable[[Channel, Front], Awaitable[None]]
        self.wake: Callable[[], Awaitable[None]] | None = None

    @property
    def per(self) -> Per:
        """Who shares a conversation. A server that keeps no session and is no child has nothing to share."""
        given: Per | None = self._server.target.per
        if given is not None:
            return given
        is_stateless = self.main is not None and self.main.stateless
        return "shared" if is_stateless and not self._server.target.isolates else "client"

    def all(self) -> list[Channel]:
        """Every open conversation."""
        return [*self.pool.all(), *([self.main] if self.main is not None else [])]

    def at_hand(self, front: Front) -> Channel | None:
        """The conversation that a front's call takes, if nothing has to be waited for."""
        now = self._state.now
        if now != "draining" and (known := self.pool.known(front)) is not None:
            return known
        return self.main if now == "connected" and self.wake is None and self.per == "shared" else None

    async def of(self, front: Front) -> Channel:
        """The conversation that a front's call takes. Waits a moment for a backend that is on its way."""
        state = self._state
        if (channel := self.at_hand(front)) is not None:
            return channel
        if self.wake is not None:
            await self.wake()
        if not state.settled.is_set():
            await state.ready(WAIT_SECONDS if state.now == "restarting" else 2 * WAIT_SECONDS)
            if state.now == "restarting":  # it has just left
                await state.ready(WAIT_SECONDS)
        main = self.main
        if state.now != "connected" or main is None:
            raise failures.not_connected(self._server.id, state.now)
        per = self.per
        if per == "shared":
            return main
        return await self.pool.get(front if per == "client" else front._replace(key=None))

    def known(self, front: Front) -> Channel | None:
        """The conversation that a front's call would take, if it is open."""
        return self.main if self.per == "shared" else self.pool.known(front)

    async def open(self, front: Front | None) -> Channel:
        """Open one more. Raises PeerError."""
        server = self._server
        channel = Channel(self._owner, front, self._own_offer() if front is None else self._front_offer())
        link = await server.target.link(server.take_stderr)
        # The era that the first conversation found saves the others a probe.
        await channel.open(link, server.target.version or (server.era if front is not None else None))
        if server.decides is not None and channel.offers_mgp:
            try:
                await self._begin_grants(channel, server.decides)
            except BaseException:
                # Nobody else knows of it yet.
                await channel.aclose()
                raise
        return channel

    async def _begin_grants(self, channel: Channel, decides: Decide) -> None:
        """A server that asks for permissions is told what was decided about them."""
        names = permissions_of(said_mgp(channel.terms, SECTIONS))
        if not names:
            return
        channel.grants = ChannelGrants(names, decides, None if channel.stateless else channel.request)
        if channel.front is None:
            await channel.grants.refresh()

    def _front_offer(self) -> dict[str, dict[str, Any]]:
        """What the conversations of fronts offer of MGP."""
        return permission_offer(self._server.said) if self._server.decides is not None else {}

    def _own_offer(self) -> dict[str, dict[str, Any]]:
        """What the backend's own conversation offers of MGP."""
        offer = mgp_offer(self._server.options.mgp) if self._server.options.mgp else {}
        if not self._server.offers_mgp_in_sessions:
            offer.pop("handshake", None)
        return offer

    def replace(self, main: Channel) -> tuple[Channel | None, Pool]:
        """New calls take this one, and others of its kind. Gives what they took before."""
        old, pool = self.main, self.pool
        self.main, self.pool = main, self._new_pool()
        return old, pool

    def lost(self, channel: Channel, reason: PeerGone) -> None:
        """The backend has left the conversation of a front."""
        self.pool.drop(channel)
        if CLEAN_EXIT not in reason.message:
            self._failed(channel.front)

    def left(self, session: Session) -> None:
        """A front has left."""
        self.pool.end_of(lambda front: front.session is session)
        self._restarts.forget(lambda key: isinstance(key, tuple) and session in key)

    def credential_ended(self, credential: str) -> None:
        """What was opened for who showed this key or token ends: nobody may use it, and it may hold what they said."""
        self.pool.end_of(lambda front: front.credential == credential)

    def forget_restarts(self) -> None:
        """An operator asked for a start."""
        self._restarts.forget()

    def _new_pool(self) -> Pool:
        options = self._server.options
        pool = Pool(self._server.id, self._open_for, most=options.children, idle=options.idle)
        pool.ended = lambda front: self.ended(front)
        return pool

    async def _open_for(self, front: Front) -> Channel:
        await self._may_open(front)
        try:
            channel = await self.open(front)
        except PeerError as error:
            self._failed(front)
            log.warning("server %r did not open for a client: %s", self._server.id, self._server.hidden(error.message))
            raise failures.not_connected(self._server.id, "error") from None
        try:
            await self.opened(channel, front)
        except BaseException:
            # Who asked for it may have left meanwhile, and nobody else knows of it.
            await channel.aclose()
            raise
        return channel

    async def _may_open(self, front: Front) -> None:
        """Wait for the time when a front whose process failed may have the next one. Raises if there is none."""
        wait = self._restarts.wait(front.key)
        if isinstance(wait, RestartRefusal):
            raise failures.not_connected(self._server.id, "error", f"{wait.reason}: {wait.text}")
        if wait:
            await asyncio.sleep(wait)

    def _failed(self, front: Front | None) -> None:
        if front is not None and front.key is not None and self._server.target.isolates:
            self._restarts.failed(front.key)
