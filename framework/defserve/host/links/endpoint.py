"""One HTTP address: its connections, redirects, size limits and refusals.

It knows HTTP and the shape of a JSON-RPC error, nothing else of the protocol.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import from_json

from defserve.auth.urls import is_loopback
from defserve.errors import PeerError, PeerGone, UsageError
from defserve.host.conversation import peer_error
from defserve.host.fields import object_of
from defserve.transports.client_errors import Challenged, HttpRefusal, Unreachable
from defserve.version import VERSION
from defserve.wire.codec import INVALID_REQUEST

if TYPE_CHECKING:
    import httpx2

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"

LONGEST_MESSAGE = 64 * 1024 * 1024
LONGEST_REFUSAL = 64 * 1024
LONGEST_QUOTE = 200
MOST_REDIRECTS = 3
CONNECT_SECONDS = 10.0
WRITE_SECONDS = 30.0
# Common servers close an idle connection after five seconds. It must not close just as it is used again.
IDLE_SECONDS = 4.0


class Endpoint:
    """The address of a server. Connections are kept and reused. Raises UsageError without httpx2.

    Its methods raise `Broken` if the connection fails; `unreachable` makes a PeerGone of that.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        httpx = _httpx()
        self.Broken: type[Exception] = httpx.HTTPError
        try:
            self._url: httpx2.URL = httpx.URL(url)
        except httpx.InvalidURL:
            raise _no_address(url) from None
        if self._url.scheme not in ("http", "https") or not self._url.host:
            raise _no_address(url)
        self._http: httpx2.AsyncClient = httpx.AsyncClient(
            headers={"user-agent": f"defserve/{VERSION}", **headers},
            # Unlimited: requests are limited elsewhere, and an answer to the server must never wait behind a request.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=IDLE_SECONDS),
            # No read timeout: the caller decides how long an answer may take.
            timeout=httpx.Timeout(CONNECT_SECONDS, read=None, write=WRITE_SECONDS),
            trust_env=not is_loopback(self._url.host),
            # Loading the certificates is slow, and plain HTTP needs none: redirects stay within the origin.
            verify=self._url.scheme == "https",
        )

    def __str__(self) -> str:
        return _shown(self._url)

    @asynccontextmanager
    async def response(
        self, method: str, headers: Mapping[str, str], content: bytes | None = None
    ) -> AsyncGenerator[httpx2.Response, None]:
        """The response to one request, before its body. Leaving the block early closes the connection.

        Raises PeerError for a redirect that is not followed.
        """
        whole = {"accept": f"{JSON}, {EVENTS}", **({"content-type": JSON} if content else {}), **headers}
        for _ in range(MOST_REDIRECTS + 1):
            async with self._http.stream(method, self._url, headers=whole, content=content) as response:
                if not self._moved(response):
                    yield response
                    return
        raise PeerError(f"{self} redirects too often")

    def _moved(self, response: httpx2.Response) -> bool:
        """Whether the server redirects the request. Followed only within the origin, because of the credentials."""
        if not response.has_redirect_location:
            return False
        there = self._url.join(response.headers["location"])
        same = (there.scheme, there.host, there.port) == (self._url.scheme, self._url.host, self._url.port)
        if not same or response.status_code not in (307, 308):
            raise PeerError(f"{self} redirects to {_shown(there)}; if that is the server, use that address")
        self._url = there
        return True

    async def refusal(self, response: httpx2.Response) -> PeerError | None:
        """The error for an error status, in the server's words; None if the status is not an error.

        `data` has the `status` of an HTTP error, and the `challenge` if credentials were refused.
        """
        status = response.status_code
        if status < 400:
            return None
        body = (await _start_of(response, LONGEST_REFUSAL))[:LONGEST_REFUSAL]
        challenge = response.headers.get("www-authenticate")
        if status in (401, 403) and challenge:
            return Challenged(self, status, challenge)
        reply = _reply_of(body) if media_type(response) == JSON else {}
        error = object_of(reply.get("error"))
        if error and (reply.get("id") is not None or error.get("code") != INVALID_REQUEST):
            return peer_error(error)
        # Such an error without an id was made before the message was read: it is about HTTP.
        words = " ".join(str(error.get("message") or body.decode(errors="replace")).split())[:LONGEST_QUOTE]
        text = f"{self} answered HTTP {status} {response.reason_phrase}".rstrip()
        data = {**object_of(error.get("data")), "status": status}
        return HttpRefusal(f"{text}: {words}" if words else text, data=data)

    def unreachable(self, error: Exception) -> PeerGone:
        return Unreachable(f"{self} cannot be reached: {str(error) or type(error).__name__}")

    async def aclose(self) -> None:
        await self._http.aclose()


def authorized(headers: Mapping[str, str] | None, token: str | None) -> dict[str, str]:
    """The headers with a bearer token, if there is one."""
    return {**(headers or {}), **({"authorization": f"Bearer {token}"} if token else {})}


def media_type(response: httpx2.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


async def body_of(response: httpx2.Response) -> bytes:
    """The whole body. Raises PeerError if it is too long for a message."""
    body = await _start_of(response, LONGEST_MESSAGE)
    if len(body) > LONGEST_MESSAGE:
        raise PeerError(f"the server sent an answer of more than {LONGEST_MESSAGE} bytes")
    return body


async def _start_of(response: httpx2.Response, enough: int) -> bytes:
    """The body, or its start: reading stops once there are more than `enough` bytes."""
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > enough:
            break
    return bytes(body)


def _reply_of(body: bytes) -> dict[str, Any]:
    try:
        return object_of(from_json(body))
    except ValueError:
        return {}


def _shown(url: httpx2.URL) -> str:
    """An address without the parts that may be secret: user, password and query."""
    host = f"[{url.host}]" if ":" in url.host else url.host
    return f"{url.scheme}://{host}{f':{url.port}' if url.port else ''}{url.path}"


def _no_address(url: str) -> UsageError:
    return UsageError(f"{url!r} is not an http(s) address", fix="write it in full: http://127.0.0.1:8000/mcp")


def _httpx() -> Any:
    try:
        import httpx2
    except ImportError:
        raise UsageError(
            "connecting to an http address needs httpx2, which is not installed",
            fix='pip install "defserve[client]"',
        ) from None
    return httpx2
