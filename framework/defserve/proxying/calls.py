"""The calls of a backend: each finds room and a conversation, is passed on, and fails with the backend's name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from defserve.core.call import Call
from defserve.core.profile import error_object
from defserve.errors import PeerError
from defserve.host.fields import Json, object_of
from defserve.protocols.mcp.asking.parking import ParkedWork, Parking
from defserve.protocols.mcp.asking.round_trips import RoundTrips
from defserve.protocols.mcp.lifecycle import dialect_of
from defserve.protocols.mcp.tasks.elsewhere import TaskLost
from defserve.protocols.mgp.errors import UpstreamUnavailable
from defserve.proxying import failures, tasks
from defserve.proxying.catalogue import uris
from defserve.proxying.conversations.fronts import front_of
from defserve.proxying.conversations.holding import HeldChannels
from defserve.proxying.conversations.passing import shaped
from defserve.proxying.relay import RelayContext, RelayedCall, held_handle
from defserve.proxying.slots import CallSlots
from defserve.wire.jsonvalue import is_object

if TYPE_CHECKING:
    from defserve.proxying.conversations.channel import Channel
    from defserve.proxying.conversations.conversations import Conversations
    from defserve.proxying.conversations.fronts import Front
    from defserve.proxying.mounted import MountedServer
    from defserve.proxying.states import BackendState

SERVER: Final = "server"
TASK: Final = "task"
HELD: Final = "held"
"""Where a task is: the backend's id, the task's id there, and the conversation that is kept for it."""

KeepTask: TypeAlias = Callable[[Call, Json, Json], Coroutine[Any, Any, Json]]
"""Keeps a new task of a caller, given as its server told of it, and where it is. Returns what the caller is told."""


class Calls:
    """All calls of one backend. `room` bounds them."""

    def __init__(
        self,
        server: MountedServer,
        state: BackendState,
        conversations: Conversations,
        room: CallSlots,
        parking: Parking,
        keep_task: KeepTask,
    ) -> None:
        self._server, self._state, self._conversations = server, state, conversations
        self._room, self._keep_task = room, keep_task
        self._context = RelayContext(server, parking, HeldChannels(), HeldChannels(server.options.children))

    async def relay(self, call: Call, method: str, params: Json) -> Json:
        """The result of a call's request. Raises what the front is told if there is none."""
        rounds = call.root.peek(RoundTrips)
        if rounds is not None and rounds.parked is not None:
            return await self._named(call, self._context.parking.run(call.root, _nothing))
        room, caller, server = self._room, call.principal, self._server
        if (turn := room.enter(caller)) is not None:
            await self._turn(call, turn)
        began, failed = perf_counter(), True
        try:
            front, conversations = front_of(call), self._conversations
            held = self._context.held.take(held_handle(rounds, server.id)) if rounds is not None else None
            if held is not None:
                channel = held.channel
            else:
                channel = conversations.at_hand(front) or await self._opened(call, front)
            relayed = RelayedCall(self._context, call, channel, front, rounds)
            if held is not None:
                channel.begin(relayed)
                channel.end(held.exchange)
            try:
                result = await relayed.run(method, params)
                failed = "isError" in result and result["isError"] is True
                return await self._kept(relayed, result) if result.get("resultType") == "task" else result
            except PeerError as error:
                raise failures.failed(server.id, error, self._state.now, server.secrets) from None
            except asyncio.CancelledError:
                self._check_time(call, was_sent=True)
                failed = False  # the caller gave up, or a person is asked meanwhile
                raise
            finally:
                channel.unused()
        except asyncio.CancelledError:
            self._check_time(call, was_sent=False)
            raise
        finally:
            room.times.append((began, perf_counter(), failed))
            if failed:
                room.errors += 1
            room.leave(caller)

    async def _opened(self, call: Call, front: Front) -> Channel:
        """The conversation of a front. One that no session ends is ended with the key or token of who it is for."""
        conversations = self._conversations
        channel = await conversations.of(front)
        mine = channel.front
        if mine is not None and mine.key is not None and mine.session is None and not channel.is_watched:
            channel.is_watched = True
            call.keep_credential(lambda: not channel.is_over, lambda: conversations.credential_ended(mine.credential))
        return channel

    async def _turn(self, call: Call, turn: asyncio.Future[None]) -> None:
        """Wait for room. Raises UpstreamTimeout if there is none in time."""
        try:
            await self._room.turn(call.principal, turn)
        except asyncio.CancelledError:
            self._check_time(call, was_sent=False)
            raise

    def _check_time(self, call: Call, *, was_sent: bool) -> None:
        """Raises UpstreamTimeout for a call that is stopped because its time is up."""
        if call.timed_out and not call.cancelled:
            raise failures.timed_out(self._server.id, call, self._state.now, was_sent=was_sent) from None

    async def _named(self, call: Call, work: Coroutine[Any, Any, Json]) -> Json:
        """The result of work in this backend. Its failures say whose they are."""
        try:
            return await work
        except asyncio.CancelledError:
            self._check_time(call, was_sent=True)
            raise
        except PeerError as error:
            raise failures.failed(self._server.id, error, self._state.now, self._server.secrets) from None

    # -- tasks -------------------------------------------------------------------------------------------

    async def _kept(self, relayed: RelayedCall, created: Json) -> Json:
        """The backend has made a task of a call: the front's answer, with an id of ours."""
        where = {SERVER: self._server.id, HELD: relayed.task_handle}
        try:
            return await self._keep_task(relayed.call, created, {**where, TASK: tasks.id_of(created)})
        except BaseException:
            relayed.abandon(created)
            self.release_task(where)
            raise

    async def ask_task(self, call: Call, where: Json, method: str, params: Json) -> Json:
        """See `mcp.tasks.elsewhere.TaskServers`. `where` is what was given to a `KeepTask`."""
        server = self._server
        seconds = server.timeout or call.session.composition.limits.tool
        found = await call.engine.within(call, seconds, self._ask_in_turn(call, where, method, params))
        if is_object(found.get("result")):
            found["result"] = shaped(uris.in_tool_result(found["result"], server.prefix), dialect_of(call))
        if is_object(found.get("error")):
            told = failures.relayed(server.id, found["error"], server.secrets)
            found["error"] = error_object(told.code, told.message, told.data)
        return found

    async def _ask_in_turn(self, call: Call, where: Json, method: str, params: Json) -> Json:
        caller = call.principal
        if (turn := self._room.enter(caller)) is not None:
            await self._turn(call, turn)
        try:
            return await self._ask_task(call, where, method, params)
        finally:
            self._room.leave(caller)

    async def _ask_task(self, call: Call, where: Json, method: str, params: Json) -> Json:
        front, held = front_of(call), where[HELD]
        channel = self._context.tasks.find(held) if held is not None else await self._opened(call, front)
        if channel is None:
            raise TaskLost
        relayed = RelayedCall(self._context, call, channel, front, call.root.peek(RoundTrips))
        task: Json = {"taskId": where[TASK]}
        try:
            if method == "tasks/update" and not front.is_known:
                # Its questions before its answers: a stranger's yes to a later one must not be there already.
                asked = _questions(await self._named(call, relayed.run("tasks/get", task)))
                relayed.refuse_strangers_yes(asked)
                answers = object_of(params.get("inputResponses"))
                params = {"inputResponses": {key: answers[key] for key in answers if key in asked}}
            found = await self._named(call, relayed.run(method, {**task, **params}))
            relayed.refuse_strangers_yes(asked := _questions(found))
            return {**found, "inputRequests": relayed.name_asker(asked)} if asked else found
        except UpstreamUnavailable:
            # A held conversation is a process of its own: that it left ends its tasks.
            if held is not None:
                raise TaskLost from None
            raise
        finally:
            channel.unused()

    def release_task(self, where: Json) -> None:
        """See `mcp.tasks.elsewhere.TaskServers`."""
        self._context.tasks.release(where[HELD])


def _questions(task: Json) -> Json:
    return object_of(task.get("inputRequests"))


def _nothing(work: ParkedWork) -> NoReturn:
    """Work that is resumed was begun before."""
    raise AssertionError("parked work is never begun twice")
