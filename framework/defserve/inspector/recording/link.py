"""A link that records what passes through it. It stands between a client and the link that it was given.

So a client that is not observed has nothing to pay, and every transport is recorded in the same way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from defserve.errors import PeerError, PeerGone
from defserve.host.link import ExchangingLink, Hear, Link, Lost, PushingLink, ReopenableLink
from defserve.host.links.endpoint import HttpExchange
from defserve.host.links.http import HttpLink
from defserve.inspector.recording.recorder import Direction, RecordedExchange, RecordedMessage, Recorder
from defserve.wire.codec import encode
from defserve.wire.messages import Id, Message, Reply, Request


def observed(link: Link, recorder: Recorder, era: str) -> ObservedLink:
    """The same link for a client, recorded. `era` can be set later, when it is known."""
    if isinstance(link, ExchangingLink):
        return ObservedExchanges(link, recorder, era)
    if isinstance(link, PushingLink) and isinstance(link, ReopenableLink):
        return ObservedPipe(link, link, recorder, era)
    return ObservedLink(link, recorder, era)


class ObservedLink:
    """Any link. `era` is written into each entry."""

    def __init__(self, link: Link, recorder: Recorder, era: str) -> None:
        self._link, self._recorder, self.era = link, recorder, era

    async def send(self, message: bytes) -> None:
        self._record("sent", message)
        await self._link.send(message)

    async def receive(self) -> bytes | Lost | None:
        came = await self._link.receive()
        if isinstance(came, bytes):
            self._record("received", came)
        elif came is not None:
            self._lost(came.id, came.error)
        return came

    async def aclose(self) -> None:
        await self._link.aclose()

    def _record(self, direction: Direction, message: bytes) -> RecordedMessage:
        return self._recorder.append(self.era, direction, message)

    def _lost(self, id: Id, error: PeerError) -> None:
        """An answer that never came, as an answer that says why."""
        self._record("received", encode({"id": id, "error": {"code": error.code, "message": error.message}}))


class ObservedPipe(ObservedLink):
    """A child process: it hands out messages the moment they come, and can be started again."""

    def __init__(self, link: PushingLink, again: ReopenableLink, recorder: Recorder, era: str) -> None:
        super().__init__(link, recorder, era)
        self._pipe, self._again = link, again

    def write(self, message: bytes) -> Awaitable[None] | None:
        self._record("sent", message)
        return self._pipe.write(message)

    def push(self, take: Callable[[bytes], None], gone: Callable[[PeerGone], None]) -> None:
        def came(message: bytes) -> None:
            self._record("received", message)
            take(message)

        self._pipe.push(came, gone)

    async def reopen(self) -> None:
        await self._again.reopen()


class ObservedExchanges(ObservedLink):
    """A link on which every request has an exchange of its own (HTTP). Its headers are recorded too."""

    def __init__(self, link: ExchangingLink, recorder: Recorder, era: str) -> None:
        super().__init__(link, recorder, era)
        self._exchanging = link
        self._carried: dict[int, int] = {}
        if isinstance(link, HttpLink):
            link.watch(self._exchanged)

    @property
    def on_session_lost(self) -> Callable[[], object] | None:
        return self._exchanging.on_session_lost

    @on_session_lost.setter
    def on_session_lost(self, told: Callable[[], object] | None) -> None:
        self._exchanging.on_session_lost = told

    @property
    def session_id(self) -> str | None:
        return self._exchanging.session_id

    def forget_session(self) -> None:
        self._exchanging.forget_session()

    async def send(self, message: bytes) -> None:
        key = self._carry(message)
        try:
            await self._link.send(message)
        finally:
            self._carried.pop(key, None)

    async def ask(self, request: Request, message: bytes, hear: Hear) -> Reply:
        async def heard(said: Message, data: bytes) -> None:
            self._record("received", data)
            await hear(said, data)

        key = self._carry(message)
        try:
            reply = await self._exchanging.ask(request, message, heard)
        except PeerError as error:
            self._lost(request.id, error)
            raise
        finally:
            self._carried.pop(key, None)
        outcome = {"result": reply.result} if reply.error is None else {"error": reply.error}
        self._record("received", encode({"jsonrpc": "2.0", "id": reply.id, **outcome}))
        return reply

    def _carry(self, message: bytes) -> int:
        """Record a message. The exchange that carries it is found by the very bytes."""
        self._carried[id(message)] = self._record("sent", message).seq
        return id(message)

    def _exchanged(self, exchange: HttpExchange) -> None:
        seq = self._carried.get(id(exchange.content))
        if seq is not None:
            response = exchange.response
            self._recorder.attach(
                seq,
                RecordedExchange(
                    exchange.method, exchange.address, exchange.headers, response.status, dict(response.headers)
                ),
            )
