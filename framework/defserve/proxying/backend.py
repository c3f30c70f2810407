"""One server behind this one: the parts that it is made of, and what others ask it for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from defserve.errors import PeerGone
from defserve.proxying.calls import Calls, KeepTask
from defserve.proxying.catalogue.catalogue import BackendCatalogue, FrontRegistries
from defserve.proxying.changes import Changes
from defserve.proxying.conversations.conversations import Conversations
from defserve.proxying.mounted import BackendOptions, MountedServer
from defserve.proxying.restarts import Restarts
from defserve.proxying.slots import CallSlots
from defserve.proxying.states import ASLEEP, TOLD, BackendState, State, Transition
from defserve.proxying.supervision import DRAIN_SECONDS, BackendSupervision, usual_policy

HEALTH: Final = ("healthy", "degraded", "unhealthy")

if TYPE_CHECKING:
    from defserve.core.session import Session
    from defserve.protocols.mcp.asking.parking import Parking
    from defserve.proxying.conversations.channel import Channel
    from defserve.proxying.conversations.pool import Pool
    from defserve.proxying.targets import Per, Target


class Backend(MountedServer):
    """A server behind this one: its state, its conversations, what it offers. All on one event loop, that of `start`.

    `policy` says when it is started again, and may be changed.
    """

    def __init__(
        self,
        id: str,
        target: Target,
        front: FrontRegistries,
        options: BackendOptions,
        parking: Parking,
        keep_task: KeepTask,
    ) -> None:
        super().__init__(id, target, options)
        state = self._state = BackendState(id)
        policy = self.policy = Restarts(options.restarts or usual_policy(target))
        room = self.room = CallSlots(id, options.in_flight)
        catalogue = self.catalogue = BackendCatalogue(self, front, options.tools, options.transform)
        state.watch(lambda change: catalogue.touch())
        conversations = self._conversations = Conversations(self, state, self, lambda: policy.policy)
        changes = self._changes = Changes(self, state, conversations, catalogue, front.mcp.subscriptions)
        calls = Calls(self, state, conversations, room, parking, keep_task)
        self._supervision = BackendSupervision(self, state, conversations, catalogue, changes, room, policy)
        conversations.ended, conversations.opened = lambda front: catalogue.forget(front.key), changes.listen_for
        # Not methods that pass on: a call of a tool would pay for each.
        self.relay, self.ask_task, self.release_task = calls.relay, calls.ask_task, calls.release_task
        self.watch_resources, self.unwatch_resources = changes.watch_resources, changes.unwatch_resources
        self.read_skills, self.heard = changes.read_skills, changes.heard

    # -- what is known of it -----------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._state.now

    @property
    def note(self) -> str:
        """Its last words, for operators: they may name paths and commands."""
        return self._state.note

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
    def calls_total(self) -> int:
        """All calls that were ever sent."""
        return self.room.total

    @property
    def tools(self) -> int:
        """How many tools it offers here."""
        return self.catalogue.count("tools")

    @property
    def pool(self) -> Pool:
        """The conversations that belong to a front each."""
        return self._conversations.pool

    @property
    def per(self) -> Per:
        """Who shares a conversation."""
        return self._conversations.per

    @property
    def pid(self) -> int | None:
        """The process of its own conversation, if it is a child."""
        main = self._conversations.main
        return main.pid if main is not None else None

    @property
    def is_known(self) -> bool:
        """Whether what it offers was read."""
        return self._supervision.is_known

    @property
    def is_new(self) -> bool:
        """Whether it is being opened, and what it offers is not known yet."""
        return not self.is_known and self.state in ("connecting", "restarting")

    def may_have(self, name: str) -> bool:
        """Whether a name or URI could be one of its own."""
        prefix = self.prefix
        return not prefix.text or name.startswith(prefix.name("")) or prefix.inner_uri(name) is not None or not name

    def watch(self, changed: Callable[[Transition], None]) -> Callable[[], None]:
        """Call `changed` after each change of the state. Returns the function that ends it."""
        return self._state.watch(changed)

    async def ready(self, seconds: float) -> None:
        """Wait until it is connected, or has failed; at most so many seconds."""
        await self._state.ready(seconds)

    # -- its life: see `BackendSupervision` ---------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to connect, if it has not begun. Returns at once: `state` tells what became of it."""
        await self._supervision.start()

    async def stop(self, reason: str = "operator_request", timeout: float = DRAIN_SECONDS) -> None:
        """Take no new calls, let those under way finish within `timeout` seconds, then end all conversations."""
        await self._supervision.stop(reason, timeout)

    async def restart(self, reason: str = "operator_request", timeout: float = DRAIN_SECONDS) -> None:
        """End it as `stop` does, and start it again. What it offers stays listed."""
        await self._supervision.restart(reason, timeout)

    async def renew(
        self, reason: str, target: Target | None = None, *, timeout: float = DRAIN_SECONDS, overlap: bool = True
    ) -> None:
        """Start it again without a gap, and, with `target`, elsewhere. Raises PeerError if the next one does not open.

        Then nothing has changed. Without `overlap`, or if it is not connected, this is `restart`.
        """
        await self._supervision.renew(reason, target, timeout, overlap)

    def fail(self, reason: str) -> None:
        """It runs and does not answer: end it, as if it had ended by itself. The policy says what comes then."""
        self._supervision.fail(reason)

    async def sleep(self) -> None:
        """End it until somebody needs it. Does nothing while it has calls, subscriptions or tasks."""
        await self._supervision.sleep()

    async def ping(self, within: float) -> str | None:
        """Ask whether it still answers, and how it is (MGP §11.3; None if it does not say). Raises PeerError."""
        main = self._conversations.main
        if main is None:
            raise PeerGone(f"server {self.id!r} is not connected")
        if self.said is not None and "lifecycle" in self.said.sections:
            said = (await main.request("mgp/health/ping", {}, within)).get("status")
            return said if said in HEALTH else None
        await main.request("server/discover" if main.stateless else "ping", {}, within)
        return None

    # -- conversations and fronts ------------------------------------------------------------------------

    def ended(self, channel: Channel, reason: PeerGone) -> None:
        """See `channel.ChannelOwner`."""
        if channel is self._conversations.main:
            self._supervision.main_gone.set()
            return
        self._state.note = self.hidden(reason.message)
        self._conversations.lost(channel, reason)
        self._changes.lost(channel.front)

    async def tell_decisions(self) -> None:
        """Somebody has decided about permissions: the server is told in every conversation that is open."""
        told = [channel.grants.refresh() for channel in self._conversations.all() if channel.grants is not None]
        await asyncio.gather(*told)

    def left(self, session: Session) -> None:
        """A front has left."""
        self._conversations.left(session)
        self._changes.left(session)

    def credential_ended(self, credential: str) -> None:
        """A key or token has been revoked, or has expired."""
        if credential:
            self._conversations.credential_ended(credential)

    def roots_changed(self, session: Session) -> None:
        """A front has other roots than before: its own conversations are told."""
        for channel in self.pool.all():
            if channel.front is not None and channel.front.session is session and not channel.stateless:
                channel.conversation.say("notifications/roots/list_changed", {})

    def __repr__(self) -> str:
        return f"<Backend {self.id!r} {self.state}, {self.target!r}>"


def summary(backend: Backend) -> dict[str, Any]:
    """What lists say, to anybody, of a backend that is not connected."""
    return {"state": backend.state, "note": ASLEEP if backend.note == ASLEEP else TOLD[backend.state]}
