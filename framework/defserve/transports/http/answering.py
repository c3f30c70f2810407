"""A call run in the task of its HTTP request, and answered: JSON while one message is all there is, else events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from defserve.transports.http.exchange import Exchange
from defserve.transports.outbox import CompleteReply, OutboundMessage
from defserve.transports.session_provider import BegunCall, SessionProvider, TransportSession
from defserve.wire.messages import Id

# What the stateless era wants an error to look like to HTTP; anything else is a 200 with an error inside.
STATUS = {-32700: 400, -32600: 400, -32601: 404, -32602: 400, -32020: 400, -32021: 400, -32022: 400}

SILENCE = 15.0
CLIENT_LEFT = 499


class ResponseRoute(Protocol):
    """Where the messages of one request go, and what its end means."""

    @property
    def statuses(self) -> Mapping[int, int]:
        """Error code → HTTP status, where it is not 200."""
        ...

    def push(self, message: OutboundMessage) -> None:
        """A message that belongs to the request."""
        ...

    def wants_events(self, exchange: Exchange) -> bool:
        """Whether even a lone answer has to be an event."""
        ...

    def start(self) -> bytes:
        """The response becomes a stream of events; the first of them."""
        ...

    def attached(self) -> None:
        """A response is under way that its client may leave."""
        ...

    def left(self) -> None:
        """Its client went away."""
        ...

    def detach(self, exchange: Exchange) -> None:
        """The response has ended."""
        ...

    def over(self) -> None:
        """The request has been dealt with."""
        ...


class SingleResponse:
    """The course of a request that stands alone: it has a conversation of its own, and ends with its response."""

    __slots__ = ("provider", "conversation", "exchange", "id")

    statuses = STATUS

    def __init__(self, provider: SessionProvider, conversation: TransportSession, exchange: Exchange, id: Id) -> None:
        self.provider, self.conversation, self.exchange, self.id = provider, conversation, exchange, id

    def push(self, message: OutboundMessage) -> None:
        self.exchange.push(message)

    def wants_events(self, exchange: Exchange) -> bool:
        return False

    def start(self) -> bytes:
        return b""

    def attached(self) -> None:
        """Nobody else could be reading."""

    def left(self) -> None:
        """Disconnect is a cancel."""
        self.conversation.cancel(self.id)

    def detach(self, exchange: Exchange) -> None:
        """There is no coming back."""

    def over(self) -> None:
        self.provider.end(self.conversation)


def route_message(message: Any) -> None:
    """Where the conversation of a request that stands alone sends its messages."""
    route = message.destination
    if isinstance(route, SingleResponse):
        route.push(message)


def run(exchange: Exchange, route: ResponseRoute, begun: BegunCall) -> Awaitable[None] | None:
    """Go on with a call in the task of its request and answer it; what is left to await of that, if anything is.

    Most calls are done in their first step, and need nothing armed.
    """
    if not isinstance(begun, tuple):
        return _go_on(exchange, route, begun)
    data, code = begun
    if exchange.unread or not data or route.wants_events(exchange):
        route.push(CompleteReply(data, code))
        return _answer_in_the_end(exchange, route)
    route.over()
    return exchange.answer(route.statuses.get(code, 200) if code else 200, data)


async def _go_on(exchange: Exchange, route: ResponseRoute, work: Coroutine[Any, Any, None]) -> None:
    """A call that waits goes on here, where its scopes were opened, even when its client has left; another task
    answers."""
    try:
        answering = asyncio.create_task(answer(exchange, route))
        await work
        await absorb()
        await answering
    finally:
        route.over()


async def _answer_in_the_end(exchange: Exchange, route: ResponseRoute) -> None:
    try:
        await absorb()
        await answer(exchange, route)
    finally:
        route.over()


async def answer(exchange: Exchange, route: ResponseRoute) -> None:
    """Write what its call says: JSON while one message is all there is, events from the first that is not the answer,
    or after a silence."""
    if exchange.finished and await _answer_at_once(exchange, route):
        return
    with reading(exchange, route):
        await exchange.wait(SILENCE)
        if exchange.gone:
            await exchange.respond(CLIENT_LEFT)  # nobody reads it, but some middleware insists on a response
            return
        if exchange.finished and await _answer_at_once(exchange, route):
            return
        await stream(exchange, route, route.start())


async def stream(exchange: Exchange, route: ResponseRoute, first: bytes) -> None:
    """Write events, beginning with `first`, until there are no more."""
    await exchange.start_events(first)
    await exchange.stream(SILENCE, route.left)


async def _answer_at_once(exchange: Exchange, route: ResponseRoute) -> bool:
    """A single message is plain JSON; a request that ended without an answer was cancelled."""
    if route.wants_events(exchange):
        return False
    if not exchange.unread:
        await exchange.respond(202)
        return True
    reply = exchange.only
    if reply is None:
        return False
    exchange.unread.clear()  # as in `run`
    await exchange.respond(route.statuses.get(reply.code, 200) if reply.code else 200, reply.data)
    return True


@contextmanager
def reading(exchange: Exchange, route: ResponseRoute) -> Generator[None]:
    """While a response is under way that its client may leave."""
    watch = asyncio.create_task(exchange.watch(route.left))
    route.attached()
    try:
        yield
    finally:
        watch.cancel()
        route.detach(exchange)


async def absorb() -> None:
    """Let a cancellation of this task, which was meant for the call it ran, come to an end."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        task.uncancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
