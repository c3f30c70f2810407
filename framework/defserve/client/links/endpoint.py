"""One HTTP address: its connections, redirects, size limits, refusals, and credentials that are renewed if refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from defserve.base.http_connection import BrokenHttpConnection, DirectResponse, HttpConnectFailed
from defserve.base.version import VERSION
from defserve.client.link import HttpChallenge, ResolveHost
from defserve.client.links.http_client import (
    OriginHttpClient,
    ProxiedClient,
    ProxiedResponse,
    RequestAddress,
    uses_http_proxy,
)
from defserve.client.replies import object_or_empty, parse_json_object
from defserve.core.messages import INVALID_REQUEST
from defserve.core.peer import make_peer_error
from defserve.errors import PeerError, PeerGone, UsageError
from defserve.serve.address import AddressUnreachable, CredentialsRequired, HttpRefusal

if TYPE_CHECKING:
    from defserve.client.signin.authorizer import ServerAuthorizer

HttpResponse: TypeAlias = DirectResponse | ProxiedResponse

JSON_MEDIA_TYPE: Final = "application/json"
EVENT_STREAM_MEDIA_TYPE: Final = "text/event-stream"
ACCEPT: Final = {"accept": f"{JSON_MEDIA_TYPE}, {EVENT_STREAM_MEDIA_TYPE}"}
ACCEPT_AND_SEND: Final = {**ACCEPT, "content-type": JSON_MEDIA_TYPE}
REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
MAX_REFUSAL_BYTES = 64 * 1024
MAX_QUOTE_LENGTH = 200
MAX_REDIRECTS = 3
TELL_SECONDS = 30.0


class HttpExchange(NamedTuple):
    """A request as it was sent, and the head of its response."""

    method: str
    address: str
    headers: Mapping[str, str]
    content: bytes | None
    response: HttpResponse


class HttpEndpoint:
    """The address of a server. Connections are kept and reused. With `resolve` there is never a proxy on the way.

    Raises UsageError for an address or a header that cannot be used, and without httpx2 if there is a proxy on the way.
    """

    def __init__(self, url: str, headers: Mapping[str, str], resolve: ResolveHost | None = None) -> None:
        try:
            self._address = RequestAddress(url)
        except ValueError:
            raise UsageError(
                f"{url!r} is not an http(s) address", fix="write it in full: http://127.0.0.1:8000/mcp"
            ) from None
        self._given = given = {"user-agent": f"defserve/{VERSION}", **headers}
        self.watcher: Callable[[HttpExchange], object] | None = None
        """Called with every exchange, once the head of its response is there."""
        try:
            self._http = (
                ProxiedClient(self._address, given)
                if resolve is None and uses_http_proxy(self._address)
                else OriginHttpClient(self._address, given, resolve)
            )
        except ValueError as error:
            raise UsageError(str(error), fix="give header names and values in plain ASCII, on one line") from None

    def __str__(self) -> str:
        return str(self._address)

    @property
    def is_signing_in(self) -> bool:
        """Whether requests wait until somebody has signed in."""
        return False

    async def send(
        self,
        method: str,
        headers: Mapping[str, str],
        content: bytes | None = None,
        *,
        repeatable: bool = False,
        within: float | None = None,
    ) -> HttpResponse:
        """Send a request. The response has its head; the caller reads the body and closes the response.

        A `repeatable` request may be sent again if a kept connection ends before the server answers.
        Raises BrokenHttpConnection if the connection fails, PeerError for a redirect that is not followed, TimeoutError
        if the server takes longer than `within` seconds.
        """
        async with asyncio.timeout(within):
            return await self._follow(method, headers, content, repeatable)

    async def _follow(
        self, method: str, headers: Mapping[str, str], content: bytes | None, repeatable: bool
    ) -> HttpResponse:
        """Send a request where the server is, and where it says that it is."""
        whole = {**(ACCEPT_AND_SEND if content else ACCEPT), **headers}
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._http.send(method, self._address.target, whole, content, repeatable=repeatable)
            if self.watcher is not None:
                self.watcher(HttpExchange(method, str(self), {**self._given, **whole}, content, response))
            if response.status not in REDIRECTS or "location" not in response.headers:
                return response
            await response.aclose()
            self._move(response)
        raise PeerError(f"{self} redirects too often")

    async def post_message(
        self, headers: Mapping[str, str], message: bytes, check: Callable[[HttpResponse], Awaitable[None]]
    ) -> None:
        """POST a message. `check` raises PeerError if the response refuses it. Raises PeerGone if there is none."""
        try:
            response = await self.send("POST", headers, message, within=TELL_SECONDS)
            try:
                async with asyncio.timeout(TELL_SECONDS):
                    await check(response)
            finally:
                await response.aclose()
        except TimeoutError:
            raise PeerGone(f"{self} did not take a message within {TELL_SECONDS:g} s") from None
        except BrokenHttpConnection as error:
            raise self.make_unreachable_error(error) from None

    def _move(self, response: HttpResponse) -> None:
        """The server is elsewhere. Followed only within the origin, because of the credentials."""
        location = response.headers["location"]
        try:
            there = self._address.join(location)
        except ValueError:
            raise PeerError(f"{self} redirects to {location[:MAX_QUOTE_LENGTH]!r}, which is not an address") from None
        if there.origin != self._address.origin or response.status not in (307, 308):
            place = str(there)[:MAX_QUOTE_LENGTH]
            raise PeerError(f"{self} redirects to {place}; if that is the server, use that address")
        self._address = there

    async def read_refusal(self, response: HttpResponse) -> PeerError | None:
        """The error for an error status, in the server's words; None if the status is not an error.

        `data` has the `status` of an HTTP error, and the `challenge` if credentials were refused.
        """
        status = response.status
        if status < 400:
            return None
        body = (await response.read_body_start(MAX_REFUSAL_BYTES))[:MAX_REFUSAL_BYTES]
        challenge = response.headers.get("www-authenticate")
        if status in (401, 403) and challenge:
            return CredentialsRequired(self, status, challenge)
        reply = parse_json_object(body) if get_response_media_type(response) == JSON_MEDIA_TYPE else {}
        error = object_or_empty(reply.get("error"))
        if error and (reply.get("id") is not None or error.get("code") != INVALID_REQUEST):
            return make_peer_error(error)
        # Such an error without an id was made before the message was read: it is about HTTP.
        words = " ".join(str(error.get("message") or body.decode(errors="replace")).split())[:MAX_QUOTE_LENGTH]
        if get_response_media_type(response) == HTML_MEDIA_TYPE:
            words = WEB_PAGE
        text = f"{self} answered HTTP {status} {response.reason[:MAX_QUOTE_LENGTH]}".rstrip()
        return HttpRefusal(
            f"{text}: {words}" if words else text, data={**object_or_empty(error.get("data")), "status": status}
        )

    def make_unreachable_error(self, error: BrokenHttpConnection) -> PeerGone:
        return AddressUnreachable(
            f"{self} cannot be reached: {error}", was_sent=not isinstance(error, HttpConnectFailed)
        )

    async def aclose(self) -> None:
        await self._http.aclose()


HTML_MEDIA_TYPE: Final = "text/html"
WEB_PAGE: Final = "a web page, so this is no MCP endpoint"


def get_response_media_type(response: HttpResponse) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(response: HttpResponse) -> bytes:
    """The whole body. Raises PeerError if it is too long for a message."""
    body = await response.read_body_start(MAX_MESSAGE_BYTES)
    if len(body) > MAX_MESSAGE_BYTES:
        raise PeerError(f"the server sent an answer of more than {MAX_MESSAGE_BYTES} bytes")
    return body


# -- An endpoint whose credentials may change: they are asked for with each request, and renewed if they are refused.


MAX_AUTH_ROUNDS: Final = 3
"""How often one request is sent again with other credentials: a nonce, a sign-in, more scopes."""
AUTHORIZATION_HEADER: Final = "authorization"


class AuthorizedEndpoint(HttpEndpoint):
    """Sends what `authorizer` gives with every request, and asks it what to do about a refusal."""

    def __init__(
        self, url: str, headers: Mapping[str, str], resolve: ResolveHost | None, authorizer: ServerAuthorizer
    ) -> None:
        super().__init__(url, headers, resolve)
        self._authorizer = authorizer

    async def send(
        self,
        method: str,
        headers: Mapping[str, str],
        content: bytes | None = None,
        *,
        repeatable: bool = False,
        within: float | None = None,
    ) -> HttpResponse:
        """See `HttpEndpoint.send`. A refused request was not acted on, so it is sent again. Raises SignInError too.

        While somebody signs in, the clock of `within` stands still.
        """
        for left in reversed(range(MAX_AUTH_ROUNDS + 1)):
            shown = await self._authorizer.headers(method, str(self._address))
            response = await super().send(method, {**headers, **shown}, content, repeatable=repeatable, within=within)
            if response.status not in (401, 403):
                self._authorizer.on_request_accepted(response.headers)
                return response
            refusal = HttpChallenge(
                response.status, response.headers, shown.get(AUTHORIZATION_HEADER, ""), self._http.peers
            )
            try:
                if not left:
                    is_renewed = False
                elif method == "DELETE":
                    is_renewed = self._authorizer.adopt_nonce(refusal)  # nobody signs in to say goodbye
                else:
                    is_renewed = await self._authorizer.handle_challenge(refusal)
            except BaseException:
                await response.aclose()
                raise
            if not is_renewed:
                return response
            await response.aclose()
        raise AssertionError("unreachable")

    @property
    def is_signing_in(self) -> bool:
        return self._authorizer.is_signing_in

    async def aclose(self) -> None:
        """Close the connections, and give up a sign-in that is under way."""
        try:
            await self._authorizer.aclose()
        finally:
            await super().aclose()


def make_endpoint(
    url: str,
    headers: Mapping[str, str] | None,
    token: str | None,
    resolve: ResolveHost | None,
    authorizer: ServerAuthorizer | None,
) -> HttpEndpoint:
    """The endpoint at an address, with a fixed token, with an authorizer, or with neither."""
    whole = {**(headers or {}), **({AUTHORIZATION_HEADER: f"Bearer {token}"} if token else {})}
    return (
        HttpEndpoint(url, whole, resolve) if authorizer is None else AuthorizedEndpoint(url, whole, resolve, authorizer)
    )
