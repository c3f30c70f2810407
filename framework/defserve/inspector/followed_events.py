"""Events of the server that the person follows (MCP Events, a draft): by stream, by poll, or by webhook.

For a webhook the inspector plays the receiver: it listens on this machine, answers the challenge, and says of each
request whether a good receiver would take it. Whether the server sends there at all is up to the server.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from defserve.base.peer_bounds import RecentItems
from defserve.client.client import Client
from defserve.client.replies import object_or_empty, string_or_none
from defserve.core.json_values import is_object
from defserve.errors import DefserveError, PeerError
from defserve.inspector.protocol import BadMessage, Json, describe_error_for_page
from defserve.limits import Limits
from defserve.protocols.mcp.events.draft import MAX_EVENT_BYTES, SUBSCRIPTION_ID_HEADER, VERIFICATION_TYPE
from defserve.protocols.mcp.events.sending import (
    BadSignature,
    make_webhook_secret,
    parse_webhook_secret,
    verify_webhook,
)
from defserve.serve.session_opener import serve_on_loopback

if TYPE_CHECKING:
    from defserve.client.events import ServerOccurrence


Way: TypeAlias = Literal["stream", "poll", "webhook"]
WAYS: Final[tuple[Way, ...]] = get_args(Way)
MAX_FOLLOWED: Final = 20
MAX_DELIVERIES: Final = 300
MAX_KNOWN_IDS: Final = 10_000
OPTION_NAMES: Final = frozenset(("name", "cursor", "max_age_ms", "max_events", "every", "url", "secret", "ttl_ms"))
"""Arguments that cannot be given here: the client has options of these names."""


class FollowedEvents:
    """What is followed now, and what came. `push` tells every page."""

    def __init__(self, push: Callable[[str, Any], object]) -> None:
        self._push, self._last = push, 0
        self._followed: dict[int, FollowedEvent] = {}

    def list_followed(self, era: str) -> list[Json]:
        """Everything that is followed in an era, the newest first."""
        return [each.to_wire() for each in reversed(self._followed.values()) if each.era == era]

    async def follow(self, client: Client, era: str, event: str, arguments: Json, way: str) -> Json:
        """Begin to follow an event, and return how it is followed. Raises what the server answers."""
        if way not in WAYS:
            raise BadMessage(f"events are not followed by {way!r}", fix=f"use one of {', '.join(WAYS)}")
        if taken := sorted(OPTION_NAMES & arguments.keys()):
            raise BadMessage(
                f"the inspector cannot send the argument {taken[0]!r}", fix="use the client: client.events"
            )
        if sum(each.is_running for each in self._followed.values()) >= MAX_FOLLOWED:
            raise BadMessage(f"{MAX_FOLLOWED} events are followed already", fix="stop one of them")
        self._last += 1
        made = FollowedEvent(self._last, era, event, arguments, way, lambda: self._push("events", made.to_wire()))
        await made.start(client)
        self._followed[made.number] = made
        for number in [n for n, each in self._followed.items() if not each.is_running][:-MAX_FOLLOWED]:
            del self._followed[number]
        return made.to_wire()

    async def stop(self, number: int) -> bool:
        """Follow something no longer. What came stays. False if there is no such number."""
        followed = self._followed.get(number)
        if followed is None:
            return False
        await followed.stop()
        return True

    async def aclose(self) -> None:
        """The inspector ends."""
        for each in list(self._followed.values()):
            await each.stop()


class FollowedEvent:
    """One event that is followed. `deliveries` has what came last, in order."""

    def __init__(
        self, number: int, era: str, event: str, arguments: Json, way: str, tell: Callable[[], object]
    ) -> None:
        self.number, self.era, self._event, self._arguments, self._way = number, era, event, arguments, way
        self._tell, self._count = tell, 0
        self._deliveries: RecentItems[Json] = RecentItems(MAX_DELIVERIES)
        self._error: Json | None = None
        self._about: Json = {}
        self._stack = AsyncExitStack()
        self._reading: asyncio.Task[None] | None = None
        self.is_running = False

    async def start(self, client: Client) -> None:
        """Raises what the server answers."""
        try:
            if self._way == "webhook":
                await self._subscribe(client)
            elif self._way == "stream":
                stream = client.listen_events(self._event, **self._arguments)
                await self._stack.enter_async_context(stream)
                self._reading = asyncio.create_task(self._read(stream))
            else:
                # The first answer is only a cursor, or a refusal, which belongs to who asks.
                first = await client.events.fetch_page(self._event, **self._arguments)
                start = string_or_none(first.get("cursor"))
                self._reading = asyncio.create_task(
                    self._read(client.events.poll_events(self._event, start, **self._arguments))
                )
        except BaseException:
            await self._stack.aclose()
            raise
        self.is_running = True

    async def stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait((self._reading,))
        await self._end()

    async def _end(self) -> None:
        if self.is_running:
            self.is_running = False
            with suppress(DefserveError):
                await self._stack.aclose()
            self._tell()

    def to_wire(self) -> Json:
        return {
            "number": self.number,
            "event": self._event,
            "arguments": self._arguments,
            "way": self._way,
            "running": self.is_running,
            "error": self._error,
            "about": self._about,
            "count": self._count,
            "deliveries": list(reversed(self._deliveries)),
        }

    async def _read(self, events: AsyncIterator[ServerOccurrence]) -> None:
        try:
            async for event in events:
                row = {"id": event.id, "data": event.data, "timestamp": event.timestamp, "gap": event.is_after_gap}
                self._add(row)
        except PeerError as error:
            self._error = describe_error_for_page(error)
        finally:
            await self._end()

    def _add(self, delivery: Json) -> None:
        self._count += 1
        self._deliveries.append({"number": self._count, "at": time.time(), **delivery})
        self._tell()

    # -- a webhook, of which the inspector is the receiver -------------------------------------------------

    async def _subscribe(self, client: Client) -> None:
        secret = make_webhook_secret()
        receiver = LoopbackReceiver(parse_webhook_secret(secret), self._add)
        url = await self._stack.enter_async_context(serve_on_loopback(receiver, Limits())) + "hook"
        made = await client.events.subscribe_webhook(self._event, url, secret, **self._arguments)
        self._stack.push_async_callback(_unsubscribe, made)
        self._about = {"url": url, "subscription": made.id, "refresh_before": made.refresh_before}


async def _unsubscribe(made: Any) -> None:
    with suppress(DefserveError):
        await made.unsubscribe()


class LoopbackReceiver:
    """An app that receives webhooks on this machine. `add` gets what came, with what a good receiver would find."""

    def __init__(self, key: bytes, add: Callable[[Json], None], clock: Callable[[], float] = time.time) -> None:
        self._key, self._add, self._clock = key, add, clock
        self._ids: dict[str, None] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        body, more = b"", True
        while more and len(body) <= MAX_EVENT_BYTES:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        status, answer = self.receive_request(scope["method"], headers, body)
        data = json.dumps(answer).encode()
        about = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]
        await send({"type": "http.response.start", "status": status, "headers": about})
        await send({"type": "http.response.body", "body": data})

    def receive_request(self, method: str, headers: dict[str, str], body: bytes) -> tuple[int, Json]:
        """The status and the answer. What is wrong with a request is told to the page, not to the sender."""
        if method != "POST" or len(body) > MAX_EVENT_BYTES:
            return 400, {}
        try:
            id = verify_webhook([self._key], headers, body, self._clock())
            message = json.loads(body)
            if not is_object(message):
                raise BadSignature("the body is no object")
        except (BadSignature, ValueError, RecursionError) as error:
            self._add({"id": headers.get("webhook-id", "")[:200], "check": "refused", "why": str(error)[:200]})
            return 401, {}
        if message.get("type") == VERIFICATION_TYPE:
            self._add({"id": id[:200], "kind": VERIFICATION_TYPE, "check": "good"})
            return 200, {"challenge": message.get("challenge")}
        delivery: Json = {
            "id": id[:200],
            "kind": string_or_none(message.get("type")),
            "check": "repeated" if id in self._ids else "good",
            "data": object_or_empty(message.get("data") if "type" not in message else message),
            "timestamp": string_or_none(message.get("timestamp")),
            "subscription": headers.get(SUBSCRIPTION_ID_HEADER, "")[:200],
        }
        self._ids[id] = None
        if len(self._ids) > MAX_KNOWN_IDS:
            del self._ids[next(iter(self._ids))]
        self._add(delivery)
        return 200, {}
