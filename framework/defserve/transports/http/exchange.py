"""One HTTP request and its response, which is JSON for a single message, otherwise a stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias

from defserve.auth.live.bearers import BearerCredential, LiveBearers
from defserve.auth.principals import Principal
from defserve.base.echoes import cut_text
from defserve.core.stepping import rest
from defserve.transports.asgi import WHOLE, Header, HeaderList, Receive, RequestHead, Scope, Send, WholeRequest
from defserve.transports.http import sse_format
from defserve.transports.http.headers import Headers, is_json, names_json
from defserve.transports.outbox import STALL, ClientOutbox, OutboundMessage
from defserve.wire.codec import encode
from defserve.wire.messages import INVALID_REQUEST, Id

RefusalData: TypeAlias = Callable[[int, str], dict[str, Any] | None]
"""The code and the text of an error → its `data`, if it has any."""

JSON = (b"content-type", b"application/json")
PLAIN = (b"content-type", b"text/plain; charset=utf-8")


class Exchange(ClientOutbox):
    """A request and its response. `push` may be called at any time. Messages are written in the order of `push`.

    `version` comes from its header. `routing` is the version, the method and the name, if headers give all of them
    (`headers.routing`). `prefers_events` is None until the Accept header was read. `is_doubted`: the client may have
    gone.
    """

    headers: Headers
    version: str | None
    routing: tuple[str, str, str | None] | None

    __slots__ = (
        "head",
        "headers",
        "principal",
        "live",
        "prefers_events",
        "is_doubted",
        "version",
        "routing",
        "refusal",
        "_is_read",
        "_scope",
        "_whole",
        "_send",
        "_receive",
    )

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        principal: Principal,
        refusal: RefusalData | None,
        live: LiveBearers | None = None,
    ) -> None:
        ClientOutbox.__init__(self)  # `super()` is an object more for every request
        self.principal, self.refusal, self.live = principal, refusal, live
        self.prefers_events: bool | None = None
        self.is_doubted = self._is_read = False
        self._scope, self._receive, self._send = scope, receive, send
        self._whole: WholeRequest | None = (whole := scope.pop(WHOLE, None))
        self.head: RequestHead | None = whole.head if whole is not None else None

    @property
    def scope(self) -> Scope:
        return self._scope

    def shown(self) -> tuple[BearerCredential, ...]:
        """The credential that the request shows, if credentials are checked."""
        return self.live.shown(self.principal, self._scope["headers"]) if self.live is not None else ()

    def read_head(self) -> None:
        """Read the headers, for a head that is not known yet."""
        self.headers = Headers(self._scope["headers"])
        self.version = self.headers.get("mcp-protocol-version")
        self.routing = None

    # -- from the runner ---------------------------------------------------------------------------------

    def push(self, message: OutboundMessage, id: str | None = None) -> None:
        """Add a message that belongs to this request. The answer is the last."""
        if self.finished:
            if message.taken is not None:
                message.taken()
            return
        self.keep(message, id)
        self.finished = message.answers
        self.rouse()

    def drop(self) -> None:
        """End the response without an answer. A client may resume it to get the rest."""
        self.finished = True
        self.rouse()

    # -- from the client ---------------------------------------------------------------------------------

    def body_at_hand(self, limit: int) -> bytes | None:
        """The request's body, if it is there already. Otherwise `body` waits for it."""
        body = self._whole.take_body(limit) if self._whole is not None else None
        self._is_read = body is not None
        return body

    async def body(self, limit: int, seconds: float) -> bytes | None:
        """The request's body. None: it is larger than `limit`, or its client left half-way.

        Raises TimeoutError if it is not there in time.
        """
        steps = self._receive().__await__()
        try:
            waiting_for = next(steps)
        except StopIteration as done:
            message = done.value
            if "body" in message and not message.get("more_body", False):
                # The body came with the headers, so it needs no timer.
                self._is_read = True
                return message["body"] if len(message["body"]) <= limit else None
            if self._announces_more_than(limit):
                return None
            async with asyncio.timeout(seconds):
                return await self._read(limit, message)
        if self._announces_more_than(limit):
            steps.close()
            return None
        async with asyncio.timeout(seconds):
            return await self._read(limit, await rest(steps, waiting_for))

    def _announces_more_than(self, limit: int) -> bool:
        length = self.headers.get("content-length")
        return length is not None and length.isdecimal() and int(length) > limit

    async def _read(self, limit: int, message: MutableMapping[str, Any]) -> bytes | None:
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            if chunks:
                message = await self._receive()
            if message["type"] == "http.disconnect":
                self.gone = True
                return None
            chunks.append(message.get("body", b""))
            size, more = size + len(chunks[-1]), message.get("more_body", False)
            if size > limit:
                return None
        self._is_read = True
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def watch(self, left: Callable[[], None]) -> None:
        """Wait for the client to go away, then call `left`.

        Our own server says `http.request` again when the client has closed its side. It may read or be gone.
        """
        while (message := await self._receive())["type"] != "http.disconnect":
            if self._is_read:
                self.is_doubted = True
                self.rouse()
            self._is_read = not message.get("more_body", False)
        self.leave(left)

    def leave(self, left: Callable[[], None]) -> None:
        if not self.gone:
            self.gone = True
            self.rouse()
            left()

    # -- to the client -----------------------------------------------------------------------------------

    def answer(self, status: int, body: bytes) -> Awaitable[None] | None:
        """Send one complete response of JSON. Returns the rest to await, or None."""
        if self._whole is not None and self._whole.respond(status, body):
            return None
        return self.respond(status, body)

    async def refuse(self, status: int, text: str, headers: HeaderList = (), code: int = INVALID_REQUEST) -> None:
        """Send a refusal: a JSON-RPC error to who asks for JSON or sends it, otherwise the text alone."""
        if names_json(self.headers.get("accept")) or is_json(self.headers.get("content-type")):
            await self.respond(status, self.error(code, text), headers)
        else:
            await self.respond(status, cut_text(text).encode(), headers, plain=True)

    def error(self, code: int, text: str, id: Id | None = None, about: Mapping[str, Any] | None = None) -> bytes:
        """A JSON-RPC error. Clients do not read one without an id, so an unknown id is null. `about` is in its data."""
        text = cut_text(text)
        data = {**((self.refusal(code, text) if self.refusal is not None else None) or {}), **(about or {})}
        error = {"code": code, "message": text} | ({"data": data} if data else {})
        return encode({"jsonrpc": "2.0", "id": id, "error": error})

    async def respond(
        self, status: int, body: bytes = b"", headers: HeaderList = (), *, plain: bool = False, kind: Header = JSON
    ) -> None:
        """Send one complete response. `kind` is the header of its media type."""
        kinds = (PLAIN if plain else kind,) if body else ()
        headers = [*kinds, (b"content-length", b"%d" % len(body)), *headers]
        try:
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": body})
        except OSError:  # ASGI servers may raise it when the client has gone; `watch` notices that too
            pass

    @property
    def only(self) -> OutboundMessage | None:
        """The answer, if it is the only message."""
        alone = self.unread[0].message if self.finished and len(self.unread) == 1 else None
        return alone if alone is not None and alone.answers else None

    async def start_events(self, first: bytes = b"") -> None:
        """Begin a response that is a stream of events."""
        try:
            await self._send({"type": "http.response.start", "status": 200, "headers": list(sse_format.HEADERS)})
            await self._send({"type": "http.response.body", "body": first, "more_body": True})
        except OSError:  # as in `respond`
            pass

    async def stream(self, keep_alive: float, left: Callable[[], None]) -> None:
        """Write events until the request is answered or dropped, its client is gone, or it stops reading."""
        while not self.gone:
            if not await self.wait(keep_alive) or self.is_doubted:
                self.is_doubted = False
                await self._write(sse_format.KEEP_ALIVE, left)
                continue
            events = b"".join(sse_format.event(item.message.data, id=item.id) for item in self.take())
            await self._write(events, left)
            if self.finished and not self.unread:
                break
        await self._write(b"", left, last=True)

    async def _write(self, data: bytes, left: Callable[[], None], *, last: bool = False) -> None:
        # Nothing can be written to a client that does not read, not even the end.
        if self.gone or not (data or last):
            return
        try:
            async with asyncio.timeout(STALL):
                await self._send({"type": "http.response.body", "body": data, "more_body": not last})
        except (TimeoutError, OSError):  # ASGI servers may raise OSError once the client has gone
            self.leave(left)
