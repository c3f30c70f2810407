"""One server behind this one: its state, its conversations, what it offers, and the task that keeps it running."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from defserve.core.call import Call
from defserve.errors import DefserveError, PeerError, PeerGone
from defserve.host.fields import Json, object_of
from defserve.host.listening import KINDS as NEWS_KINDS
from defserve.protocols.mcp.asking.parking import ParkedWork, Parking
from defserve.protocols.mcp.lifecycle import dialect_of
from defserve.protocols.mcp.prefixes import Prefix
from defserve.protocols.mcp.tasks.elsewhere import TaskLost
from defserve.protocols.mgp.errors import UpstreamUnavailable
from defserve.proxying import failures, tasks
from defserve.proxying.catalogue import uris
from defserve.proxying.catalogue.catalogue import Catalogue, Clash, Shelf
from defserve.proxying.catalogue.listing import KINDS
from defserve.proxying.catalogue.names import ToolChoice
from defserve.proxying.conversations.channel import Channel
from defserve.proxying.conversations.fronts import Front, front_of
from defserve.proxying.conversations.holding import HeldChannels
from defserve.proxying.conversations.pool import Pool
from defserve.proxying.relay import RelayedCall, held_handle, resumes, shaped
from defserve.proxying.restarts import Exit, RestartPolicy, RestartRefusal, Restarts, RestartsByKey
from defserve.proxying.room import CallRoom
from defserve.proxying.states import State
from defserve.proxying.targets import Per, Secrets, Target
from defserve.proxying.watching import SHARED, Watching
from defserve.wire.jsonvalue import is_object

if TYPE_CHECKING:
    from defserve.core.session import Session

WAIT_SECONDS: Final = 5.0
"""How long a call waits for a backend that is being restarted."""
REOPEN_SECONDS: Final = 1.0
SKILLS_SECONDS: Final = 5.0
"""How old a list of skills may be."""
DRAIN_SECONDS: Final = 30.0
STDERR_LINES: Final = 200
RETIRE_POLL_SECONDS: Final = 0.05
CLEAN_EXIT: Final = "exited with code 0"

# A notification of a backend, and the lists that it says have changed.
CHANGES: Final[Mapping[str, tuple[str, ...]]] = {
    "notifications/tools/list_changed": ("tools",),
    "notifications/prompts/list_changed": ("prompts",),
    "notifications/resources/list_changed": ("resources", "templates", "skills"),
}

SERVER, TASK, HELD = "server", "task", "held"
"""Where a task is: the backend's id, the task's id there, and the conversation that is kept for it."""

KeepTask: TypeAlias = Callable[[Call, Json, Json], Coroutine[Any, Any, Json]]
"""Keeps a new task of a caller, given as its server told of it, and where it is. Returns what the caller is told."""

log = logging.getLogger("defserve.proxying")


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """How a backend is mounted.

    Without `restarts`, a child is started again 5 times in 300 s, and an address is tried for ever.
    """

    prefix: str | None = None
    tools: ToolChoice = field(default_factory=ToolChoice)
    timeout: float | None = None
    in_flight: int = 64
    children: int = 64
    idle: float = 300.0
    restarts: RestartPolicy | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    """A backend went from one state to another. `reason` is for people, without secrets."""

    backend: Backend
    previous: State
    new: State
    reason: str


class Backend:
    """A server behind this one. Everything here runs on one event loop, that of `start`.

    `id` names it in errors and logs; `note` has its last words; `era` is the protocol version that it speaks.
    `since` is the time of the last change of `state`.
    """

    def __init__(self, id: str, target: Target, shelf: Shelf, parking: Parking, options: BackendOptions) -> None:
        self.id, self.options = id, options
        self.target: Target = target
        self.prefix, self.timeout = Prefix(options.prefix), options.timeout
        self.state: State = "registered"
        self.note = ""
        self.era: str | None = None
        self.info: Json = {}
        self.instructions: str | None = None
        self.capabilities: Json = {}
        self.restarts = 0
        self.room = CallRoom(id, options.in_flight)
        self.since = time.time()
        self.stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self.on_stderr: Callable[[str], None] | None = None
        self.secrets: Secrets = target.secrets
        self.catalogue = Catalogue(self, shelf, options.tools)
        self.pool = self._new_pool()
        self.watching = Watching(self._channel, self._watch_key)
        self.policy = Restarts(options.restarts or _usual_policy(target))
        self._shelf, self._parking, self._held = shelf, parking, HeldChannels()
        self._watchers: dict[object, Callable[[Transition], None]] = {}
        self._main: Channel | None = None
        self._task: asyncio.Task[None] | None = None
        self._front_restarts = RestartsByKey(lambda: self.policy.policy)
        self._failed = ""
        self._is_asleep = False
        self._join_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_known = False
        self._skills_read = 0.0
        self._tasks_held = HeldChannels(options.children)
        self.keep_task: KeepTask = _keep_none

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
    def pid(self) -> int | None:
        """The process of its own conversation, if it is a child."""
        return self._main.pid if self._main is not None else None

    @property
    def per(self) -> Per:
        """Who shares a conversation. A server that keeps no session and is no child has nothing to share."""
        given: Per | None = self.target.per
        if given is not None:
            return given
        is_stateless = self._main is not None and self._main.stateless
        return "shared" if is_stateless and not self.target.isolates else "client"

    @property
    def is_new(self) -> bool:
        """Whether it is being opened, and what it offers is not known yet."""
        return not self._is_known and self.state in ("connecting", "restarting")

    def may_have(self, name: str) -> bool:
        """Whether a name or URI could be one of its own."""
        prefix = self.prefix
        return not prefix.text or name.startswith(prefix.name("")) or prefix.inner_uri(name) is not None or not name

    def watch(self, changed: Callable[[Transition], None]) -> Callable[[], None]:
        """Call `changed` after each change of the state. Returns the function that ends it."""
        key = object()
        self._watchers[key] = changed
        return lambda: self._watchers.pop(key, None) and None

    def _join_loop(self) -> None:
        """Belong to the event loop that comes next: what waits must wait on that one."""
        self._main_gone, self._settled = asyncio.Event(), asyncio.Event()
        self._falling_asleep = asyncio.Lock()
        self.catalogue.join_loop()

    def _new_pool(self) -> Pool:
        pool = Pool(self.id, self._open_for, most=self.options.children, idle=self.options.idle)
        pool.ended = lambda front: self.catalogue.forget(front.key)
        return pool

    # -- life --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to connect, if it has not begun. Returns at once: `state` tells what became of it."""
        self._is_asleep = False
        if self._task is None or self._task.done():
            self._join_loop()
            self._forget_restarts()
            self._enter("connecting", "started")
            self._task = asyncio.create_task(self._supervise(), name=f"defserve backend {self.id}")

    async def stop(self, reason: str = "operator_request", timeout: float = DRAIN_SECONDS) -> None:
        """Take no new calls, let those under way finish within `timeout` seconds, then end all conversations."""
        await self._drain(reason, timeout)
        await self._close()
        self._is_asleep = False
        self.catalogue.clear()
        self._is_known = False
        if self.state != "disconnected":
            self._enter("disconnected", reason)

    async def restart(self, reason: str = "operator_request", timeout: float = DRAIN_SECONDS) -> None:
        """End it as `stop` does, and start it again. What it offers stays listed."""
        await self._drain(reason, timeout)
        await self._close()
        self._forget_restarts()
        self.restarts += 1
        self._enter("restarting", reason)
        self._task = asyncio.create_task(self._supervise(), name=f"defserve backend {self.id}")

    async def renew(
        self, reason: str, target: Target | None = None, *, timeout: float = DRAIN_SECONDS, overlap: bool = True
    ) -> None:
        """Start it again without a gap: open the next one, give it the new calls, and let the others finish.

        With another `target`, it is that from now on. Raises PeerError if the next one does not open; then nothing has
        changed. Without `overlap`, or if it is not connected, this is `restart`.
        """
        if not overlap or self._main is None or self.state != "connected":
            self.target = target or self.target
            self.secrets = self.target.secrets
            await self.restart(reason, timeout)
            return
        before, secrets = self.target, self.secrets
        self.target = target or before
        self.secrets = self.target.secrets
        try:
            main = await self._open(None)
            try:
                await self.catalogue.refresh(main)
            except BaseException:
                await main.aclose()
                raise
        except BaseException:
            self.target, self.secrets = before, secrets
            raise
        old, pool = self._main, self.pool
        self._main, self.pool = main, self._new_pool()
        self._learn(main)
        await self._listen(main)
        self._forget_restarts()
        self.restarts += 1
        log.info("server %r: renewed (%s)", self.id, reason)
        await self._retire(old, pool, timeout)

    async def _retire(self, main: Channel | None, pool: Pool, timeout: float) -> None:
        """End conversations that take no new calls, when those under way are done or the time is over."""
        channels = [*pool.all(), *([main] if main is not None else [])]
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while any(channel.exchanges for channel in channels):  # noqa: ASYNC110 - rare, and many set no event
                    await asyncio.sleep(RETIRE_POLL_SECONDS)
        await pool.aclose()
        if main is not None:
            await main.aclose()

    def fail(self, reason: str) -> None:
        """It runs and does not answer: end it, as if it had ended by itself. The policy says what comes then."""
        if self._main is not None and self.state == "connected":
            self._failed = reason
            # Ending a process that hangs takes seconds, and calls must not wait for them.
            self._enter("error", reason)
            self._main_gone.set()

    async def sleep(self) -> None:
        """End it until somebody needs it: what it offers stays listed, and the next call starts it.

        Does nothing while it has calls, subscriptions or tasks.
        """
        channels = [*self.pool.all(), *([self._main] if self._main is not None else [])]
        is_busy = any(channel.updates.uris or channel.exchanges for channel in channels)
        if self.state != "connected" or self.calls or is_busy:
            return
        async with self._falling_asleep:
            self._is_asleep = True
            await self._drain("idle_timeout", 0)
            await self._close()
            self.note = "asleep; the next call starts it"
            self._enter("disconnected", "idle_timeout")

    async def _wake(self) -> None:
        async with self._falling_asleep:
            if self._is_asleep:
                await self.start()

    async def ready(self, seconds: float) -> None:
        """Wait until it is connected, or has failed; at most so many seconds."""
        if not self._settled.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._settled.wait()

    async def ping(self, within: float) -> None:
        """Ask whether it still answers. Raises PeerError."""
        if self._main is None:
            raise PeerGone(f"server {self.id!r} is not connected")
        await self._main.request("server/discover" if self._main.stateless else "ping", {}, within)

    async def _drain(self, reason: str, timeout: float) -> None:
        if self.state == "connected":
            self._enter("draining", reason)
            await self.room.empty(timeout)

    async def _close(self) -> None:
        for other in self._tasks:
            other.cancel()
        self.catalogue.stop_refreshing()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self.pool.aclose()

    async def _supervise(self) -> None:
        """Open it, and open it again whenever it ends, as the policy allows. One task for each backend."""
        while True:
            exit, note = await self._live()
            self.note = note
            verdict = self.policy.after(exit)
            if isinstance(verdict, RestartRefusal):
                reason = note if exit is Exit.STOPPED else f"{verdict.reason}: {note}"
                self._enter("disconnected" if exit is Exit.CLEAN else "error", reason)
                return
            if self.state != "error":
                self._enter("error", note)
            self._enter("restarting", f"again in {verdict:.1f} s")
            await asyncio.sleep(verdict)
            self.restarts += 1

    async def _live(self) -> tuple[Exit, str]:
        """One life of the backend: how it ended, and its last words."""
        self._main_gone.clear()
        try:
            self._main = main = await self._open(None)
            self._learn(main)
            await self.catalogue.refresh(main, strict=True)
            self._skills_read = time.monotonic()
            self._is_known = True
            await self._listen(main)
            self._enter("connected", "opened")
            await self._main_gone.wait()
            # Another one may have taken its place meanwhile.
            gone = self._main.gone
            is_clean = gone is not None and CLEAN_EXIT in gone.message
            return Exit.CLEAN if is_clean else Exit.FAILED, self._hidden(gone.message if gone else self._failed)
        except Clash as clash:
            return Exit.STOPPED, str(clash)
        except PeerError as error:
            return Exit.FAILED, self._hidden(error.message)
        except Exception as error:
            log.exception("server %r could not be opened", self.id)
            return Exit.FAILED, self._hidden(f"{type(error).__name__}: {error}")
        finally:
            main, self._main = self._main, None
            if main is not None:
                await main.aclose()

    async def _open(self, front: Front | None) -> Channel:
        channel = Channel(self, front)
        link = await self.target.link(self._take_stderr)
        # The era that the first conversation found saves the others a probe.
        await channel.open(link, self.target.version or (self.era if front is not None else None))
        return channel

    async def _open_for(self, front: Front) -> Channel:
        await self._may_open(front)
        try:
            channel = await self._open(front)
        except PeerError as error:
            self._front_failed(front)
            raise failures.not_connected(self.id, "error", self._hidden(error.message)) from None
        try:
            await self._want_changes(channel)
            await self.watching.repeat(channel, front.key)
        except BaseException:
            # Who asked for it may have left meanwhile, and nobody else knows of it.
            await channel.aclose()
            raise
        return channel

    async def _may_open(self, front: Front) -> None:
        """Wait for the time when a front whose process failed may have the next one. Raises if there is none."""
        wait = self._front_restarts.wait(front.key)
        if isinstance(wait, RestartRefusal):
            raise failures.not_connected(self.id, "error", f"{wait.reason}: {wait.text}; {self.note}")
        if wait:
            await asyncio.sleep(wait)

    def _front_failed(self, front: Front | None) -> None:
        if front is not None and front.key is not None and self.target.isolates:
            self._front_restarts.failed(front.key)

    def _forget_restarts(self) -> None:
        """An operator asked for a start."""
        self.policy.clear()
        self._front_restarts.forget()

    def _learn(self, main: Channel) -> None:
        terms = main.terms
        self.era, self.info, self.capabilities = terms.version, terms.server_info, terms.capabilities
        self.instructions = terms.instructions

    def _enter(self, state: State, reason: str) -> None:
        previous, self.state = self.state, state
        self.since = time.time()
        if state in ("connected", "error", "disconnected"):
            self._settled.set()
        elif state in ("connecting", "restarting"):
            self._settled.clear()
        if state == "connected":
            self.note = ""
        log.log(logging.WARNING if state == "error" else logging.INFO, "server %r: %s (%s)", self.id, state, reason)
        self.catalogue.touch()
        transition = Transition(self, previous, state, reason)
        for changed in list(self._watchers.values()):
            try:
                changed(transition)
            except Exception:
                log.exception("a watcher of server %r failed", self.id)

    # -- calls -------------------------------------------------------------------------------------------

    async def relay(self, call: Call, method: str, params: Json) -> Json:
        """The result of a call's request. Raises what the front is told if there is none."""
        if resumes(call):
            return await self._named(self._parking.run(call.root, _nothing))
        return await self._in_room(call, self._relay(call, method, params))

    async def _in_room(self, call: Call, work: Coroutine[Any, Any, Json]) -> Json:
        """Do it when there is room for one more call of its caller."""
        caller = call.principal
        try:
            if (turn := self.room.enter(caller)) is not None:
                await self.room.turn(caller, turn)
        except BaseException:
            work.close()
            raise
        try:
            return await work
        finally:
            self.room.leave(caller)

    async def _relay(self, call: Call, method: str, params: Json) -> Json:
        front = front_of(call)
        held = self._held.take(held_handle(call, self.id))
        channel = held.channel if held is not None else await self._channel(front)
        relayed = self._relayed(call, channel, front)
        if held is not None:
            channel.begin(relayed)
            channel.end(held.exchange)
        try:
            result = await self._named(relayed.run(method, params))
            return await self._kept(relayed, result) if result.get("resultType") == "task" else result
        finally:
            self.pool.unused(channel)

    def _relayed(self, call: Call, channel: Channel, front: Front) -> RelayedCall:
        tasks = self._tasks_held if self.target.isolates else None
        return RelayedCall(self.id, call, channel, front, self._parking, self._held, self.secrets, tasks)

    async def _kept(self, relayed: RelayedCall, created: Json) -> Json:
        """The backend has made a task of a call: the front's answer, with an id of ours."""
        where = {SERVER: self.id, HELD: relayed.task_handle}
        try:
            return await self._named(self.keep_task(relayed.call, created, {**where, TASK: tasks.id_of(created)}))
        except BaseException:
            relayed.abandon(created)
            self.release_task(where)
            raise

    async def ask_task(self, call: Call, where: Json, method: str, params: Json) -> Json:
        """See `mcp.tasks.elsewhere.TaskServers`. `where` is what was given to `keep_task`."""
        found = await self._in_room(call, self._ask_task(call, where, method, params))
        if is_object(found.get("result")):
            dialect = dialect_of(call)
            found["result"] = shaped(uris.in_tool_result(found["result"], self.prefix), dialect)
        return found

    async def _ask_task(self, call: Call, where: Json, method: str, params: Json) -> Json:
        front = front_of(call)
        channel = self._tasks_held.find(where[HELD]) if where[HELD] is not None else await self._channel(front)
        if channel is None:
            raise TaskLost
        try:
            return await self._named(self._relayed(call, channel, front).run(method, {"taskId": where[TASK], **params}))
        except UpstreamUnavailable:
            # A held conversation is a process of its own: that it left ends its tasks.
            if where[HELD] is not None:
                raise TaskLost from None
            raise
        finally:
            self.pool.unused(channel)

    def release_task(self, where: Json) -> None:
        """See `mcp.tasks.elsewhere.TaskServers`."""
        self._tasks_held.release(where[HELD])

    async def _named(self, work: Coroutine[Any, Any, Json]) -> Json:
        """The result of work in this backend. Its failures say whose they are."""
        try:
            return await work
        except PeerError as error:
            raise failures.failed(self.id, error, self.state, self.secrets) from None

    async def _channel(self, front: Front) -> Channel:
        """The conversation that a front's call takes. Waits a moment for a backend that is on its way."""
        if self.state != "draining" and (known := self.pool.known(front)) is not None:
            return known
        if self._is_asleep:
            await self._wake()
        if not self._settled.is_set():
            await self.ready(WAIT_SECONDS if self.state == "restarting" else 2 * WAIT_SECONDS)
        main = self._main
        if self.state != "connected" or main is None:
            raise failures.not_connected(self.id, self.state, self.note)
        per = self.per
        if per == "shared":
            return main
        return await self.pool.get(front if per == "client" else front._replace(key=None))

    # -- what comes by itself ----------------------------------------------------------------------------

    def heard(self, channel: Channel, method: str, params: Json) -> None:
        """See `channel.ChannelOwner`."""
        if (kinds := CHANGES.get(method)) is not None:
            self.catalogue.refresh_soon(channel, kinds)
        elif method == "notifications/resources/updated" and isinstance(params.get("uri"), str):
            self._updated(channel, params["uri"])

    def ended(self, channel: Channel, reason: PeerGone) -> None:
        """See `channel.ChannelOwner`."""
        if channel is self._main:
            self._main_gone.set()
            return
        self.note = self._hidden(reason.message)
        self.pool.drop(channel)
        if CLEAN_EXIT not in reason.message:
            self._front_failed(channel.front)
        if channel.front is not None and self.watching.watches(channel.front):
            self._spawn(self._reopen(channel.front))

    def left(self, session: Session) -> None:
        """A front has left."""
        self.pool.left(session)
        self._front_restarts.forget(lambda key: isinstance(key, tuple) and session in key)
        self.watching.forget(lambda front: front.session is session)

    def roots_changed(self, session: Session) -> None:
        """A front has other roots than before: its own conversations are told."""
        for channel in self.pool.all():
            if channel.front is not None and channel.front.session is session and not channel.stateless:
                channel.conversation.say("notifications/roots/list_changed", {})

    async def read_skills(self, within: float) -> None:
        """Read its skills again, if they were not read a moment ago: no notification says that they have changed."""
        main, now = self._main, time.monotonic()
        is_offered = KINDS["skills"].offered(self.capabilities)
        if not is_offered or main is None or self.state != "connected" or now < self._skills_read + SKILLS_SECONDS:
            return
        self._skills_read = now
        with suppress(PeerError, TimeoutError):
            async with asyncio.timeout(within):
                await self.catalogue.refresh(main, ("skills",))

    async def _listen(self, main: Channel) -> None:
        """Have it tell what changes, and ask again for what its fronts want to hear of."""
        await self._want_changes(main)
        await self.watching.repeat(main, SHARED)

    async def _want_changes(self, channel: Channel) -> None:
        changing = [kind for kind in NEWS_KINDS if object_of(self.capabilities.get(kind)).get("listChanged")]
        with suppress(PeerError):
            await channel.updates.want(kinds=changing)

    async def watch_resources(self, call: Call, uris: Collection[str]) -> None:
        """A front wants to hear when these resources, by their URIs outside, change. Raises what it is told if not."""
        if not object_of(self.capabilities.get("resources")).get("subscribe"):
            return
        try:
            await self.watching.add(_watcher(call), self._inner(uris))
        except PeerError as error:
            raise failures.failed(self.id, error, self.state, self.secrets) from None

    async def unwatch_resources(self, call: Call, uris: Collection[str]) -> None:
        """It no longer does."""
        front = _watcher(call)
        await self.watching.drop(front, self._inner(uris), self._known)
        if front.key is call:
            self.pool.end(front)

    def _inner(self, uris: Collection[str]) -> list[str]:
        return [inner for uri in uris if (inner := self.prefix.inner_uri(uri)) is not None]

    def _known(self, front: Front) -> Channel | None:
        return self._main if self.per == "shared" else self.pool.known(front)

    def _watch_key(self, front: Front) -> Hashable:
        return SHARED if self.per == "shared" else front.key

    def _updated(self, channel: Channel, uri: str) -> None:
        """Tell who asked, and nobody else: other fronts have other conversations, with other contents."""
        outer, front, tell = self.prefix.uri(uri), channel.front, self._shelf.mcp.subscriptions.updated
        if front is None:
            tell(outer)
        elif front.session is not None:
            tell(outer, session=front.session)
        elif isinstance(front.key, str):
            tell(outer, principal=front.key)

    async def _reopen(self, front: Front) -> None:
        """A front that waits for news gets another conversation, though it calls nothing."""
        await asyncio.sleep(REOPEN_SECONDS)
        if self.watching.watches(front):
            with suppress(DefserveError):
                await self._channel(front)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take_stderr(self, line: str) -> None:
        shown = self._hidden(line)
        self.stderr.append(shown)
        if self.on_stderr is not None:
            self.on_stderr(shown)

    def _hidden(self, text: str) -> str:
        return self.secrets.hidden(text)

    def __repr__(self) -> str:
        return f"<Backend {self.id!r} {self.state}, {self.target!r}>"


async def _keep_none(call: Call, created: Json, where: Json) -> Json:
    raise PeerError("tasks are not served here")


def _nothing(work: ParkedWork) -> NoReturn:
    """Work that is resumed was begun before."""
    raise AssertionError("parked work is never begun twice")


def _watcher(call: Call) -> Front:
    """The front that waits for news. One that nobody vouches for is known by its request alone."""
    front = front_of(call)
    return front if front.key is not None else front._replace(key=call, session=call.session)


def _usual_policy(target: Target) -> RestartPolicy:
    return RestartPolicy() if target.isolates else RestartPolicy("always", None)


def summary(backend: Backend) -> dict[str, Any]:
    """What lists say of a backend that is not connected."""
    return {"state": backend.state, **({"note": backend.note[:500]} if backend.note else {})}
