"""All conversations with one backend: which one a front's call takes, and how one is opened.

Two callers never share one unless the operator says so. This side is the backend's host: it decides what the backend's
tools may use (MGP §3).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import uuid4

from defserve.base.concurrency import BackgroundTasks, wait_for_shared
from defserve.base.redaction import get_logger
from defserve.client.eras import merge_objects
from defserve.client.mgp.server_claims import (
    PERMISSION_REQUEST_METHODS,
    Grant,
    MgpClaims,
    make_mgp_offer,
    parse_mgp_claims,
    send_grants,
)
from defserve.client.replies import Json
from defserve.errors import InvalidParams, MethodNotFound, PeerError, PeerGone, PeerTimeout
from defserve.protocols.mgp.terms import MGP_SECTIONS_BY_NAME
from defserve.protocols.mgp.vocabulary import (
    GRANT_META_KEYS,
    PermissionRequest,
    PermissionStatus,
    expand_permission,
    is_permission_name,
)
from defserve.proxying import boundary
from defserve.proxying.boundary import make_busy_error
from defserve.proxying.channel import MAIN_PROCESS_KEY, BackendChannel, FrontClient
from defserve.proxying.mounted import CLEAN_EXIT_REASON, RestartCountersByKey, RestartPolicy, RestartRefusal
from defserve.proxying.targets import ChannelSharing, Command, SpareChildren

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.core.session import Session
    from defserve.proxying.backend import Backend
    from defserve.proxying.mounted import BackendState, MountedServer


WAIT_SECONDS: Final = 5.0
"""How long a call waits for a backend that is being restarted."""

log = get_logger("proxying")


class BackendChannels:
    """`main` is the backend's own conversation, while it is connected. `pool` has those that belong to a front each.

    `opened` is called with each new conversation of a front; a backend that sleeps is woken by `wake`.
    """

    def __init__(
        self, server: MountedServer, state: BackendState, owner: Backend, policy: Callable[[], RestartPolicy]
    ) -> None:
        self._server, self._state, self._owner = server, state, owner
        self._restarts = RestartCountersByKey(policy)
        self._closing = BackgroundTasks()
        self.main: BackendChannel | None = None
        self.pool = self._new_pool()
        self.spares = self._new_spares()
        self._is_start_told = False
        self.ended: Callable[[FrontClient], None] = lambda front: None
        """Called with the front of each conversation that ends."""
        self.opened: Callable[[BackendChannel, FrontClient], Awaitable[None]]
        self.wake: Callable[[], Awaitable[None]] | None = None

    @property
    def sharing(self) -> ChannelSharing:
        """Who shares a conversation. A server that keeps no session and is no child has nothing to share."""
        given: ChannelSharing | None = self._server.target.per
        if given is not None:
            return given
        is_stateless = self.main is not None and self.main.stateless
        return "shared" if is_stateless and not self._server.target.isolates else "client"

    def list_channels(self) -> list[BackendChannel]:
        """Every open conversation."""
        return [*self.pool.list_channels(), *([self.main] if self.main is not None else [])]

    def find_ready_channel(self, front: FrontClient) -> BackendChannel | None:
        """The conversation that a front's call takes, if nothing has to be waited for."""
        now = self._state.now
        if now != "draining" and (known := self.pool.find_open_channel(front)) is not None:
            return known
        return self.main if now == "connected" and self.wake is None and self.sharing == "shared" else None

    async def acquire_channel(self, front: FrontClient) -> BackendChannel:
        """The conversation that a front's call takes. Waits a moment for a backend that is on its way."""
        state = self._state
        if (channel := self.find_ready_channel(front)) is not None:
            return channel
        if self.wake is not None:
            await self.wake()
        if not state.settled.is_set():
            await state.wait_until_ready(WAIT_SECONDS if state.now == "restarting" else 2 * WAIT_SECONDS)
            if state.now == "restarting":  # it has just left
                await state.wait_until_ready(WAIT_SECONDS)
        main = self.main
        if state.now != "connected" or main is None:
            raise boundary.make_not_connected_error(self._server, state.now)
        per = self.sharing
        if per == "shared":
            return main
        return await self.pool.acquire_channel(front if per == "client" else front._replace(key=None))

    async def require_main_channel(self) -> BackendChannel:
        """The backend's own conversation. Raises what callers are told if there is none."""
        if self.wake is not None:
            await self.wake()
        await self._state.wait_until_ready(WAIT_SECONDS)
        if self._state.now != "connected" or self.main is None:
            raise boundary.make_not_connected_error(self._server, self._state.now)
        return self.main

    def find_open_channel(self, front: FrontClient) -> BackendChannel | None:
        """The conversation that a front's call would take, if it is open."""
        return self.main if self.sharing == "shared" else self.pool.find_open_channel(front)

    async def open_channel(self, front: FrontClient | None) -> BackendChannel:
        """Open one more. Raises PeerError."""
        server = self._server
        # The era that the first conversation found saves the others a probe.
        version = server.target.version or (server.era if front is not None else None)
        channel = await self._open_with_spare(version, front) if front is not None else None
        if channel is None:
            channel = self._make_channel(front)
            key = MAIN_PROCESS_KEY if front is None else front.process_key
            await channel.open(await server.target.link(server.add_stderr_line, key), version)
        if server.decides is not None and channel.offers_mgp:
            try:
                await self._begin_grants(channel, server.decides)
            except BaseException:
                # Nobody else knows of it yet.
                await channel.aclose()
                raise
        return channel

    def _make_channel(self, front: FrontClient | None) -> BackendChannel:
        return BackendChannel(self._owner, front, self._own_offer() if front is None else self._front_offer())

    async def _open_with_spare(self, version: str | None, front: FrontClient) -> BackendChannel | None:
        """Open one with a child that waits for a caller. None: there is no such child, so one has to be started."""
        target = self._server.target
        if not target.isolates or (isinstance(target, Command) and target.is_joined and front.process_key):
            return None
        link = self.spares.take_child(is_for_one_call=front.key is None)
        if link is not None:
            channel = self._make_channel(front)
            try:
                await channel.open(link, version)
                return channel
            except PeerGone:
                pass  # it ended just now; no call was sent to it
        if front.key is None and not self._is_start_told:
            self._is_start_told = True
            log.warning(
                "server %r: a caller without a session or key has to wait until a process is started for its call "
                'alone; fix: spares = 4 keeps that many ready, per = "shared" is faster if the server keeps nothing of '
                "a caller, and a caller with a key keeps its process",
                self._server.id,
            )
        return None

    async def _begin_grants(self, channel: BackendChannel, decides: DecidePermissions) -> None:
        """A server that asks for permissions is told what was decided about them."""
        names = permissions_of(parse_mgp_claims(channel.terms, MGP_SECTIONS_BY_NAME))
        if not names:
            return
        channel.grants = ChannelGrants(names, decides, None if channel.stateless else channel.request)
        if channel.front is None:
            await channel.grants.send_new_decisions()

    def _front_offer(self) -> dict[str, dict[str, Any]]:
        """What the conversations of fronts offer of MGP."""
        said = self._server.said
        if self._server.decides is None or said is None or not permissions_of(said):
            return {}
        return make_mgp_offer((next(name for name in EXTENSIONS if name in said.extensions),))

    def _own_offer(self) -> dict[str, dict[str, Any]]:
        """What the backend's own conversation offers of MGP."""
        offer = make_mgp_offer(self._server.options.mgp) if self._server.options.mgp else {}
        if not self._server.offers_mgp_in_sessions:
            offer.pop("handshake", None)
        return offer

    def replace_main_channel(self, main: BackendChannel) -> tuple[BackendChannel | None, ChannelPool]:
        """New calls take this one, and others of its kind. Gives what they took before."""
        old, pool = self.main, self.pool
        self.main, self.pool = main, self._new_pool()
        self.close_spare_children()
        self.spares = self._new_spares()
        self.open_spare_children()
        return old, pool

    def on_channel_lost(self, channel: BackendChannel, reason: PeerGone) -> None:
        """The backend has left the conversation of a front."""
        self.pool.drop_channel(channel)
        if CLEAN_EXIT_REASON not in reason.message:
            self._record_failure(channel.front)

    def on_session_closed(self, session: Session) -> None:
        """A front has left."""
        self.pool.end_matching_channels(lambda front: front.session is session)
        self._restarts.drop_failures(lambda key: isinstance(key, tuple) and session in key)

    def credential_ended(self, credential: str) -> None:
        """What was opened for who showed this key or token ends: nobody may use it, and it may hold what they said."""
        self.pool.end_matching_channels(lambda front: front.credential == credential)

    def forget_restarts(self) -> None:
        """An operator asked for a start."""
        self._restarts.drop_failures()

    def open_spare_children(self) -> None:
        """The backend is connected: start some children before they are needed, if callers do not share one."""
        if self._server.target.isolates and self.sharing != "shared":
            self.spares.open()

    def close_spare_children(self) -> None:
        """The backend has left: what it would be started with next may differ."""
        self._closing.start(self.spares.aclose())

    async def aclose(self) -> None:
        """End the conversations of fronts, and what waits for more."""
        await self.spares.aclose()
        await self.pool.aclose()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _new_spares(self) -> SpareChildren:
        server, options = self._server, self._server.options
        return SpareChildren(
            server.id,
            lambda: server.target.link(server.add_stderr_line),
            options.spares,
            options.idle,
            lambda: self.pool.most - len(self.pool) - len(self.spares),
            lambda: self.main.pid if self.main is not None else None,
        )

    def _new_pool(self) -> ChannelPool:
        options = self._server.options
        pool = ChannelPool(self._server.id, self._open_for, most=options.children, idle=options.idle)
        pool.ended = lambda front: self.ended(front)
        return pool

    async def _open_for(self, front: FrontClient) -> BackendChannel:
        wait = self._restarts.get_restart_delay(front.key)
        if isinstance(wait, RestartRefusal):
            raise boundary.make_not_connected_error(self._server, "error", f"{wait.reason}: {wait.text}")
        if wait:  # its process failed, and may have the next one then
            await asyncio.sleep(wait)
        try:
            channel = await self.open_channel(front)
        except PeerError as error:
            self._record_failure(front)
            log.warning(
                "server %r did not open for a client: %s", self._server.id, self._server.redact_secrets(error.message)
            )
            raise boundary.make_not_connected_error(self._server, "error") from None
        try:
            await self.opened(channel, front)
        except BaseException:
            # Who asked for it may have left meanwhile, and nobody else knows of it.
            await channel.aclose()
            raise
        return channel

    def _record_failure(self, front: FrontClient | None) -> None:
        if front is not None and front.key is not None and self._server.target.isolates:
            self._restarts.record_failure(front.key)


# -- Which conversation serves which caller. Two callers never share one unless the operator says so.


MAX_CHANNELS = 64
IDLE_SECONDS = 300.0
MAX_WAITING = 64
"""How many calls wait for a conversation, `WAIT_SECONDS` each at most. Others are refused at once."""
SHARE_OF_ONE = 3
"""Quarters of the conversations that one caller may have, so that it cannot keep out the others."""


class ChannelPool:
    """The conversations that belong to one front each. They end when they are idle, and when their front leaves."""

    def __init__(
        self,
        id: str,
        open: Callable[[FrontClient], Awaitable[BackendChannel]],
        *,
        most: int = MAX_CHANNELS,
        idle: float = IDLE_SECONDS,
    ) -> None:
        self.ended: Callable[[FrontClient], None] = lambda front: None
        """Called with the front of each conversation that ends."""
        self._id, self._open, self.most, self.idle = id, open, most, idle
        self._opening: dict[Hashable, asyncio.Task[BackendChannel]] = {}
        self._opening_fronts: dict[Hashable, FrontClient] = {}
        self._unwanted: set[Hashable] = set()
        self._opening_for: Counter[str] = Counter()
        self._channels: dict[Hashable, BackendChannel] = {}
        self._single: set[BackendChannel] = set()
        self._tasks = BackgroundTasks()
        self._waiting: list[asyncio.Future[None]] = []
        self._sweeper: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._channels) + len(self._single) + self._opening_for.total()

    def list_channels(self) -> list[BackendChannel]:
        return [*self._channels.values(), *self._single]

    def find_open_channel(self, front: FrontClient) -> BackendChannel | None:
        """The open conversation of a front."""
        channel = self._channels.get(front.place) if front.key is not None else None
        return channel if channel is not None and channel.gone is None else None

    async def acquire_channel(self, front: FrontClient) -> BackendChannel:
        """The conversation of a front, opened if there is none. A front without a key gets one for a single call."""
        if (channel := self.find_open_channel(front)) is not None:
            return channel
        if front.key is None:
            await self._wait_for_room(front)
            self._opening_for[front.principal] += 1
            channel = await self._open_within_limit(front)
            channel.on_idle = lambda: self._on_channel_idle(channel)
            self._single.add(channel)
            return channel
        key = front.place
        if key not in self._opening:
            await self._wait_for_room(front)
            # Another call of this front may have been faster.
            if (channel := self.find_open_channel(front)) is not None:
                return channel
        task = self._opening.get(key)
        if task is None:
            self._opening_for[front.principal] += 1
            self._opening_fronts[key] = front
            task = self._opening[key] = asyncio.create_task(self._open_for_key(key, front))
            # If everybody who waited was cancelled, nobody looks at the outcome.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Shielded: others may wait for the same one.
        return await wait_for_shared(task)

    async def _open_for_key(self, key: Hashable, front: FrontClient) -> BackendChannel:
        try:
            channel = await self._open_within_limit(front)
        finally:
            is_unwanted = key in self._unwanted
            self._unwanted.discard(key)
            self._opening.pop(key, None)
            self._opening_fronts.pop(key, None)
        if is_unwanted or (front.session is not None and front.session.closed):
            self._end(channel)
        else:
            self._channels[key] = channel
            channel.on_idle = self._wake_next
            self._sweep_later()
        return channel

    async def _open_within_limit(self, front: FrontClient) -> BackendChannel:
        """Open one that counts already. Processes take a while to end, and there must not be too many of those."""
        try:
            while len(self._tasks) >= self.most:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            return await self._open(front)
        finally:
            self._opening_for[front.principal] -= 1
            if not self._opening_for[front.principal]:
                del self._opening_for[front.principal]
            self._wake_next()

    def _on_channel_idle(self, channel: BackendChannel) -> None:
        """No call is under way. A conversation that was opened for one call alone ends."""
        if channel in self._single:
            self._single.discard(channel)
            self._end(channel)

    def drop_channel(self, channel: BackendChannel) -> None:
        """Forget a conversation that has ended by itself."""
        self._single.discard(channel)
        for key, kept in list(self._channels.items()):
            if kept is channel:
                del self._channels[key]
        self._end(channel)

    def end_channel(self, front: FrontClient) -> None:
        """A front wants nothing more."""
        if (channel := self._channels.pop(front.place, None)) is not None:
            self._end(channel)

    def end_matching_channels(self, which: Callable[[FrontClient], bool]) -> None:
        """Fronts have left, or may no longer be served: what was opened for them ends."""
        for key, channel in list(self._channels.items()):
            if channel.front is not None and which(channel.front):
                del self._channels[key]
                self._end(channel)
        for channel in [one for one in self._single if one.front is not None and which(one.front)]:
            self._on_channel_idle(channel)
        # What is being opened ends when it is open: others may wait for it.
        self._unwanted.update(key for key, front in self._opening_fronts.items() if which(front))

    async def aclose(self) -> None:
        """End all conversations."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        opening, channels = list(self._opening.values()), self.list_channels()
        self._channels.clear()
        self._single.clear()
        for task in opening:
            task.cancel()
        for channel in channels:
            self._end(channel)
        await asyncio.gather(*opening, *self._tasks, return_exceptions=True)

    async def _wait_for_room(self, front: FrontClient) -> None:
        """Make room, or wait for it a moment, after those who came before. Raises ResourceExhausted."""
        is_first = not self._waiting
        turn: asyncio.Future[None] | None = None
        deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
        try:
            while not (is_first and self._make_room(front)):
                if turn is None and len(self._waiting) >= MAX_WAITING:
                    what = (
                        f"all of its {self.most} conversations are in use, and {len(self._waiting)} calls wait for one"
                    )
                    raise make_busy_error(self._id, what)
                turn = asyncio.get_running_loop().create_future()
                # Who was woken in vain stays the first.
                self._waiting.insert(0 if is_first else len(self._waiting), turn)
                try:
                    async with asyncio.timeout_at(deadline):
                        await turn
                except TimeoutError:
                    what = (
                        f"all of its {self.most} conversations are in use, and none became free in {WAIT_SECONDS:g} s"
                    )
                    raise make_busy_error(self._id, what) from None
                is_first = True
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif turn is not None:
                self._wake_next()

    def _wake_next(self) -> None:
        """There may be room: let the first of those who wait look."""
        while self._waiting:
            if not (turn := self._waiting.pop(0)).done():
                turn.set_result(None)
                return

    def _make_room(self, front: FrontClient) -> bool:
        """Whether there is room. If not, ends an idle conversation: of the same caller, or of the one with the most.

        Raises ResourceExhausted for a caller that has its share.
        """
        each = self._opening_for + Counter(_principal(channel) for channel in self.list_channels())
        share = -(-self.most * SHARE_OF_ONE // 4)
        is_greedy = each[front.principal] >= share
        if len(self) < self.most and not is_greedy:
            return True
        idle = [
            (-each[whose], since, key)
            for key, channel in self._channels.items()
            if (since := channel.idle_since) is not None and (not is_greedy or _principal(channel) == front.principal)
            for whose in [_principal(channel)]
        ]
        if not idle and is_greedy and share < self.most:
            raise make_busy_error(self._id, f"{share} of its {self.most} conversations are in use by you")
        if not idle:
            return False
        self._end(self._channels.pop(min(idle, key=lambda one: one[:2])[2]))
        return True

    def _end(self, channel: BackendChannel) -> None:
        if channel.front is not None:
            self.ended(channel.front)
        self._tasks.start(channel.aclose())
        self._wake_next()

    def _sweep_later(self) -> None:
        if self._sweeper is None and self._channels:
            self._sweeper = asyncio.get_running_loop().call_later(self.idle / 2, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        oldest = asyncio.get_running_loop().time() - self.idle
        for key, channel in list(self._channels.items()):
            if (since := channel.idle_since) is not None and since <= oldest and not channel.updates.uris:
                del self._channels[key]
                self._end(channel)
        self._sweep_later()


def _principal(channel: BackendChannel) -> str:
    return channel.front.principal if channel.front is not None else ""


# -- MGP §3 with a server behind this one. This side is its host: it decides what the server's tools may use.
#
# In a session, the server is told before a call for which something has changed, and when somebody decides. Without
# sessions, each call carries what its caller may use.


DecidePermissions: TypeAlias = "Callable[[Call | None, Iterable[str]], Mapping[str, PermissionStatus]]"
"""What may be used in a call of the permissions that are named. Without a call: by whoever is known."""

EXTENSIONS: Final = ("permissions", "security")
"""Those that have permissions. The first promises nothing else."""
TELL_SECONDS: Final = 5.0


def permissions_of(said: MgpClaims) -> tuple[str, ...]:
    """The permissions that a server wants to be told of."""
    wants = said.version is not None and "permissions" in said.sections
    return tuple(name for name in said.permissions if is_permission_name(name)) if wants else ()


class ChannelGrants:
    """What one conversation was told. `request` sends a request of ours in it; it is None without a session."""

    def __init__(
        self, names: Sequence[str], decide: DecidePermissions, request: Callable[[str, Json, float], Any] | None
    ) -> None:
        self._names, self._decide, self._request = names, decide, request
        self._told: dict[str, Grant] = {}
        self._last: Call | None = None
        self._telling = asyncio.Lock()
        self._offers: tuple[Json, Json] | None = None

    async def send_changes(self, call: Call | None) -> None:
        """Tell what has changed since it was told last. `call` is the one that comes next."""
        self._last = call
        if self._request is None:
            return
        async with self._telling:
            decided = self._grants(call)
            if changed := {name: grant for name, grant in decided.items() if self._told.get(name) != grant}:
                # A server that does not answer is not asked twice: what it may not do is refused here in any case.
                with suppress(PeerTimeout):
                    await send_grants(self._send, str(uuid4()), changed, "kernel")
                self._told.update(changed)

    async def send_new_decisions(self) -> None:
        """Somebody has decided. A server that cannot be told now is told before the next call."""
        with suppress(PeerError):
            await self.send_changes(self._last)

    def make_call_meta(self, call: Call) -> Json:
        """What a call without a session carries in `_meta`."""
        return {GRANT_META_KEYS[0]: {name: grant.to_wire() for name, grant in self._grants(call).items()}}

    def add_grant_offers(self, offers: Json) -> Json:
        """What a front offers, and what belongs to the grants of a call."""
        if self._offers is None or self._offers[0] is not offers:
            self._offers = offers, merge_objects(offers, make_mgp_offer(EXTENSIONS[:1])["stateless"])
        return self._offers[1]

    def answer_permission_request(self, method: str, params: Json, call: Call | None) -> Json:
        """The answer to a server that asks for permissions itself (§3.5). Raises MethodNotFound for other methods."""
        if method not in PERMISSION_REQUEST_METHODS:
            raise MethodNotFound(f"Method not found: {method} (this client did not offer it)")
        asked = PermissionRequest.from_wire(params)
        if not asked.permissions:
            raise InvalidParams("Invalid params: permissions must not be empty")
        meant = [permission for name in asked.permissions for permission in expand_permission(name)]
        return asked.build_result(self._decide(call or self._last, meant))

    def _grants(self, call: Call | None) -> dict[str, Grant]:
        return {
            name: Grant(status.decision, status.expires_at) for name, status in self._decide(call, self._names).items()
        }

    async def _send(self, method: str, params: Mapping[str, Any]) -> Any:
        assert self._request is not None
        return await self._request(method, dict(params), TELL_SECONDS)
