"""One request to the address of a subscriber, through the guard, and why it failed.

The address comes from a stranger: https and port 443 only, resolved and judged at every connection, no redirects, and
an answer of a few bytes in a few seconds. What the endpoint answers is never repeated to anybody.
"""

from __future__ import annotations

import asyncio
import binascii
import hmac
import secrets
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from defserve.auth.oauth import is_loopback
from defserve.auth.rates import Rate, RateBuckets
from defserve.base.backoff import parse_retry_after
from defserve.base.http_connection import (
    BrokenHttpConnection,
    ClosedWithoutResponse,
    DirectResponse,
    HttpConnection,
    encode_request_head,
)
from defserve.base.version import VERSION
from defserve.guard.http_client import load_httpx
from defserve.guard.network import Egress, make_url_refusal, parse_authority, resolve_allowed_addresses
from defserve.protocols.mcp.events.draft import EventSettings

if TYPE_CHECKING:
    from defserve.guard.network import Resolver


TIMEOUT_SECONDS: Final = 10.0
MAX_ANSWER_BYTES: Final = 16 * 1024
DRAIN_SECONDS: Final = 1.0
"""For so long the rest of an answer is waited for, so that its connection can be used again."""
MAX_URL_LENGTH: Final = 2_048
IDLE_SECONDS: Final = 4.0
"""Common servers close an idle connection after five seconds. It must not close just as it is used again."""
MAX_AT_ONCE: Final = 96
"""Requests that are under way, to all addresses."""
MAX_AT_ONCE_TO_HOST: Final = 16
MAX_AT_ONCE_OF_CALLER: Final = 32
"""Of these, to one host, and for the subscriptions of one caller."""
DESTINATION_RATE: Final = Rate(per_second=20, burst=50)
"""Requests to one host."""
FINAL_STATUSES: Final = frozenset((410, 413))
"""An answer after which the same event is not sent again."""

FailureReason: TypeAlias = Literal[
    "connection_refused", "timeout", "tls_error", "http_4xx", "http_5xx", "challenge_failed"
]


class DeliveryFailed(Exception):
    """A request that was not answered as it should be. `is_final`: sending it again would be no use.

    `retry_after` are the seconds for which the endpoint wants to be left alone; 0 if it does not say.
    """

    def __init__(self, reason: FailureReason, *, is_final: bool = False, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.reason: FailureReason = reason
        self.is_final, self.retry_after = is_final, retry_after


class WebhookSender:
    """Sends to the addresses of subscribers, on one loop. `is_loopback_allowed` lets it send to this machine too.

    `resolver` finds the addresses of a host; the system's resolver by default. A connection is kept for the next
    request to its host. A host, or whoever subscribed, that keeps requests waiting holds up only its own.
    """

    def __init__(
        self, settings: EventSettings, *, is_loopback_allowed: bool = False, resolver: Resolver | None = None
    ) -> None:
        self._settings, self._is_loopback_allowed, self._resolver = settings, is_loopback_allowed, resolver
        self._tls: ssl.SSLContext | None = None
        self._open: set[HttpConnection] = set()
        self._idle: dict[str, list[HttpConnection]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._room = asyncio.Semaphore(MAX_AT_ONCE)
        self._hosts, self._callers = KeyedRoom(MAX_AT_ONCE_TO_HOST), KeyedRoom(MAX_AT_ONCE_OF_CALLER)
        self._rates = RateBuckets(DESTINATION_RATE)

    def check_url(self, url: object) -> str:
        """The address as it is used. Raises ValueError for one that is refused by its text alone."""
        if not isinstance(url, str) or len(url) > MAX_URL_LENGTH:
            raise ValueError(f"the url must be a text of at most {MAX_URL_LENGTH} characters")
        if "#" in url:
            raise ValueError("the url has a fragment, which is never sent")
        verdict = self._make_egress(url).judge(url)
        if not verdict or verdict.url is None:
            raise ValueError("the url must be a public https address on port 443")
        return verdict.url

    async def post(
        self, url: str, headers: dict[str, str], body: bytes, *, caller: str = "", reads_answer: bool = False
    ) -> bytes:
        """Send a signed body, and return the answer if it is read. Raises DeliveryFailed unless the answer is 2xx.

        `caller` is whoever subscribed.
        """
        host = urlsplit(url).hostname or ""
        while wait := self._rates.take_token(host):  # noqa: ASYNC110  (only the clock fills a bucket)
            await asyncio.sleep(wait)
        sent = {**headers, "content-type": "application/json", "user-agent": f"defserve/{VERSION}"}
        async with self._callers.enter(caller), self._hosts.enter(host), self._room:
            try:
                if url.startswith("https:"):
                    self._find_tls()  # the first time it reads certificates, which is slow
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    return await self._post(url, sent, body, reads_answer)
            except DeliveryFailed:
                raise
            except Exception as error:
                raise DeliveryFailed(_find_reason(error)) from None

    async def _post(self, url: str, headers: dict[str, str], body: bytes, reads_answer: bool) -> bytes:
        where = urlsplit(url)
        target = f"{where.path or '/'}?{where.query}" if where.query else where.path or "/"
        head = encode_request_head("POST", target, {"host": where.netloc, **headers, "content-length": str(len(body))})
        origin = f"{where.scheme}://{where.netloc}"
        connection = self._pop_idle_connection(origin)
        try:
            response = await (connection or await self._connect(url, origin)).send(head, body)
        except ClosedWithoutResponse:
            # A connection that was kept was closed just as it was used again.
            response = await (await self._connect(url, origin)).send(head, body)
        try:
            _check_status(response.status, response.headers)
            if reads_answer:
                return await _read_answer(response)
            await _drain(response)
            return b""
        finally:
            await response.aclose()

    async def _connect(self, url: str, origin: str) -> HttpConnection:
        """A new connection. The url is judged again, and so is each address that its host has now."""
        egress = self._make_egress(url)
        if not (verdict := egress.judge(url)):
            raise make_url_refusal(verdict)
        scheme, host, port = parse_authority(url)
        tls = self._find_tls() if scheme == "https" else None
        failure: OSError | None = None
        for address in await resolve_allowed_addresses(host, port, egress, resolver=self._resolver):
            try:
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: HttpConnection(lambda idle: self._keep_connection(origin, idle), self._open),
                    *(address, port),
                    ssl=tls,
                    server_hostname=host if tls is not None else None,
                )
            except ssl.SSLError:
                raise
            except OSError as error:
                failure = error
            else:
                return connection
        raise failure or OSError("no address")

    def _find_tls(self) -> ssl.SSLContext:
        if self._tls is None:
            load_httpx("a webhook")
            import httpcore2

            self._tls = self._settings.webhook_tls or httpcore2.default_ssl_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls

    def _pop_idle_connection(self, origin: str) -> HttpConnection | None:
        idle = self._idle.get(origin, [])
        while idle:
            connection = idle.pop()
            if not idle:
                del self._idle[origin]
            if connection.is_usable:
                return connection
            connection.abort()
        return None

    def _keep_connection(self, origin: str, connection: HttpConnection) -> None:
        """A connection can be used again. It is closed if nobody does so soon."""
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        if len(self._open) > MAX_AT_ONCE:
            connection.abort()
            return
        self._idle.setdefault(origin, []).append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(IDLE_SECONDS, self._close_idle_connections)

    def _close_idle_connections(self) -> None:
        loop, self._sweep = asyncio.get_running_loop(), None
        for origin, idle in list(self._idle.items()):
            while idle and loop.time() - idle[0].idle_since >= IDLE_SECONDS:
                idle.pop(0).abort()
            if not idle:
                del self._idle[origin]
        if self._idle:
            self._sweep = loop.call_later(IDLE_SECONDS / 4, self._close_idle_connections)

    def _make_egress(self, url: str) -> Egress:
        settings, private, schemes = self._settings, tuple[str, ...](), ("https",)
        if self._is_local(url):
            with suppress(ValueError):
                private, schemes = (str(parse_authority(url)),), ("http", "https")
        return Egress(
            schemes=schemes,
            ports=(443, *settings.webhook_ports),
            private=private,
        )

    def _is_local(self, url: str) -> bool:
        """Whether it is an address of this machine, and those are allowed."""
        if not self._is_loopback_allowed:
            return False
        try:
            return is_loopback(urlsplit(url).hostname or "")
        except ValueError:
            return False

    async def aclose(self) -> None:
        """Close the connections."""
        if self._sweep is not None:
            self._sweep.cancel()
        self._idle.clear()
        for connection in list(self._open):
            connection.abort()


class KeyedRoom:
    """So many requests at once for each key."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rooms: dict[str, tuple[asyncio.Semaphore, int]] = {}
        """For each key that is used now: its room, and how many have it or wait for it."""

    @asynccontextmanager
    async def enter(self, key: str) -> AsyncGenerator[None]:
        room, users = self._rooms.get(key) or (asyncio.Semaphore(self._most), 0)
        self._rooms[key] = room, users + 1
        try:
            async with room:
                yield
        finally:
            room, users = self._rooms.pop(key)
            if users > 1:
                self._rooms[key] = room, users - 1


async def _read_answer(response: DirectResponse) -> bytes:
    """The body of an answer. Raises DeliveryFailed if it is too long."""
    answer = await response.read_body_start(MAX_ANSWER_BYTES)
    if len(answer) > MAX_ANSWER_BYTES:
        raise DeliveryFailed("challenge_failed")
    return answer


async def _drain(response: DirectResponse) -> None:
    """Read what is left of an answer, so that its connection can be used again. If it is long or slow, it is closed."""
    if not response.is_over:
        with suppress(TimeoutError, BrokenHttpConnection):
            async with asyncio.timeout(DRAIN_SECONDS):
                await response.read_body_start(MAX_ANSWER_BYTES)


def _check_status(status: int, headers: Any) -> None:
    if 200 <= status < 300:
        return
    retry_after = parse_retry_after({"retry-after": headers.get("retry-after", "")}) if status in (429, 503) else 0.0
    # A redirect is not followed, and is as wrong as an address that does not exist.
    reason: FailureReason = "http_5xx" if status >= 500 else "http_4xx"
    raise DeliveryFailed(reason, is_final=status in FINAL_STATUSES, retry_after=retry_after)


def _find_reason(error: BaseException) -> FailureReason:
    """The word for what a client of HTTP raised."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return "tls_error"
        cause = cause.__cause__ or cause.__context__
    return "timeout" if isinstance(error, TimeoutError) else "connection_refused"


# -- Signed requests of webhooks, as Standard Webhooks has them: secrets, signing, and checking what was received.


SECRET_PREFIX: Final = "whsec_"
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 24, 64
MAX_SECRET_LENGTH: Final = len(SECRET_PREFIX) + 4 * ((MAX_SECRET_BYTES + 2) // 3)

ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER = "webhook-id", "webhook-timestamp", "webhook-signature"
SIGNATURE_VERSION: Final = "v1"
MAX_SIGNATURES: Final = 16

MAX_AGE_SECONDS: Final = 300
"""A receiver refuses what is older, or as much ahead of its clock."""


class BadSignature(Exception):
    """A request that a receiver must refuse. The text says why."""


def make_webhook_secret() -> str:
    """A new secret, for who subscribes."""
    return SECRET_PREFIX + b64encode(secrets.token_bytes(32)).decode()


def parse_webhook_secret(text: object) -> bytes:
    """The key in a secret. Raises ValueError, which never repeats the secret."""
    if not isinstance(text, str) or not text.startswith(SECRET_PREFIX) or len(text) > MAX_SECRET_LENGTH:
        raise ValueError(f"a secret begins with {SECRET_PREFIX} and has at most {MAX_SECRET_LENGTH} characters")
    try:
        key = b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"a secret is {SECRET_PREFIX} and base64") from None
    if not MIN_SECRET_BYTES <= len(key) <= MAX_SECRET_BYTES:
        raise ValueError(f"a secret has {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes in base64")
    return key


def sign_webhook(keys: Iterable[bytes], id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of a request, signed with each key."""
    signatures = " ".join(_sign(key, id, str(timestamp), body) for key in keys)
    return {ID_HEADER: id, TIMESTAMP_HEADER: str(timestamp), SIGNATURE_HEADER: signatures}


def verify_webhook(keys: Iterable[bytes], headers: Mapping[str, str], body: bytes, now: float) -> str:
    """The id of a request that was received: it is genuine and fresh. Names of headers are in lower case.

    Raises BadSignature. Whether the id came before is up to the caller.
    """
    id, timestamp = headers.get(ID_HEADER, ""), headers.get(TIMESTAMP_HEADER, "")
    signatures = headers.get(SIGNATURE_HEADER, "").split(" ")
    if not id or not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 16):
        raise BadSignature("the headers of a signed request are missing")
    if abs(now - int(timestamp)) > MAX_AGE_SECONDS:
        raise BadSignature(f"it was signed more than {MAX_AGE_SECONDS} seconds ago, or ahead")
    expected = [_sign(key, id, timestamp, body).encode() for key in keys]
    given = [each.encode("utf-8", "surrogatepass") for each in signatures[:MAX_SIGNATURES]]
    if not any(hmac.compare_digest(one, other) for one in expected for other in given):
        raise BadSignature("no signature is good")
    return id


def _sign(key: bytes, id: str, timestamp: str, body: bytes) -> str:
    digest = hmac.digest(key, f"{id}.{timestamp}.".encode("utf-8", "surrogatepass") + body, "sha256")
    return f"{SIGNATURE_VERSION},{b64encode(digest).decode()}"
