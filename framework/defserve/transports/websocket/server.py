"""WebSocket over ASGI: subprotocol `mcp`, one message per text frame, one session per socket, for both eras."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any, NamedTuple

from defserve.auth.live.bearers import BearerCredential, LiveBearers
from defserve.auth.live.credentials import ENDED
from defserve.auth.principals import Principal
from defserve.transports.asgi import Receive, Scope, Send
from defserve.transports.outbox import STALL, ClientOutbox, OutboundMessage
from defserve.transports.session_provider import SessionProvider, TransportSession

SUBPROTOCOL = "mcp"
CLOSE_SECONDS = 5.0


class CloseReason(NamedTuple):
    """A close code (RFC 6455 §7.4) and the reason in words."""

    code: int
    reason: str


NO_BINARY = CloseReason(1003, "one JSON message a text frame")
TOO_BIG = CloseReason(1009, "message too big")
CREDENTIAL_ENDED = CloseReason(1008, ENDED)
RESTART = CloseReason(1012, "the server is stopping")
GIVES_WAY = CloseReason(1013, "another client needs the place; come back later")

# Sent before the socket is accepted, it refuses the socket. Servers turn it into a 403.
POLICY = 1008


class WebSockets:
    """Every open socket of an endpoint."""

    def __init__(self, provider: SessionProvider) -> None:
        self.provider = provider
        self.open: set[WebSocket] = set()
        self.draining = False

    async def serve(
        self, principal: Principal, scope: Scope, receive: Receive, send: Send, live: LiveBearers | None = None
    ) -> None:
        """Serve one socket from its acceptance to its end. The caller has checked that the client may connect.

        The socket ends with the credential that it was opened with. Raises LimitExceeded before it is accepted.
        """
        socket = WebSocket(receive, send, self.provider.limits.message)
        socket.conversation = self.provider.open(socket.push, principal=principal, counted=True)
        try:
            await send({"type": "websocket.accept", "subprotocol": chosen_subprotocol(scope)})
        except BaseException:
            socket.conversation.close()
            raise
        socket.conversation.on_room, socket.conversation.holder = socket.read_on, socket
        self.open.add(socket)
        if live is not None:
            socket.credentials = live.shown(principal, scope["headers"])
            live.hold(socket)
        try:
            if self.draining:
                socket.drain()
            await socket.serve()
        finally:
            self.open.discard(socket)
            socket.conversation.holder = None
            if live is not None:
                live.release(socket)

    def drain(self) -> None:
        """Close every socket as soon as its calls are answered."""
        self.draining = True
        for socket in list(self.open):
            socket.drain()


class WebSocket(ClientOutbox):
    """One accepted socket."""

    __slots__ = (
        *("conversation", "draining", "credentials"),
        *("_heard", "_limit", "_opened", "_receive", "_room", "_send", "_tasks", "_why"),
    )

    conversation: TransportSession

    def __init__(self, receive: Receive, send: Send, limit: int) -> None:
        super().__init__()
        self.draining = False
        self.credentials: tuple[BearerCredential, ...] = ()
        self._tasks: list[asyncio.Task[CloseReason | None]] = []
        self._why: CloseReason | None = None
        self._receive, self._send, self._limit = receive, send, limit
        self._room = asyncio.Event()
        self._heard = self._opened = time.monotonic()

    def push(self, message: OutboundMessage) -> None:
        """A message for the peer."""
        self.keep(message)
        self._finish_if_drained()
        self.rouse()

    def read_on(self) -> None:
        """There may be room for more of the client's calls."""
        self._room.set()

    def drain(self) -> None:
        self.draining = True
        self._finish_if_drained()
        self.rouse()

    def _finish_if_drained(self) -> None:
        self.finished = self.draining and not self.conversation.in_flight

    def shown(self) -> tuple[BearerCredential, ...]:
        return self.credentials

    def credential_ended(self, key: Any) -> None:
        self._end(CREDENTIAL_ENDED)

    def idle(self) -> tuple[bool, float] | None:
        """As a `SessionHolder`: whether its client was never heard, and for how long it is silent."""
        if self.conversation.in_flight or not self._tasks:
            return None
        return self._heard == self._opened, time.monotonic() - self._heard

    def evict(self) -> None:
        """Its session ends at once, because another one takes its place."""
        self.conversation.close()
        self._end(GIVES_WAY)

    def _end(self, reason: CloseReason) -> None:
        """Close the socket at once, even if its client does not read."""
        self._why = reason
        for task in self._tasks:
            task.cancel()

    async def serve(self) -> None:
        """Serve until the client leaves, breaks a rule or stops reading, its credential ends, or the server stops."""
        self._tasks = tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            self.abandon()
            self.conversation.close()
        for task in done:
            if (reason := self._why or task.result()) is not None:
                await self.close(reason)
                break

    async def _read(self) -> CloseReason | None:
        """Hand every message to the session. Returns why the socket must be closed, or None if the client left."""
        while True:
            while self.full or self.conversation.full:
                # The client does not read its answers, or has sent more calls than can wait.
                self._room.clear()
                await self._room.wait()
            event = await self._receive()
            if event["type"] == "websocket.disconnect":
                return None
            text = event.get("text")
            if text is None:
                return NO_BINARY
            data = text.encode()
            if len(data) > self._limit:
                return TOO_BIG
            self._heard = time.monotonic()
            self.conversation.receive(data)

    async def _write(self) -> CloseReason | None:
        """Write messages until no more will follow, or the client does not read."""
        try:
            while await self.wait():
                while self.unread:
                    item = self.unread.pop(0)
                    try:
                        async with asyncio.timeout(STALL):
                            await self._send({"type": "websocket.send", "text": item.message.data.decode()})
                    finally:
                        item.leave()
                    self._room.set()
                if self.finished:
                    return RESTART
        except (TimeoutError, OSError):  # stalled, or gone
            pass
        return None

    async def close(self, reason: CloseReason) -> None:
        """Close the socket with a reason. The client may not be listening."""
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._send({"type": "websocket.close", "code": reason.code, "reason": reason.reason[:100]})


def chosen_subprotocol(scope: Scope) -> str | None:
    """`mcp` if the client offers it."""
    # Some versions of uvicorn leave several in one text.
    offered = ",".join(scope.get("subprotocols", ())).replace(" ", "").split(",")
    return SUBPROTOCOL if SUBPROTOCOL in offered else None


def offers_another(scope: Scope) -> bool:
    """Whether the client offers subprotocols, and `mcp` is not among them."""
    return bool(scope.get("subprotocols")) and chosen_subprotocol(scope) is None


def refusing(scope: Scope, send: Send) -> Send:
    """Turns an HTTP refusal into what can be sent before a socket is accepted: that response, or a close."""
    can_respond = "websocket.http.response" in scope.get("extensions", {})

    async def refuse(message: Scope) -> None:
        if can_respond:
            await send({**message, "type": f"websocket.{message['type']}"})
        elif message["type"] == "http.response.start":
            await send({"type": "websocket.close", "code": POLICY})

    return refuse
