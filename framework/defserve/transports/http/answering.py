"""Runs a call in the task of its HTTP request, and answers: JSON for a single message, otherwise a stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol, Self

from defserve.auth.live.bearers import BearerCredential
from defserve.transports.http.exchange import Exchange
from defserve.transports.outbox import TOO_MANY_CALLS, CompleteReply, OutboundMessage
from defserve.transports.session_provider import BegunCall, SessionProvider, TransportSession, WaitingCall
from defserve.wire.messages import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, Id

# Error code, or TOO_MANY_CALLS → HTTP status, in the stateless era. Any other error is a 200 with the error inside.
STATUS = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    METHOD_NOT_FOUND: 404,
    INVALID_PARAMS: 400,
    -32020: 400,
    -32021: 400,
    -32022: 400,
    TOO_MANY_CALLS: 429,
}

SILENCE = 15.0
# A call of a session has the head of its response after so many seconds, and the id to come back with if it is cut.
HEAD_SECONDS = 1.0
# Watching a client takes a task of its own, and most calls are done before it would have been worth it.
UNWATCHED_SECONDS = 0.05
CLIENT_LEFT = 499
RETRY = ((b"retry-after", b"1"),)


class ResponseRoute(Protocol):
    """Where the messages of one request go, and what it means when its client leaves."""

    @property
    def statuses(self) -> Mapping[int, int]:
        """Error code → HTTP status, where it is not 200."""
        ...

    def push(self, message: OutboundMessage) -> None:
        """A message that belongs to the request."""

    def wants_events(self, exchange: Exchange) -> bool:
        """Whether even a single answer must be sent as an event."""
        ...

    def may_start(self, seconds: float) -> bool:
        """Whether the response becomes a stream of events after so many seconds without a message."""
        ...

    def start(self) -> bytes:
        """The response becomes a stream of events. Returns the first of them."""
        ...

    def attached(self) -> None:
        """A response has begun. From here on its client may leave."""

    def left(self) -> None:
        """Its client went away."""

    def detach(self, exchange: Exchange) -> None:
        """The response has ended."""

    def over(self) -> None:
        """The request has been dealt with."""


class SingleResponse:
    """The route of a request that stands alone: it has a session of its own, and ends with its response."""

    __slots__ = ("provider", "conversation", "exchange", "id")

    statuses = STATUS

    def __init__(self, provider: SessionProvider, conversation: TransportSession, exchange: Exchange, id: Id) -> None:
        self.provider, self.conversation, self.exchange, self.id = provider, conversation, exchange, id

    def push(self, message: OutboundMessage) -> None:
        self.exchange.push(message)

    def wants_events(self, exchange: Exchange) -> bool:
        return False

    def may_start(self, seconds: float) -> bool:
        """Late: it cannot be resumed, and the HTTP status of an error is lost when it has begun."""
        return seconds >= SILENCE

    def start(self) -> bytes:
        return b""

    def attached(self) -> None:
        """The call waits. From here on its credential may end before it does."""
        if self.exchange.live is not None:
            self.exchange.live.hold(self)

    def shown(self) -> tuple[BearerCredential, ...]:
        return self.exchange.shown()

    def credential_ended(self, key: Any) -> None:
        """Its call fails, and so the response ends."""
        self.conversation.end_credential(key)

    def keep_credential(self, is_kept: Callable[[], bool], ended: Callable[[], None]) -> None:
        """See `core.call.Call`."""
        if self.exchange.live is not None:
            self.exchange.live.keep(self.exchange.shown(), is_kept, ended)

    def left(self) -> None:
        """A client that disconnects cancels its call."""
        self.conversation.cancel(self.id)

    def detach(self, exchange: Exchange) -> None:
        """The response has ended, and cannot be resumed."""
        if exchange.live is not None:
            exchange.live.release(self)

    def over(self) -> None:
        if self.exchange.unread:
            self.exchange.abandon()
        self.provider.end(self.conversation)


def route_message(message: Any) -> None:
    """The outlet of a session for a single request."""
    route = message.destination
    if isinstance(route, SingleResponse):
        route.push(message)
    elif message.taken is not None:
        message.taken()


def run(exchange: Exchange, route: ResponseRoute, begun: BegunCall) -> Awaitable[None] | None:
    """Continue a call in the task of its request, and answer it. Returns the rest to await, or None.

    Most calls are done in their first step. They need no task, no timer, and no watch on the client.
    """
    if not isinstance(begun, tuple):
        return _go_on(exchange, route, begun)
    data, code = begun
    if exchange.unread or not data or route.wants_events(exchange):
        route.push(CompleteReply(data, code))
        return _answer_in_the_end(exchange, route)
    route.over()
    return _respond(exchange, route, data, code)


def _respond(exchange: Exchange, route: ResponseRoute, data: bytes, code: int | None) -> Awaitable[None] | None:
    """Send the answer as the whole response. Returns the rest to await, or None."""
    if code == TOO_MANY_CALLS:
        return exchange.respond(429, data, RETRY)
    return exchange.answer(route.statuses.get(code, 200) if code else 200, data)


async def _go_on(exchange: Exchange, route: ResponseRoute, call: WaitingCall) -> None:
    """Finish a call that waits, in the task in which its scopes were opened.

    If that takes long, another task answers, so that the call continues even if its client has left.
    """
    late = LateAnswer(exchange, route, call)
    try:
        assert call.rest is not None
        await call.rest
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            await absorb()
        reply = call.reply
        if late.task or reply is None or not reply[0] or exchange.finished or route.wants_events(exchange):
            await late.begin()
        elif left := _respond(exchange, route, *reply):
            await left
    finally:
        late.end()
        route.over()


async def _answer_in_the_end(exchange: Exchange, route: ResponseRoute) -> None:
    try:
        await absorb()
        await answer(exchange, route)
    finally:
        route.over()


async def answer(exchange: Exchange, route: ResponseRoute) -> None:
    """Write the call's messages: JSON if its answer comes first, events if another message or a long silence does."""
    if exchange.finished and await _answer_at_once(exchange, route):
        return
    with Attached(exchange, route) as attached:
        if await exchange.wait(UNWATCHED_SECONDS) and exchange.finished and await _answer_at_once(exchange, route):
            return
        await _answer_watched(exchange, route, attached)


async def _answer_watched(exchange: Exchange, route: ResponseRoute, attached: Attached) -> None:
    silent = 0.0
    attached.watch()
    while not await exchange.wait(HEAD_SECONDS):
        silent += HEAD_SECONDS
        if route.may_start(silent):
            break
    if exchange.gone:
        await exchange.respond(CLIENT_LEFT)  # nobody reads it, but some middleware needs a response
        return
    if exchange.finished and await _answer_at_once(exchange, route):
        return
    await stream(exchange, route, route.start())


async def stream(exchange: Exchange, route: ResponseRoute, first: bytes) -> None:
    """Write events, beginning with `first`, until there are no more."""
    await exchange.start_events(first)
    await exchange.stream(SILENCE, route.left)


async def _answer_at_once(exchange: Exchange, route: ResponseRoute) -> bool:
    """Answer with JSON if there is only one message. A request that ended without an answer was cancelled."""
    if route.wants_events(exchange):
        return False
    if not exchange.unread:
        await exchange.respond(202)
        return True
    reply = exchange.only
    if reply is None:
        return False
    exchange.take()
    if left := _respond(exchange, route, reply.data, reply.code):
        await left
    return True


class LateAnswer:
    """Begins to answer, in a task of its own, while a call still runs: when it has run for a while, or when it says
    something before its answer. Until then it stands for the reader of the exchange."""

    __slots__ = ("_exchange", "_route", "_call", "_timer", "task")

    def __init__(self, exchange: Exchange, route: ResponseRoute, call: WaitingCall) -> None:
        self._exchange, self._route, self._call = exchange, route, call
        self.task: asyncio.Task[None] | None = None
        route.attached()
        exchange.call_when_roused(self)
        self._timer = asyncio.get_running_loop().call_later(UNWATCHED_SECONDS, self.begin)
        if exchange.unread:
            self.begin()

    def done(self) -> bool:
        """Whether it need not be woken."""
        return self._exchange.finished

    def set_result(self, result: bool) -> None:
        self.begin()

    def begin(self) -> asyncio.Task[None]:
        if self.task is None:
            self._timer.cancel()
            self.task = asyncio.create_task(self._answer())
            self._call.send_reply()
        return self.task

    async def _answer(self) -> None:
        attached = Attached(self._exchange, self._route)
        try:
            await _answer_watched(self._exchange, self._route, attached)
        finally:
            attached.__exit__()

    def end(self) -> None:
        """The call is over, and answered if nobody else does that."""
        if self.task is None:
            self._timer.cancel()
            # Each would hold the other until the garbage collector looks, with all that the call had.
            self._exchange.call_when_roused(None)
            self._route.detach(self._exchange)


class Attached:
    """`with Attached(exchange, route)` surrounds the wait of a call. `watch` notices if its client leaves."""

    __slots__ = ("_exchange", "_route", "_watch")

    def __init__(self, exchange: Exchange, route: ResponseRoute) -> None:
        self._exchange, self._route = exchange, route
        self._watch: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._route.attached()
        return self

    def __exit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._route.detach(self._exchange)

    def watch(self) -> None:
        """Watch the client until the block ends."""
        self._watch = asyncio.create_task(self._exchange.watch(self._route.left))


async def absorb() -> None:
    """Absorb a cancellation of this task that was meant for the call it ran."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        task.uncancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
