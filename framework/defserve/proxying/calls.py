"""The calls of a backend: each finds room and a conversation, is passed on, and fails with the backend's name."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from secrets import token_urlsafe
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias

from defserve.client.replies import Json, object_or_empty
from defserve.core.call import Call
from defserve.core.json_values import is_object
from defserve.core.peer import make_error_object
from defserve.errors import PeerError
from defserve.protocols.mcp.asking.client_requests import ParkedWork, ParkedWorkRegistry
from defserve.protocols.mcp.asking.round_trips import RoundTrips
from defserve.protocols.mcp.lifecycle import get_dialect
from defserve.protocols.mcp.tasks.extension import TaskLost
from defserve.protocols.mgp.errors import UpstreamUnavailable
from defserve.proxying import boundary, items
from defserve.proxying.boundary import adapt_backend_result, make_busy_error
from defserve.proxying.channel import BackendChannel, identify_front
from defserve.proxying.relay import RelayContext, RelayedCall, get_held_handle, read_task_id

if TYPE_CHECKING:
    from defserve.proxying.channel import FrontClient
    from defserve.proxying.conversations import BackendChannels
    from defserve.proxying.mounted import BackendState, MountedServer


TASK_SERVER_FIELD: Final = "server"
TASK: Final = "task"
HELD: Final = "held"
"""Where a task is: the backend's id, the task's id there, and the conversation that is kept for it."""

KeepTask: TypeAlias = Callable[[Call, Json, Json], Coroutine[Any, Any, Json]]
"""Keeps a new task of a caller, given as its server told of it, and where it is. Returns what the caller is told."""


class BackendCalls:
    """All calls of one backend. `room` bounds them."""

    def __init__(
        self,
        server: MountedServer,
        state: BackendState,
        conversations: BackendChannels,
        room: BackendCallSlots,
        parking: ParkedWorkRegistry,
        keep_task: KeepTask,
    ) -> None:
        self._server, self._state, self._conversations = server, state, conversations
        self._room, self._keep_task = room, keep_task
        self._context = RelayContext(server, parking, HeldChannels(), HeldChannels(server.options.children))
        self.on_unreachable: Callable[[str], None] = lambda reason: None
        """Called with the reason if nobody is at the backend's address any more."""

    async def relay(self, call: Call, method: str, params: Json) -> Json:
        """The result of a call's request. Raises what the front is told if there is none."""
        rounds = call.root.peek(RoundTrips)
        if rounds is not None and rounds.parked is not None:
            return await self._run_in_backend(call, self._context.parking.run_or_resume(call.root, _nothing))
        room, caller, server = self._room, call.principal, self._server
        if (turn := room.begin_call(caller)) is not None:
            await self._turn(call, turn)
        began, failed = perf_counter(), True
        try:
            front, conversations = identify_front(call), self._conversations
            held = self._context.held.take_channel(get_held_handle(rounds, server.id)) if rounds is not None else None
            known = conversations.find_ready_channel(front) if held is None else held.channel
            channel = known or await self._open_channel(call, front)
            relayed = RelayedCall(self._context, call, channel, front, rounds)
            if held is not None:
                channel.begin_exchange(relayed)
                channel.end_exchange(held.exchange)
            try:
                result = await relayed.run(method, params)
                failed = "isError" in result and result["isError"] is True
                return await self._register_task(relayed, result) if result.get("resultType") == "task" else result
            except PeerError as error:
                raise self._make_error(error) from None
            except asyncio.CancelledError:
                self._check_time(call, was_sent=True)
                failed = False  # the caller gave up, or a person is asked meanwhile
                raise
            finally:
                channel.notify_if_idle()
        except asyncio.CancelledError:
            self._check_time(call, was_sent=False)
            raise
        finally:
            room.times.append((began, perf_counter(), failed))
            if failed:
                room.errors += 1
            room.end_call(caller)

    async def _open_channel(self, call: Call, front: FrontClient) -> BackendChannel:
        """The conversation of a front. One that no session ends is ended with the key or token of who it is for."""
        conversations = self._conversations
        channel = await conversations.acquire_channel(front)
        mine = channel.front
        if mine is not None and mine.key is not None and mine.session is None and not channel.is_watched:
            channel.is_watched = True
            call.keep_credential(lambda: not channel.is_over, lambda: conversations.credential_ended(mine.credential))
        return channel

    async def _turn(self, call: Call, turn: asyncio.Future[None]) -> None:
        """Wait for room. Raises UpstreamTimeout if there is none in time."""
        try:
            await self._room.wait_for_turn(call.principal, turn)
        except asyncio.CancelledError:
            self._check_time(call, was_sent=False)
            raise

    def _check_time(self, call: Call, *, was_sent: bool) -> None:
        """Raises UpstreamTimeout for a call that is stopped because its time is up."""
        if call.timed_out and not call.cancelled:
            raise boundary.make_timeout_error(self._server.id, call, self._state.now, was_sent=was_sent) from None

    async def _run_in_backend(self, call: Call, work: Coroutine[Any, Any, Json]) -> Json:
        """The result of work in this backend. Its failures say whose they are."""
        try:
            return await work
        except asyncio.CancelledError:
            self._check_time(call, was_sent=True)
            raise
        except PeerError as error:
            raise self._make_error(error) from None

    def _make_error(self, error: PeerError) -> Exception:
        """What the front is told. Who finds the address deserted tells the supervision, so that nobody else waits."""
        server = self._server
        if boundary.is_unsent(error):
            self.on_unreachable(server.redact_secrets(error.message))
        return boundary.make_call_error(server.id, error, self._state.now, server.secrets)

    # -- tasks -------------------------------------------------------------------------------------------

    async def _register_task(self, relayed: RelayedCall, created: Json) -> Json:
        """The backend has made a task of a call: the front's answer, with an id of ours."""
        where = {TASK_SERVER_FIELD: self._server.id, HELD: relayed.task_handle}
        try:
            return await self._keep_task(relayed.call, created, {**where, TASK: read_task_id(created)})
        except BaseException:
            relayed.cancel_created_task(created)
            self.release_task(where)
            raise

    async def ask_task(self, call: Call, where: Json, method: str, params: Json) -> Json:
        """See `TaskServers`. `where` is what was given to a `KeepTask`."""
        server = self._server
        seconds = server.timeout or call.session.composition.limits.tool
        found = await call.engine.run_with_timeout(call, seconds, self._ask_in_turn(call, where, method, params))
        if is_object(found.get("result")):
            found["result"] = adapt_backend_result(
                items.prefix_tool_result(found["result"], server.prefix), get_dialect(call)
            )
        if is_object(found.get("error")):
            told = boundary.make_relayed_error(server.id, found["error"], server.secrets)
            found["error"] = make_error_object(told.code, told.message, told.data)
        return found

    async def _ask_in_turn(self, call: Call, where: Json, method: str, params: Json) -> Json:
        caller = call.principal
        if (turn := self._room.begin_call(caller)) is not None:
            await self._turn(call, turn)
        try:
            return await self._ask_task(call, where, method, params)
        finally:
            self._room.end_call(caller)

    async def _ask_task(self, call: Call, where: Json, method: str, params: Json) -> Json:
        front, held = identify_front(call), where[HELD]
        channel = self._context.tasks.find_channel(held) if held is not None else await self._open_channel(call, front)
        if channel is None:
            raise TaskLost
        relayed = RelayedCall(self._context, call, channel, front, call.root.peek(RoundTrips))
        task: Json = {"taskId": where[TASK]}
        try:
            if method == "tasks/update" and not front.is_known:
                # Its questions before its answers: a stranger's yes to a later one must not be there already.
                asked = _questions(await self._run_in_backend(call, relayed.run("tasks/get", task)))
                relayed.refuse_unvouched_confirmations(asked)
                answers = object_or_empty(params.get("inputResponses"))
                params = {"inputResponses": {key: answers[key] for key in answers if key in asked}}
            found = await self._run_in_backend(call, relayed.run(method, {**task, **params}))
            relayed.refuse_unvouched_confirmations(asked := _questions(found))
            return {**found, "inputRequests": relayed.add_asker_to_questions(asked)} if asked else found
        except UpstreamUnavailable:
            # A held conversation is a process of its own: that it left ends its tasks.
            if held is not None:
                raise TaskLost from None
            raise
        finally:
            channel.notify_if_idle()

    def release_task(self, where: Json) -> None:
        """See `TaskServers`."""
        self._context.tasks.release_channel(where[HELD])


def _questions(task: Json) -> Json:
    return object_or_empty(task.get("inputRequests"))


def _nothing(work: ParkedWork) -> NoReturn:
    """Work that is resumed was begun before."""
    raise AssertionError("parked work is never begun twice")


# -- How many calls of a backend run at once. The others wait in line, and past that they are refused.


MAX_WAITING_PER_SLOT: Final = 4
"""Calls that wait, for each that may run."""
SHARE_OF_ONE: Final = 3
"""Quarters of the room that one caller may have, so that it cannot keep out the others."""
TIMES_KEPT: Final = 1_000

CallTiming: TypeAlias = tuple[float, float, bool]
"""When a call began and ended, by `time.perf_counter`, and whether it failed."""


class BackendCallSlots:
    """`begin_call` and `end_call` surround a call. `running` are under way, `total` have ever begun.

    Callers wait in lines of their own, which take turns. `times` are those of the last calls; `errors` have failed.
    """

    def __init__(self, id: str, limit: int) -> None:
        self._id, self.limit, self._share = id, limit, -(-limit * SHARE_OF_ONE // 4)
        self.running = self.total = self.errors = 0
        self.times: deque[CallTiming] = deque(maxlen=TIMES_KEPT)
        self._each: dict[str, int] = {}
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}
        self._emptied: asyncio.Event | None = None

    def begin_call(self, caller: str) -> asyncio.Future[None] | None:
        """Begin a call. None if there is room; else give the result to `wait_for_turn`. Raises ResourceExhausted."""
        mine = self._each.get(caller, 0)
        if self.running < self.limit and mine < self._share and caller not in self._lines:
            self._each[caller] = mine + 1
            self.running += 1
            self.total += 1
            return None
        line, waiting = self._lines.get(caller, ()), sum(map(len, self._lines.values()))
        if waiting >= MAX_WAITING_PER_SLOT * self.limit or len(line) >= MAX_WAITING_PER_SLOT * self._share:
            raise make_busy_error(self._id, f"{self.running} calls run and {waiting} wait")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(caller, deque()).append(turn)
        return turn

    async def wait_for_turn(self, caller: str, turn: asyncio.Future[None]) -> None:
        """Wait until a call may begin. It has begun when this returns."""
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.end_call(caller)
            else:
                self._drop_turn(caller, turn)
            raise
        self.total += 1

    def end_call(self, caller: str) -> None:
        """A call is over."""
        self.running -= 1
        if (left := self._each[caller] - 1) > 0:
            self._each[caller] = left
        else:
            del self._each[caller]
        if self._lines:
            self._call_in()
        if self.running == 0 and self._emptied is not None:
            self._emptied.set()

    async def wait_until_idle(self, seconds: float) -> None:
        """Wait until no call is under way; at most so many seconds."""
        if self.running:
            self._emptied = self._emptied or asyncio.Event()
            self._emptied.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._emptied.wait()

    def _call_in(self) -> None:
        """Give the place that has become free to a caller who has not too many. Its line then is the last."""
        for caller in list(self._lines):
            if self.running >= self.limit:
                return
            if self._each.get(caller, 0) >= self._share:
                continue
            # Who was cancelled a moment ago has not left its line yet.
            line = deque(turn for turn in self._lines.pop(caller) if not turn.done())
            if not line:
                continue
            # Taken for the one who waits, so that nobody else gets in between.
            self._each[caller] = self._each.get(caller, 0) + 1
            self.running += 1
            line.popleft().set_result(None)
            if line:
                self._lines[caller] = line

    def _drop_turn(self, caller: str, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(caller, ())
        if turn in line:
            self._lines[caller] = deque(other for other in line if other is not turn)
            if len(line) == 1:
                del self._lines[caller]


# -- Conversations that are kept for further requests, though the one that opened them is over.
#
# A child without sessions asks in its result, and may need its memory to go on: the answers must reach the same child.
# A child that runs a task has it in its memory, until the task is over.


HELD_SECONDS: Final = 600.0
MAX_HELD_CHANNELS: Final = 16
HELD_SHARE_OF_ONE: Final = 3
"""Quarters of them that one caller may have, so that it cannot keep out the others."""


class HeldChannel(NamedTuple):
    """A conversation that an exchange keeps open, though it is over."""

    channel: BackendChannel
    exchange: RelayedCall
    timer: asyncio.TimerHandle


class HeldChannels:
    """Those of one backend, by handle: bounded in number, for each caller too, and in time."""

    def __init__(self, most: int = MAX_HELD_CHANNELS) -> None:
        self._held: dict[str, HeldChannel] = {}
        self._most, self._share = most, -(-most * HELD_SHARE_OF_ONE // 4)

    def hold_channel(self, channel: BackendChannel, exchange: RelayedCall, seconds: float = HELD_SECONDS) -> str | None:
        """Keep a conversation; its handle. None if there is no room: then it ends."""
        caller = _caller(channel)
        own = sum(_caller(held.channel) == caller for held in self._held.values())
        if len(self._held) >= self._most or own >= self._share:
            return None
        handle = token_urlsafe(16)
        timer = asyncio.get_running_loop().call_later(seconds, self.release_channel, handle)
        self._held[handle] = HeldChannel(channel, exchange, timer)
        return handle

    def take_channel(self, handle: Any) -> HeldChannel | None:
        """The conversation behind a handle. Who takes it ends the exchange, after its own has begun."""
        held = self._held.pop(handle, None) if isinstance(handle, str) else None
        if held is not None:
            held.timer.cancel()
        return held if held is not None and held.channel.gone is None else None

    def find_channel(self, handle: Any) -> BackendChannel | None:
        """The conversation behind a handle, which stays kept; None if it has ended."""
        held = self._held.get(handle)
        return held.channel if held is not None and held.channel.gone is None else None

    def release_channel(self, handle: Any) -> None:
        """Nobody needs it any more."""
        if (held := self._held.pop(handle, None)) is not None:
            held.timer.cancel()
            held.channel.end_exchange(held.exchange)


def _caller(channel: BackendChannel) -> str | None:
    return channel.front.principal if channel.front is not None else None
