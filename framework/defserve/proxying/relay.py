"""One call of a front on its way to a backend and back: its questions, its notices, its result. All four pairs of eras.

| front | backend | a question |
|---|---|---|
| handshake | handshake | is passed on as a request, within the call |
| handshake | stateless | is asked by a request; then the call is repeated with the answers |
| stateless | stateless | is left in the result, with the backend's state sealed in ours |
| stateless | handshake | is left in the result, while the call is parked |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from math import inf
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from defserve.client.answers import MAX_INPUT_ROUNDS
from defserve.client.replies import Json, UnreadableReply, number_or_none, object_or_empty
from defserve.client.tasks import FINAL_TASK_STATUSES, get_poll_seconds, is_task_required_error
from defserve.core.call import Call
from defserve.core.messages import EncodedJson
from defserve.errors import PeerError, ProtocolError
from defserve.protocols.mcp.asking.client_requests import (
    ANSWER_CHECKS,
    ParkedWork,
    ParkedWorkRegistry,
    ask_caller_of_parked_work,
    find_parked_work,
)
from defserve.protocols.mcp.asking.round_trips import RoundTrips
from defserve.protocols.mcp.errors import ERROR_META_KEY, build_no_back_channel_detail
from defserve.protocols.mcp.lifecycle import get_dialect
from defserve.protocols.mcp.reporting import get_log_threshold, read_progress_token, relay_log_message
from defserve.protocols.mcp.tasks.records import TASKS_EXTENSION_ID
from defserve.protocols.mgp.terms import CONFIRMED_META_KEY, PersonConfirmedHere
from defserve.proxying import boundary
from defserve.proxying.boundary import ROUND_TRIP_FIELDS, add_asker_to_question, filter_front_meta
from defserve.proxying.channel import (
    CANNOT_CONFIRM_REASON,
    QUESTION_CAPABILITIES,
    BackendChannel,
    is_confirmation_question,
)

if TYPE_CHECKING:
    from defserve.core.messages import Reply, Request
    from defserve.proxying.calls import HeldChannels
    from defserve.proxying.channel import FrontClient
    from defserve.proxying.mounted import MountedServer


COMPLETE: Final = "complete"
NOTHING: Final[Json] = {}
SERVER, STATE, ASKED, HELD = "server", "state", "asked", "held"


class RelayContext(NamedTuple):
    """What all calls of one backend share.

    `held` keeps conversations whose question was left in a result, `tasks` those that have a task in their memory.
    """

    server: MountedServer
    parking: ParkedWorkRegistry
    held: HeldChannels
    tasks: HeldChannels


class RelayedCall:
    """What one call needs in a backend. `call` is replaced when the front repeats the request with its answers.

    `rounds` are the answers that its request brings. `task_handle` is what the conversation is kept by, if it has a
    task in its memory.
    """

    __slots__ = (
        "call", "channel", "front", "server", "token", "task_handle", "lacks",
        "_context", "_rounds", "_work", "_is_held", "_progress",
    )  # fmt: skip

    def __init__(
        self,
        context: RelayContext,
        call: Call,
        channel: BackendChannel,
        front: FrontClient,
        rounds: RoundTrips | None = None,
    ) -> None:
        self._context, self.server = context, context.server
        self.call, self.channel, self.front, self._rounds = call, channel, front, rounds
        self.task_handle: str | None = None
        self.token: Any = None
        self._work: ParkedWork | None = None
        self._is_held = False
        self.lacks: str | None = None
        """What the backend asked for, and the front did not offer."""
        self._progress = -inf

    async def run(self, method: str, params: Json) -> Json:
        """The result of the request. Raises what the front is told if there is none.

        Every call takes this way. What is usual is done in this frame, because each further one costs as much again.
        """
        channel, call = self.channel, self.call
        conversation, stateless = channel.conversation, channel.terms.stateless
        if channel.may_ask and not stateless and self._work is None and not can_wait(call):
            return await self._context.parking.run_or_resume(
                call.root, lambda work: self._run_parked(work, method, params)
            )
        channel.begin_exchange(self)
        try:
            level = get_log_threshold(call)
            if channel.needs_log_level(level):
                await channel.set_log_level(level)
            if channel.grants is not None:
                await channel.grants.send_changes(call)
            request = self._request(method, params, level)
            pending = conversation.start_forwarding(method, request, self)
            if pending is None:
                reply = await channel.forward(method, object_or_empty(request), self)
            else:
                try:
                    if pending.unsent is not None:
                        await pending.await_unless_settled(pending.unsent)
                    reply = await pending.reply
                except BaseException as reason:
                    conversation.abandon_request(pending, reason)
                    raise
            result = self._result(reply)
            if stateless:
                if result.get("resultType", COMPLETE) != COMPLETE:
                    if isinstance(request, EncodedJson):
                        request = channel.with_meta(params, NOTHING, self._offers(method), level)
                    result = await self._in_rounds(method, request, result)
            elif "task" in params:
                result = await self._old_outcome(object_or_empty(result.get("task")))
        except (PeerError, ProtocolError) as error:
            if not (stateless and self.front.waits and method == "tools/call" and is_task_required_error(error)):
                raise
            # It was refused before it ran.
            return await self._as_task(method, params)
        finally:
            if not self._is_held:
                channel.end_exchange(self)
        if self.lacks is not None and result.get("isError") is True:
            result["_meta"] = {
                **object_or_empty(result.get("_meta")),
                ERROR_META_KEY: build_no_back_channel_detail({self.lacks: {}}),
            }
        if not stateless:
            for member in ROUND_TRIP_FIELDS:
                # They mean nothing in its era. A front of the other one would take them for ours.
                result.pop(member, None)
        return result

    def _request(self, method: str, params: Json, level: str | None) -> Json | EncodedJson:
        """The params as the backend gets them; encoded, if they hold nothing that only this call has."""
        channel, front, call = self.channel, self.front, self.call
        passed = self._build_backend_meta()
        self.token = passed.get("progressToken")
        offers = self._offers(method) if front.takes_tasks else front.offers
        rounds = self._rounds
        if channel.grants is not None and channel.terms.stateless:
            passed, offers = {**passed, **channel.grants.make_call_meta(call)}, channel.grants.add_grant_offers(offers)
        if not passed and rounds is None and channel.conversation.can_start_forwarding:
            return channel.encode_params(params, offers, level)
        complete = channel.with_meta(params, passed, offers, level)
        if rounds is None or not channel.terms.stateless:
            return complete
        return {**complete, **self._brought(rounds)}

    def _build_backend_meta(self) -> Json:
        """What the backend gets of the front's `_meta`; and that a person has confirmed the call, if that is so."""
        call = self.call
        passed = filter_front_meta(call.params["_meta"]) if "_meta" in call.params else NOTHING
        return {**passed, CONFIRMED_META_KEY: True} if call.peek(PersonConfirmedHere) is not None else passed

    def _offers(self, method: str) -> Json:
        """What the front lets the backend do with this request."""
        offers = self.front.offers
        return with_tasks(offers) if self._takes_tasks(method) else offers

    def _takes_tasks(self, method: str) -> bool:
        """Whether the backend may make a task of this request, and the front takes it."""
        terms = self.channel.terms
        return self.front.takes_tasks and terms.stateless and method in TASK_METHODS and has_tasks(terms.capabilities)

    # -- a backend's task that the front waits for -------------------------------------------------------

    async def _as_task(self, method: str, params: Json) -> Json:
        """A call that can only be a task: we take the task, and give its result as that of the call."""
        channel, offers = self.channel, with_tasks(self.front.offers)
        request = channel.with_meta(params, self._build_backend_meta(), offers, get_log_threshold(self.call))
        result = self._result(await channel.forward(method, request, self))
        if result.get("resultType", COMPLETE) != COMPLETE:
            result = await self._in_rounds(method, request, result, is_wanted=True)
        return await self._outcome(result) if result.get("resultType") == "task" else result

    async def _outcome(self, created: Json) -> Json:
        """The result of a task, as that of a call. If nobody waits any more, the task is cancelled."""

        async def ask(method: str, params: Json) -> Json:
            complete = self.channel.with_meta(params, {}, with_tasks(self.front.offers), None)
            return self._result(await self.channel.forward(method, complete, self))

        try:
            found = await await_task(created, ask, self._answers)
        except BaseException:
            self.cancel_created_task(created)
            raise
        if found.get("status") == "failed":
            raise boundary.make_relayed_error(self.server.id, object_or_empty(found.get("error")), self.server.secrets)
        if found.get("status") == "cancelled":
            raise boundary.BackendMisbehaved(f"server {self.server.id!r} cancelled the call")
        return object_or_empty(found.get("result"))

    async def _old_outcome(self, created: Json) -> Json:
        """The same for a task of 2025-11-25. Its result comes when it is there, and its questions on the way."""
        params: Json = {"taskId": read_task_id(created)}
        try:
            return self._result(await self.channel.forward("tasks/result", params, self))
        except BaseException:
            self.cancel_created_task(params)
            raise

    async def _answers(self, asked: Json) -> Json:
        return await self._ask_front(
            self._check_questions(object_or_empty(self.server.secrets.redact_sure_secrets(asked)))
        )

    async def _ask_front(self, requests: dict[str, Json]) -> Json:
        """The front's answers to questions that were checked and name who asks."""
        return {key: await ask_front(self.call, one["method"], one["params"]) for key, one in requests.items()}

    # -- a backend that asks in its result ---------------------------------------------------------------

    async def _in_rounds(self, method: str, request: Json, result: Json, *, is_wanted: bool = False) -> Json:
        """The result after further rounds, if the first one asks. `is_wanted`: we asked for a task ourselves."""
        waits, rounds = can_wait(self.call), 1
        while (kind := result.get("resultType", COMPLETE)) == "input_required":
            requests = self._check_questions(
                object_or_empty(self.server.secrets.redact_sure_secrets(result.get("inputRequests")))
            )
            state: Json = {"requestState": result["requestState"]} if "requestState" in result else {}
            given = {} if waits else self._take_unproven_answers(requests)
            if not waits and not given:
                kept = {SERVER: self.server.id, STATE: state, ASKED: list(requests), HELD: self._hold_channel()}
                await self.call.root.local(RoundTrips).relay_questions(self.call, requests, kept)
            if rounds == MAX_INPUT_ROUNDS:
                raise boundary.BackendMisbehaved(
                    f"server {self.server.id!r} still asks for input after {MAX_INPUT_ROUNDS} rounds"
                )
            rounds += 1
            complete = {**request, "inputResponses": given or await self._ask_front(requests), **state}
            result = self._result(await self.channel.forward(method, complete, self))
        if kind == "task":
            if not is_wanted and not self._takes_tasks(method):
                raise boundary.BackendMisbehaved(f"server {self.server.id!r} began a task, and was not asked for one")
            if not is_wanted:
                self._hold_for(result)
        elif kind != COMPLETE:
            raise boundary.BackendMisbehaved(
                f"server {self.server.id!r} gave a result of the type {str(kind)[:64]!r}, which nobody offered"
            )
        return result

    def _hold_for(self, created: Json) -> None:
        """Keep a conversation with a child that has a task in its memory. Raises ResourceExhausted if none can be."""
        if not self.server.target.isolates:
            return
        seconds, ttl = self.call.session.composition.limits.task_ttl, number_or_none(created.get("ttlMs"))
        seconds = seconds if ttl is None else min(seconds, ttl / 1000)
        self.task_handle = self._context.tasks.hold_channel(self.channel, self, seconds)
        self._is_held = self.task_handle is not None
        if not self._is_held:
            self.cancel_created_task(created)
            raise boundary.make_busy_error(self.server.id, "all of its conversations run tasks")

    def cancel_created_task(self, created: Json) -> None:
        """Nobody will ask for a task that has begun: have it cancelled."""
        offers = with_tasks(self.front.offers) if self.channel.stateless else {}
        self.channel.send_without_waiting("tasks/cancel", {"taskId": created.get("taskId")}, offers)

    def _hold_channel(self) -> str | None:
        """Keep a conversation that would end with this request. The answers need it."""
        if self.front.key is not None or self.channel.front is None:
            return None
        handle = self._context.held.hold_channel(self.channel, self)
        self._is_held = handle is not None
        return handle

    def _brought(self, rounds: RoundTrips) -> Json:
        """The answers that the front's request brings, and the backend's own state."""
        kept = object_or_empty(rounds.relayed)
        if kept.get(SERVER) != self.server.id:
            # A backend may ask without a state. Then nothing shows what a stranger's answer was asked for: it is
            # kept until the backend has asked, see `_take_unproven_answers`.
            return {"inputResponses": rounds.unproven} if rounds.unproven and self.front.is_known else {}
        given = {key: rounds.answers.pop(key)[1] for key in kept[ASKED] if key in rounds.answers}
        return {"inputResponses": given, **kept[STATE]}

    def _take_unproven_answers(self, requests: dict[str, Json]) -> Json:
        """What a stranger's request brought without a state, for questions that were asked and checked since."""
        unproven = self._rounds.unproven if self._rounds is not None else {}
        return {key: unproven.pop(key) for key in requests if key in unproven}

    def _check_questions(self, requests: Json) -> dict[str, Json]:
        """The questions, if this front has offered to answer all of them."""
        found: dict[str, Json] = {}
        for key, asked in requests.items():
            request = object_or_empty(asked)
            method = str(request.get("method"))
            if QUESTION_CAPABILITIES.get(method) not in self.front.offers:
                raise boundary.BackendMisbehaved(
                    f"server {self.server.id!r} asks for {method}, which its client did not offer"
                )
            found[key] = {**request, "method": method, "params": object_or_empty(request.get("params"))}
        self.refuse_unvouched_confirmations(found)
        return self.add_asker_to_questions(found)

    def add_asker_to_questions(self, requests: Json) -> dict[str, Json]:
        """Questions by key, each of which says who asks."""
        named: dict[str, Json] = {}
        for key, asked in requests.items():
            request = object_or_empty(asked)
            params = add_asker_to_question(
                self.server.id, str(request.get("method")), object_or_empty(request.get("params"))
            )
            named[key] = {**request, "params": params}
        return named

    def refuse_unvouched_confirmations(self, requests: Json) -> None:
        """Raises BackendMisbehaved if the backend asks somebody for a yes for whom nobody vouches."""
        if self.front.is_known:
            return
        for asked in map(object_or_empty, requests.values()):
            if is_confirmation_question(str(asked.get("method")), object_or_empty(asked.get("params"))):
                raise boundary.BackendMisbehaved(
                    f"server {self.server.id!r} asks for a confirmation: {CANNOT_CONFIRM_REASON}"
                )

    # -- a backend that asks while the call runs ---------------------------------------------------------

    async def _run_parked(self, work: ParkedWork, method: str, params: Json) -> Json:
        """The call as work that outlives its request. It is never sent a second time."""
        self._work, work.attached, work.note = work, self._attach, self._note
        return await self.run(method, params)

    def _attach(self, call: Call) -> None:
        self.call = call

    def _note(self) -> str:
        return f"The call waited in server {self.server.id!r} and may have had effects: look before you call it again."

    def on_request(self, request: Request) -> Coroutine[Any, Any, Any]:
        """The backend asks something within this call."""
        return self.channel.answer_request(request, self)

    async def ask_front(self, method: str, params: Json) -> Any:
        """Have the front answer a question of the backend."""
        params = add_asker_to_question(self.server.id, method, self.server.secrets.redact_sure_secrets(params))
        if self._work is not None:
            return await self._work.ask_caller(method, params, ANSWER_CHECKS[method])
        return await ask_front(self.call, method, params)

    # -- what comes back ---------------------------------------------------------------------------------

    def on_notification(self, method: str, params: Json) -> None:
        """The backend says something within this call."""
        self.channel.on_call_notification(self, method, params)

    def on_call_notification(self, method: str, params: Json) -> None:
        """A notification came that belongs to this call."""
        call = self.call
        if method == "notifications/message":
            relay_log_message(call, self.server.secrets.redact_value(params))
        elif method == "notifications/progress" and (token := read_progress_token(call)) is not None:
            self._on_progress(params.get("progress"))
            told = {**self.server.secrets.redact_sure_secrets(params), "progressToken": token}
            if "progress_message" not in get_dialect(call).has:
                told.pop("message", None)
            call.notify(method, told, replaces=("progress", token))

    def _on_progress(self, value: Any) -> None:
        """Progress that grows gives the call its time again."""
        progress, timer = number_or_none(value), self.call.timer
        if progress is not None and timer is not None and progress > self._progress:
            self._progress = progress
            timer.extend(self.call.session.composition.limits.tool_max)

    @property
    def listener(self) -> object:
        """Whose call it is. Who has several calls hears a message once."""
        return self.front.key or self

    def _result(self, reply: Reply) -> Json:
        if reply.error is not None:
            if isinstance(reply, UnreadableReply):
                raise boundary.BackendMisbehaved(
                    f"server {self.server.id!r} gave an answer that cannot be read: {reply.why}"
                )
            if self.channel.grants is not None:
                boundary.raise_mgp_error(self.server.id, reply.error, self.server.secrets)
            raise boundary.make_relayed_error(self.server.id, reply.error, self.server.secrets)
        secrets = self.server.secrets
        result = secrets.redact_reply(reply) if secrets.sure else reply.result
        if not isinstance(result, dict):
            raise boundary.BackendMisbehaved(f"server {self.server.id!r} gave a result that is not an object")
        return result  # pyright: ignore[reportUnknownVariableType]


def can_wait(call: Call) -> bool:
    """Whether a question can be answered while the call runs. Otherwise its request must end, and be repeated."""
    if not get_dialect(call).stateless or find_parked_work(call) is not None:
        return True
    rounds = call.root.peek(RoundTrips)
    return rounds is not None and rounds.wait_for_answer is not None


def get_held_handle(rounds: RoundTrips, id: str) -> Any:
    """The handle of the conversation with a backend that was kept for this request."""
    kept = object_or_empty(rounds.relayed)
    return kept.get(HELD) if kept.get(SERVER) == id else None


async def ask_front(call: Call, method: str, params: Json) -> Any:
    """Have the client of a call that can wait answer a question of a backend."""
    if (work := find_parked_work(call)) is not None:
        return await ask_caller_of_parked_work(call, work, method, params, ANSWER_CHECKS[method], None)
    if get_dialect(call).stateless:
        rounds = call.root.local(RoundTrips)
        return await rounds.ask_client(
            call, *rounds.make_question_key_and_digest(None, method, params), {"method": method, "params": params}
        )
    if params.get("mode") == "url" and "elicitationId" not in params:
        params = {**params, "elicitationId": token_urlsafe(16)}
    try:
        return await call.request(method, params, timeout=call.session.composition.limits.question)
    except PeerError as error:
        raise ProtocolError(error.message, code=error.code, data=error.data) from None


# -- Tasks of backends (both generations), for fronts that take tasks and for those that wait for the result.
#
# | front | backend's tool | |
# |---|---|---|
# | takes tasks | may run as a task | the task is the front's, under an id of ours |
# | stateless, takes none | must run as a task | the backend's refusal |
# | handshake, or a call within a call | must run as a task | we take the task, and wait for its result |
# | any | must run as a task of 2025-11-25 | we take the task, and wait for its result |


TASK_METHODS: Final = frozenset({"tools/call", "tasks/get", "tasks/update", "tasks/cancel"})
MAX_TASK_ID: Final = 1024

Ask = Callable[[str, Json], Awaitable[Json]]
"""Sends a method and its params to the backend that has the task."""


def with_tasks(offers: Json) -> Json:
    """What a front offers, and that tasks are taken."""
    return {**offers, "extensions": {**object_or_empty(offers.get("extensions")), TASKS_EXTENSION_ID: {}}}


def has_tasks(capabilities: Json) -> bool:
    """Whether a server runs tasks of the extension."""
    return TASKS_EXTENSION_ID in object_or_empty(capabilities.get("extensions"))


def is_task_only(tool: Json) -> bool:
    """Whether a listed tool of 2025-11-25 can only be called as a task."""
    return object_or_empty(tool.get("execution")).get("taskSupport") == "required"


def read_task_id(created: Json) -> str:
    """The id of a new task. Raises PeerError if there is none that could be used."""
    id = created.get("taskId")
    if not isinstance(id, str) or not 0 < len(id) <= MAX_TASK_ID:
        raise PeerError("it began a task without a usable id")
    return id


async def await_task(created: Json, ask: Ask, answer: Callable[[Json], Awaitable[Json]]) -> Json:
    """The task of a call when it is over. `answer` gives the answers to its questions, by key."""
    id, found, answered = read_task_id(created), created, set[str]()
    while str(found.get("status")) not in FINAL_TASK_STATUSES:
        await asyncio.sleep(get_poll_seconds(found))
        found = await ask("tasks/get", {"taskId": id})
        asked = object_or_empty(found.get("inputRequests")) if found.get("status") == "input_required" else {}
        # An answer may not show in the task yet. It must not be given twice.
        if new := {key: request for key, request in asked.items() if key not in answered}:
            given = await answer(new)
            answered |= new.keys()
            await ask("tasks/update", {"taskId": id, "inputResponses": given})
    return found
