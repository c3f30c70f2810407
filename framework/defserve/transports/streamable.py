"""Streamable HTTP (MCP transports, 2025-03-26 to 2026-07-28): both eras on one endpoint, told apart by the body."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic_core import from_json

from defserve.auth.principals import Principal
from defserve.errors import LimitExceeded
from defserve.jsonvalue import is_object
from defserve.limits import Limits
from defserve.transports.exchange import Exchange, HeaderList, Refusal, Rest
from defserve.transports.headers import accepts, param_mismatch, routing_mismatch
from defserve.transports.sessions import Sessions
from defserve.transports.web_session import Conversation, Stream, WebSession
from defserve.wire.codec import INVALID_REQUEST, decode, encode
from defserve.wire.messages import Id, Malformed, Message, Notification, Params, Request

INVALID_PARAMS, INTERNAL_ERROR, HEADER_MISMATCH = -32602, -32603, -32020

# What the stateless era wants an error to look like to HTTP; anything else is a 200 with an error inside.
STATUS = {-32700: 400, -32600: 400, -32601: 404, -32602: 400, -32020: 400, -32021: 400, -32022: 400}

SILENCE = 15.0

# `isinstance` is several times slower on a union made in place.
SPOKEN = (Request, Notification)
CLIENT_LEFT = 499


class Desk(Protocol):
    """What a network transport asks of the runner."""

    limits: Limits

    @property
    def ready(self) -> bool:
        """Whether it was started on the running loop."""
        ...

    async def start(self, ended: Callable[[], None]) -> None:
        """Be ready to serve; a second call does nothing. `ended` is called when conversations have to end."""
        ...

    def drain(self) -> None:
        """Begin nothing new; calls that would never end are told to."""
        ...

    async def stop(self) -> None:
        """Serve no more."""
        ...

    def open(self, outlet: Callable[[Any], None], *, principal: Principal, counted: bool) -> Conversation:
        """A new conversation. Raises LimitExceeded when there are too many; one that is not `counted` is short."""
        ...


@dataclass(frozen=True, slots=True)
class Rules:
    """What the transport has to know of the protocol: its versions, where a request names one, and odd cases."""

    handshake_versions: tuple[str, ...]
    stateless_versions: tuple[str, ...]
    opening: str
    version_key: str
    capabilities_key: str
    primed_versions: frozenset[str] = frozenset()
    batch_versions: frozenset[str] = frozenset()
    scopes: Callable[[str], Sequence[str]] = field(default=lambda name: ())
    param_headers: Callable[[str], Mapping[tuple[str, ...], str]] = field(default=lambda name: {})
    refusal: Refusal | None = None


class Streamable:
    """One endpoint: POST in both eras, GET and DELETE for sessions."""

    def __init__(self, desk: Desk, rules: Rules) -> None:
        self.desk, self.rules = desk, rules
        self.sessions = Sessions(desk.limits.idle)
        self.challenge: Callable[[Exchange, Sequence[str]], Awaitable[None]] | None = None

    # -- POST --------------------------------------------------------------------------------------------

    def post(self, exchange: Exchange, body: bytes) -> Awaitable[None]:
        """Take a message. Not a coroutine itself, but hands over to the one that goes on with it."""
        limits = self.desk.limits
        message = decode(body, depth=limits.depth, keys=limits.keys)
        if isinstance(message, Malformed) and message.notification is not None and _notifies(message.notification):
            message = message.notification
        if isinstance(message, Malformed):
            self._fail_question(exchange, message)
            return refuse(exchange, 400, message.code, message.message, message.id)
        if self.challenge is not None and (scopes := self._missing_scopes(exchange, message)):
            return self.challenge(exchange, scopes)
        version = exchange.headers.get("mcp-protocol-version")
        if self._is_stateless(version, message):
            return self._post_stateless(exchange, message)
        return self._post_handshake(exchange, message)

    def _missing_scopes(self, exchange: Exchange, message: Message | list[Message]) -> Sequence[str]:
        """All the scopes a call needs, if its caller lacks one of them."""
        if not isinstance(message, Request) or message.method != "tools/call":
            return ()
        name = message.params.get("name")
        scopes = self.rules.scopes(name) if isinstance(name, str) else ()
        return scopes if exchange.principal.missing(scopes) else ()

    def _is_stateless(self, version: str | None, message: Message | list[Message]) -> bool:
        """The body decides; a header of another era, or of none we know, leaves the handshake's rules behind."""
        if isinstance(message, SPOKEN):
            meta = message.params.get("_meta")
            if is_object(meta) and self.rules.version_key in meta:
                return True
            if message.method == self.rules.opening:
                return version in self.rules.stateless_versions
        return version is not None and version not in self.rules.handshake_versions

    def _fail_question(self, exchange: Exchange, malformed: Malformed) -> None:
        """A broken answer fails the question it was meant for, rather than leave somebody waiting."""
        id = exchange.headers.get("mcp-session-id")
        if malformed.is_reply and id is not None:
            web = self.sessions.find(id, exchange.principal.id)
            if web is not None:
                web.conversation.take(malformed)

    async def _post_stateless(self, exchange: Exchange, message: Message | list[Message]) -> None:
        if isinstance(message, Notification):
            await self._drop_notification(exchange)
            return
        if not isinstance(message, Request):
            await refuse(exchange, 400, INVALID_REQUEST, "Invalid request: a single request is all that is taken here")
            return
        problem = self._envelope_problem(exchange, message)
        if problem is not None:
            await refuse(exchange, 400, *problem, message.id)
            return
        session = self.desk.open(to_its_exchange, principal=exchange.principal, counted=False)
        try:
            work = session.begin(message, exchange)
            await self._run(exchange, work, lambda: session.cancel(message.id), STATUS)
        finally:
            session.close()

    async def _drop_notification(self, exchange: Exchange) -> None:
        version = exchange.headers.get("mcp-protocol-version")
        if version is None or version in (*self.rules.stateless_versions, *self.rules.handshake_versions):
            await exchange.respond(202)
        else:
            await refuse(exchange, 400, INVALID_REQUEST, _unsupported(version))

    def _envelope_problem(self, exchange: Exchange, request: Request) -> tuple[int, str] | None:
        rules, params = self.rules, request.params
        meta: Any = params.get("_meta")
        version: Any = meta.get(rules.version_key) if is_object(meta) else None
        if not isinstance(version, str):
            return INVALID_PARAMS, f"Invalid params: _meta[{rules.version_key!r}] is required"
        if not is_object(meta.get(rules.capabilities_key)):
            return INVALID_PARAMS, f"Invalid params: _meta[{rules.capabilities_key!r}] is required"
        text = routing_mismatch(exchange.headers, request.method, params, version)
        # What a version we do not speak says of its arguments is not ours to judge.
        if text is None and request.method == "tools/call" and version in rules.stateless_versions:
            name = params.get("name")
            annotated = rules.param_headers(name) if isinstance(name, str) else None
            text = param_mismatch(exchange.headers, params, annotated) if annotated else None
        return (HEADER_MISMATCH, text) if text is not None else None

    async def _post_handshake(self, exchange: Exchange, message: Message | list[Message]) -> None:
        if isinstance(message, Request) and message.method == self.rules.opening:
            await self._open(exchange, message)
            return
        web = self._session(exchange)
        if not isinstance(web, WebSession):
            await web
            return
        if isinstance(message, list) and web.version not in self.rules.batch_versions:
            text = "Invalid request: batches are not part of this protocol version"
            await refuse(exchange, 400, INVALID_REQUEST, text)
            return
        stream = Stream(web, exchange)
        if isinstance(message, Request):
            await self._run(exchange, web.conversation.begin(message, stream), stream.left, {}, stream)
            return
        web.conversation.take(message, stream)
        if isinstance(message, list):
            await self._answer(exchange, stream.left, {}, stream)
        else:
            await exchange.respond(202)

    async def _open(self, exchange: Exchange, request: Request) -> None:
        web = WebSession(secrets.token_urlsafe(24), exchange.principal.id)
        try:
            web.conversation = self._conversation(web, exchange.principal)
        except LimitExceeded as error:
            await refuse(exchange, 503, INTERNAL_ERROR, error.message, request.id, [(b"retry-after", b"1")])
            return
        web.conversation.take(request, Stream(web, exchange))
        try:
            while not exchange.finished:
                await exchange.wait()
                # The response to an opening is its answer alone: there is no session yet whose stream this could be.
                exchange.unread = deque(item for item in exchange.unread if item.message.answers)
        finally:
            accepted = exchange.only is not None and exchange.only.code is None
            if not accepted:
                web.conversation.close()
        reply = exchange.only
        if reply is None or not accepted:
            await exchange.respond(400, reply.data if reply is not None else b"")
            return
        web.version = from_json(reply.data)["result"]["protocolVersion"]
        web.primed = web.version in self.rules.primed_versions
        self.sessions.add(web)
        await exchange.respond(200, reply.data, [(b"mcp-session-id", web.id.encode())])

    def _conversation(self, web: WebSession, principal: Principal) -> Conversation:
        try:
            return self.desk.open(web.outlet, principal=principal, counted=True)
        except LimitExceeded:
            self.sessions.end_idle()
            return self.desk.open(web.outlet, principal=principal, counted=True)

    def _session(self, exchange: Exchange) -> WebSession | Awaitable[None]:
        """The session a request belongs to, or the refusal to be awaited."""
        id, version = exchange.headers.get("mcp-session-id"), exchange.headers.get("mcp-protocol-version")
        if id is None:
            return refuse(exchange, 400, INVALID_REQUEST, "Invalid request: the Mcp-Session-Id header is missing")
        web = self.sessions.find(id, exchange.principal.id)
        if web is None:
            return refuse(exchange, 404, INVALID_REQUEST, "Invalid request: no such session; initialize again")
        if version is not None and version not in self.rules.handshake_versions:
            return refuse(exchange, 400, INVALID_REQUEST, _unsupported(version))
        return web

    async def _run(
        self,
        exchange: Exchange,
        work: Coroutine[Any, Any, None] | None,
        left: Callable[[], None],
        statuses: Mapping[int, int],
        stream: Stream | None = None,
    ) -> None:
        """Run a call in the task of its request, and answer it: most are done in one step, and need nothing armed.

        One that waits goes on here, where its scopes were opened, even when its client has left; another task answers.
        """
        if work is not None:
            try:
                waiting_for = work.send(None)
            except StopIteration:
                answer = exchange.only
                if answer is not None and (stream is None or not (stream.name or exchange.prefers_events)):
                    exchange.unread.clear()  # else it and its call would keep each other alive until garbage collection
                    await exchange.respond(statuses.get(answer.code, 200) if answer.code else 200, answer.data)
                    return
                await absorb()
            else:
                answering = asyncio.create_task(self._answer(exchange, left, statuses, stream))
                await Rest(work, waiting_for)
                await absorb()
                await answering
                return
        await self._answer(exchange, left, statuses, stream)

    async def _answer(
        self, exchange: Exchange, left: Callable[[], None], statuses: Mapping[int, int], stream: Stream | None = None
    ) -> None:
        """JSON while one message is all there is, events from the first that is not the answer, or after a silence."""
        if exchange.finished and await self._answer_at_once(exchange, statuses, stream):
            return
        with reading(exchange, left, stream):
            await exchange.wait(SILENCE)
            if exchange.gone:
                await exchange.respond(CLIENT_LEFT)  # nobody reads it, but some middleware insists on a response
                return
            if exchange.finished and await self._answer_at_once(exchange, statuses, stream):
                return
            await exchange.start_events(stream.start() if stream is not None else b"")
            await exchange.stream(SILENCE, left)

    async def _answer_at_once(self, exchange: Exchange, statuses: Mapping[int, int], stream: Stream | None) -> bool:
        """A single message is plain JSON; a request that ended without an answer was cancelled."""
        if stream is not None and (stream.name or exchange.prefers_events):
            return False  # its client is sent away to come back for the answer, or asked for events
        if not exchange.unread:
            await exchange.respond(202)
            return True
        answer = exchange.only
        if answer is None:
            return False
        exchange.unread.clear()  # else it and its call would keep each other alive until the next garbage collection
        await exchange.respond(statuses.get(answer.code, 200) if answer.code else 200, answer.data)
        return True

    # -- GET and DELETE ----------------------------------------------------------------------------------

    async def get(self, exchange: Exchange) -> None:
        if exchange.headers.get("mcp-protocol-version") in self.rules.stateless_versions:
            await exchange.respond(405, headers=[(b"allow", b"POST")])
            return
        if not accepts(exchange.headers.get("accept"), "text/event-stream"):
            await refuse(
                exchange, 406, INVALID_REQUEST, "Not acceptable: a stream of text/event-stream is all there is"
            )
            return
        web = self._session(exchange)
        if not isinstance(web, WebSession):
            await web
            return
        last = exchange.headers.get("last-event-id")
        if last is not None:
            resumed = web.resume(last, exchange)
            if resumed is None:
                text = "Invalid request: nothing to resume after this Last-Event-ID"
                await refuse(exchange, 404, INVALID_REQUEST, text)
                return
            stream, missed = resumed
        else:
            stream, missed = web.standalone, b""
            if web.standalone.is_read:
                await refuse(exchange, 409, INVALID_REQUEST, "Conflict: this session's stream is already open")
                return
            web.standalone.attach(exchange)
        with reading(exchange, stream.left, stream):
            await exchange.start_events(missed)
            await exchange.stream(SILENCE, stream.left)

    async def delete(self, exchange: Exchange) -> None:
        if exchange.headers.get("mcp-protocol-version") in self.rules.stateless_versions:
            await exchange.respond(405, headers=[(b"allow", b"POST")])
            return
        web = self._session(exchange)
        if not isinstance(web, WebSession):
            await web
            return
        self.sessions.end(web)
        await exchange.respond(204)

    def drain(self) -> None:
        """End the streams that belong to no call; the others end with theirs."""
        for web in self.sessions:
            if web.standalone.exchange is not None:
                web.standalone.exchange.drop()

    def close(self) -> None:
        """End every session."""
        self.sessions.close()


@contextmanager
def reading(exchange: Exchange, left: Callable[[], None], stream: Stream | None) -> Generator[None]:
    """While a response is under way that its client may leave."""
    watch = asyncio.create_task(exchange.watch(left))
    if stream is not None:
        stream.web.readers += 1
    try:
        yield
    finally:
        watch.cancel()
        if stream is not None:
            stream.web.readers -= 1
            stream.web.used = time.monotonic()
            stream.detach(exchange)


async def absorb() -> None:
    """Let a cancellation of this task, which was meant for the call it ran, come to an end."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        task.uncancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


def _notifies(notification: Notification) -> bool:
    # Some clients write notifications with a null id; a request without a usable one is refused.
    return notification.method.startswith("notifications/")


def _unsupported(version: str) -> str:
    return f"Invalid request: unsupported MCP-Protocol-Version {version[:64]}"


def to_its_exchange(message: Any) -> None:
    """Where messages of a request that stands alone go."""
    exchange = message.destination
    if isinstance(exchange, Exchange):
        exchange.push(message)


async def refuse(
    exchange: Exchange, status: int, code: int, text: str, id: Id | None = None, headers: HeaderList = ()
) -> None:
    """A JSON-RPC error with an HTTP status. Where the id is not known there is none (transports: sending messages)."""
    error: Params = {"code": code, "message": text}
    data = exchange.refusal(code, text) if exchange.refusal is not None else None
    if data is not None:
        error["data"] = data
    body: Params = (
        {"jsonrpc": "2.0", "id": id, "error": error} if id is not None else {"jsonrpc": "2.0", "error": error}
    )
    await exchange.respond(status, encode(body), headers)
