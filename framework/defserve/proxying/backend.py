"""One server behind this one: the parts that it is made of, and what others ask it for."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from defserve.base.concurrency import BackgroundTasks
from defserve.client.eras import LIST_CHANGE_NOTIFICATIONS as NEWS_KINDS
from defserve.client.replies import Json, object_or_empty
from defserve.core.call import Call
from defserve.core.peer import PeerIdentity, can_act_for
from defserve.errors import DefserveError, PeerError, PeerGone
from defserve.proxying import boundary
from defserve.proxying.calls import BackendCalls, BackendCallSlots, KeepTask
from defserve.proxying.catalogue import LIST_KINDS, BackendCatalogue, FrontRegistries
from defserve.proxying.channel import BackendChannel, FrontClient, identify_front
from defserve.proxying.conversations import BackendChannels
from defserve.proxying.mounted import (
    ASLEEP_REASON,
    BackendOptions,
    BackendState,
    BackendStateName,
    MountedServer,
    RestartCounter,
    RestartRefusal,
)
from defserve.proxying.supervision import BackendSupervision, make_default_restart_policy

if TYPE_CHECKING:
    from defserve.core.session import Session
    from defserve.protocols.mcp.asking.client_requests import ParkedWorkRegistry
    from defserve.proxying.targets import BackendTarget


HEALTH: Final = ("healthy", "degraded", "unhealthy")


class Backend(MountedServer):
    """A server behind this one: its state, its conversations, what it offers. All on one event loop, that of `start`.

    `policy` says when it is started again, and may be changed.
    """

    def __init__(
        self,
        id: str,
        target: BackendTarget,
        front: FrontRegistries,
        options: BackendOptions,
        parking: ParkedWorkRegistry,
        keep_task: KeepTask,
    ) -> None:
        super().__init__(id, target, options)
        state = self._state = BackendState(id)
        policy = self.policy = RestartCounter(options.restarts or make_default_restart_policy(target))
        room = self.room = BackendCallSlots(id, options.in_flight)
        catalogue = self.catalogue = BackendCatalogue(self, front, options.tools, options.transform)
        state.watch_state_changes(lambda change: catalogue.notify_lists_changed())
        conversations = self.conversations = BackendChannels(self, state, self, lambda: policy.policy)
        changes = self._changes = BackendChangeListener(self, state, conversations, catalogue, front)
        calls = BackendCalls(self, state, conversations, room, parking, keep_task)
        life = self._supervision = BackendSupervision(self, state, conversations, catalogue, changes, room, policy)
        calls.on_unreachable = life.end_unresponsive
        conversations.ended = lambda front: catalogue.drop_private_items(front.key)
        conversations.opened = lambda channel, front: changes.listen(channel, front.key)
        # Not methods that pass on: a reader would look twice, and a call of a tool would pay for each.
        self.watch, self.ready = state.watch_state_changes, state.wait_until_ready
        self.start, self.stop, self.restart, self.renew = life.start, life.stop, life.restart, life.renew
        self.fail, self.sleep = life.end_unresponsive, life.sleep
        self.relay, self.ask_task, self.release_task = calls.relay, calls.ask_task, calls.release_task
        self.watch_resources, self.unwatch_resources = changes.watch_resources, changes.unwatch_resources
        self.refresh_stale_skills, self.heard = changes.refresh_stale_skills, changes.on_notification

    # -- what is known of it -----------------------------------------------------------------------------

    @property
    def state(self) -> BackendStateName:
        return self._state.now

    @property
    def note(self) -> str:
        """Its last words, for operators: they may name paths and commands."""
        return self._state.note

    @property
    def refusal(self) -> RestartRefusal | None:
        """Why it is not started again. None: it runs, or will."""
        return self._state.refusal

    @property
    def since(self) -> float:
        """The time of the last change of `state`."""
        return self._state.since

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return self._supervision.restarts

    @property
    def calls(self) -> int:
        """The calls under way."""
        return self.room.running

    @property
    def tools(self) -> int:
        """How many tools it offers here."""
        return self.catalogue.count_shown_items("tools")

    @property
    def pid(self) -> int | None:
        """The process of its own conversation, if it is a child."""
        main = self.conversations.main
        return main.pid if main is not None else None

    @property
    def is_known(self) -> bool:
        """Whether what it offers was read."""
        return self._supervision.is_known

    @property
    def is_new(self) -> bool:
        """Whether it is being opened, and what it offers is not known yet."""
        return not self.is_known and self.state in ("connecting", "restarting")

    def may_offer_name(self, name: str) -> bool:
        """Whether a name or URI could be one of its own."""
        prefix = self.prefix
        return (
            not prefix.text or name.startswith(prefix.prefix_name("")) or prefix.strip_uri(name) is not None or not name
        )

    async def ping(self, within: float) -> str | None:
        """Ask whether it still answers, and how it is (MGP §11.3; None if it does not say). Raises PeerError."""
        main = self.conversations.main
        if main is None:
            raise PeerGone(f"server {self.id!r} is not connected")
        if self.said is not None and "lifecycle" in self.said.sections:
            from defserve.protocols.mgp.vocabulary import format_instant, utc_now

            said = (await main.request("mgp/health/ping", {"timestamp": format_instant(utc_now())}, within)).get(
                "status"
            )
            return said if said in HEALTH else None
        await main.request("server/discover" if main.stateless else "ping", {}, within)
        return None

    # -- conversations and fronts ------------------------------------------------------------------------

    def on_channel_ended(self, channel: BackendChannel, reason: PeerGone) -> None:
        """The backend has left this conversation."""
        if channel is self.conversations.main:
            self._supervision.main_gone.set()
            return
        self._state.note = self.redact_secrets(reason.message)
        self.conversations.on_channel_lost(channel, reason)
        self._changes.on_channel_lost(channel.front)

    async def notify_permission_decisions(self) -> None:
        """Somebody has decided about permissions: the server is told in every conversation that is open."""
        told = [
            channel.grants.send_new_decisions()
            for channel in self.conversations.list_channels()
            if channel.grants is not None
        ]
        await asyncio.gather(*told)

    def on_session_closed(self, session: Session) -> None:
        """A front has left."""
        self.conversations.on_session_closed(session)
        self._changes.on_session_closed(session)

    def credential_ended(self, credential: str) -> None:
        """A key or token has been revoked, or has expired."""
        if credential:
            self.conversations.credential_ended(credential)

    def notify_roots_changed(self, session: Session) -> None:
        """A front has other roots than before: its own conversations are told."""
        for channel in self.conversations.pool.list_channels():
            if channel.front is not None and channel.front.session is session and not channel.stateless:
                channel.conversation.notify_soon("notifications/roots/list_changed", {})

    def __repr__(self) -> str:
        return f"<Backend {self.id!r} {self.state}, {self.target!r}>"


def describe_unconnected_backend(backend: Backend) -> dict[str, Any]:
    """What lists say, to anybody, of a backend that is not connected."""
    return {
        "state": backend.state,
        "note": ASLEEP_REASON if backend.note == ASLEEP_REASON else backend.state_descriptions[backend.state],
    }


# -- What a backend tells by itself: that its lists have changed, or a resource that somebody wants to hear of.


REOPEN_SECONDS: Final = 1.0
SKILLS_SECONDS: Final = 5.0
"""How old a list of skills may be."""

LIFECYCLE: Final = "notifications/mgp.lifecycle"

SHARED: Final = "shared"
"""Stands for all fronts, where they share one conversation."""

# A notification of a backend, and the lists that it says have changed.
CHANGES: Final[Mapping[str, tuple[str, ...]]] = {
    "notifications/tools/list_changed": ("tools",),
    "notifications/prompts/list_changed": ("prompts",),
    "notifications/resources/list_changed": ("resources", "templates", "skills"),
}


class BackendChangeListener:
    """Listens to the conversations with one backend. The subscriptions of `front` tell its clients."""

    def __init__(
        self,
        server: MountedServer,
        state: BackendState,
        conversations: BackendChannels,
        catalogue: BackendCatalogue,
        front: FrontRegistries,
    ) -> None:
        self._server, self._state, self._conversations = server, state, conversations
        self._catalogue, self._subscriptions, self._events = catalogue, front.mcp.subscriptions, front.events
        self._watching = Watching(
            conversations.acquire_channel, lambda front: SHARED if conversations.sharing == "shared" else front.key
        )
        self._skills_read = 0.0
        self._tasks = BackgroundTasks()

    def stop(self) -> None:
        """The backend ends."""
        self._tasks.cancel()

    async def listen(self, channel: BackendChannel, group: Hashable = SHARED) -> None:
        """Have it tell what changes, and ask again for what its fronts want to hear of, or the one front of `group`."""
        await self._want_changes(channel)
        await self._watching.repeat(channel, group)

    def on_notification(self, channel: BackendChannel, method: str, params: Json) -> None:
        """A notification came that belongs to no call."""
        if (kinds := CHANGES.get(method)) is not None:
            self._catalogue.schedule_list_refresh(channel, kinds)
        elif method == NEWS_KINDS["events"][0]:
            # Only its own conversation is asked for events.
            if self._events is not None and channel.front is None:
                self._catalogue.schedule_list_refresh(channel, ("events",))
        elif method == "notifications/resources/updated" and isinstance(params.get("uri"), str):
            self._announce_update(channel, params["uri"])
        elif method == LIFECYCLE and self._server.on_lifecycle is not None:
            self._server.on_lifecycle(params)

    def on_channel_lost(self, front: FrontClient | None) -> None:
        """The conversation of a front has ended by itself."""
        if front is not None and self._watching.is_watched_by(front):
            self._tasks.start(self._reopen(front))

    def on_session_closed(self, session: Session) -> None:
        """A front has left."""
        conversations = self._conversations
        is_forgotten = self._watching.drop_fronts(lambda front: front.session is session)
        # A conversation of its own ends with it. In one that is shared, the backend must be told.
        if is_forgotten and conversations.sharing == "shared" and conversations.main is not None:
            self._tasks.start(self._watching.sync_subscriptions(conversations.main, SHARED))

    # -- skills ------------------------------------------------------------------------------------------

    def on_skills_read(self) -> None:
        self._skills_read = time.monotonic()

    async def refresh_stale_skills(self, within: float) -> None:
        """Read its skills again, if they were not read a moment ago: no notification says that they have changed."""
        main, is_old = self._conversations.main, time.monotonic() >= self._skills_read + SKILLS_SECONDS
        is_offered = LIST_KINDS["skills"].is_supported_by(self._server.capabilities)
        if not is_offered or main is None or self._state.now != "connected" or not is_old:
            return
        self.on_skills_read()
        with suppress(PeerError, TimeoutError):
            async with asyncio.timeout(within):
                await self._catalogue.refresh_lists(main, ("skills",))

    # -- resources ---------------------------------------------------------------------------------------

    async def watch_resources(self, call: Call, uris: Collection[str]) -> None:
        """A front wants to hear when these resources, by their URIs outside, change. Raises what it is told if not."""
        server = self._server
        if not object_or_empty(server.capabilities.get("resources")).get("subscribe"):
            return
        try:
            await self._watching.add(_watcher(call), self._inner(uris))
        except PeerError as error:
            raise boundary.make_call_error(server.id, error, self._state.now, server.secrets) from None

    async def unwatch_resources(self, call: Call, uris: Collection[str]) -> None:
        """It no longer does."""
        front = _watcher(call)
        await self._watching.stop_watching(front, self._inner(uris), self._conversations.find_open_channel)
        if front.key is call:
            self._conversations.pool.end_channel(front)

    def _inner(self, uris: Collection[str]) -> list[str]:
        return [inner for uri in uris if (inner := self._server.prefix.strip_uri(uri)) is not None]

    def _announce_update(self, channel: BackendChannel, uri: str) -> None:
        """Tell who asked, and nobody else: other fronts have other conversations, with other contents."""
        outer, front = self._server.prefix.prefix_uri(uri), channel.front
        if front is None:
            self._subscriptions.notify_resource_updated(outer, hears=self._server.open_to)
            return
        tell = partial(self._subscriptions.notify_resource_updated, hears=partial(self._hears, front))
        if front.session is not None:
            tell(outer, session=front.session)
        elif front.key is not None:
            tell(outer, principal=front.principal)

    def _hears(self, front: FrontClient, session: Session, who: PeerIdentity | None) -> bool:
        """Whether who asked may hear what the conversation of a front tells. Its other keys may have fewer rights."""
        return (self._server.open_to is None or self._server.open_to(session, who)) and can_act_for(who, front.caller)

    async def _want_changes(self, channel: BackendChannel) -> None:
        capabilities = self._server.capabilities
        changing = [kind for kind in NEWS_KINDS if object_or_empty(capabilities.get(kind)).get("listChanged")]
        if self._events is not None and channel.front is None and self._events.can_hear_list_changes(capabilities):
            changing.append("events")
        with suppress(PeerError):
            await channel.updates.request_updates(kinds=changing)

    async def _reopen(self, front: FrontClient) -> None:
        """A front that waits for news gets another conversation, though it calls nothing."""
        await asyncio.sleep(REOPEN_SECONDS)
        if self._watching.is_watched_by(front):
            with suppress(DefserveError):
                await self._conversations.acquire_channel(front)


def _watcher(call: Call) -> FrontClient:
    """The front that waits for news. One that nobody vouches for is known by its request alone."""
    front = identify_front(call)
    return front if front.key is not None else front._replace(key=call, place=call, session=call.session)


# -- Which resources of a backend its fronts want to hear of. They are asked for again in a new conversation.


@dataclass(slots=True, eq=False)
class Watched:
    """The URIs, as the backend knows them, that one front wants to hear of, and how often it said so."""

    front: FrontClient
    uris: Counter[str] = field(default_factory=Counter[str])


class Watching:
    """For one backend. `find` gives the conversation of a front, `group` is the same for those that share one."""

    def __init__(
        self, find: Callable[[FrontClient], Awaitable[BackendChannel]], group: Callable[[FrontClient], Hashable]
    ) -> None:
        self._find, self._group = find, group
        self._watched: dict[Hashable, Watched] = {}

    async def add(self, front: FrontClient, uris: Collection[str]) -> None:
        """A front wants to hear of resources. Raises PeerError if the backend refuses."""
        channel = await self._find(front)
        self._watched.setdefault(front.key, Watched(front)).uris.update(uris)
        try:
            await channel.updates.request_updates(uris=lambda: self._collect_uris(self._group(front)))
        except BaseException as error:
            self._subtract(front, uris)
            if isinstance(error, PeerError):
                await self.sync_subscriptions(channel, self._group(front))
            raise

    async def stop_watching(
        self, front: FrontClient, uris: Collection[str], known: Callable[[FrontClient], BackendChannel | None]
    ) -> None:
        """It no longer does."""
        if not self.is_watched_by(front):
            return
        self._subtract(front, uris)
        if (channel := known(front)) is not None:
            await self.sync_subscriptions(channel, self._group(front))

    def drop_fronts(self, which: Callable[[FrontClient], bool]) -> bool:
        """Fronts that have left want nothing. Whether one of them did."""
        left = [key for key, one in self._watched.items() if which(one.front)]
        for key in left:
            del self._watched[key]
        return bool(left)

    async def repeat(self, channel: BackendChannel, group: Hashable) -> None:
        """Ask a new conversation for what an earlier one was asked for."""
        if self._collect_uris(group):
            await self.sync_subscriptions(channel, group)

    async def sync_subscriptions(self, channel: BackendChannel, group: Hashable) -> None:
        """Ask a conversation for what its fronts want to hear of, and for nothing else."""
        with suppress(PeerError):
            await channel.updates.request_updates(uris=lambda: self._collect_uris(group))

    def is_watched_by(self, front: FrontClient) -> bool:
        """Whether a front waits for news."""
        return front.key in self._watched

    def _collect_uris(self, group: Hashable) -> set[str]:
        return {uri for one in self._watched.values() if self._group(one.front) == group for uri in one.uris}

    def _subtract(self, front: FrontClient, uris: Collection[str]) -> None:
        if (watched := self._watched.get(front.key)) is None:
            return
        watched.uris.subtract(uris)
        watched.uris = +watched.uris
        if not watched.uris:
            del self._watched[front.key]
