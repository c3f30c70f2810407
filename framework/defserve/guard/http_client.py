"""The guarded HTTP client behind `ctx.http`: httpx's verbs and responses, on public addresses only.

It reaches only public addresses, even if a stranger chose the URL. A name is resolved once, every address is judged,
and the connection goes to one of the judged addresses. Sizes and times are bounded, redirects are judged again, and
credentials do not cross origins. httpx2 is imported when the first request is sent.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from copy import copy
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict, Unpack

from defserve.base.http_connection import ACCEPT_ENCODING_VALUE
from defserve.base.version import VERSION
from defserve.errors import UsageError
from defserve.guard.network import DEADLINE_REQUEST_EXTENSION, Egress, make_url_refusal
from defserve.guard.verdict import Violation

if TYPE_CHECKING:
    import httpx2

    from defserve.guard.network import Resolver


# They log every request with its whole URL, and the headers of responses: keys, cookies and the arguments of calls.
# An author who wants these lines sets the level of the logger.
_LOGGERS_WITH_SECRETS: Final = ("httpx2", "httpcore2")

# The only headers kept when a redirect leads to another origin. Any other header could be a credential.
_CARRIED_ACROSS: Final = frozenset(
    (
        "accept",
        "accept-encoding",
        "accept-language",
        "connection",
        "content-length",
        "content-type",
        "host",
        "transfer-encoding",
        "user-agent",
    )
)


class RequestContent(TypedDict, total=False):
    """The content of a request, as in httpx. The Host header is always that of the URL."""

    params: Mapping[str, Any] | list[tuple[str, Any]]
    headers: Mapping[str, str]
    content: str | bytes | AsyncIterable[bytes]
    data: Mapping[str, Any]
    files: Mapping[str, Any]
    json: Any


class SendOptions(RequestContent, total=False):
    """The options of a request."""

    auth: tuple[str, str]
    """User name and password, for the first origin only."""
    token_for: str
    """A target of `Auth(targets=…)`: a token of the caller for it is sent, and no redirect is followed."""


FindToken = Callable[[str, str], Awaitable[str]]
"""A target and the URL of a request → a token to send there. Raises if it may not go there."""


class GuardedClient:
    """An HTTP client for URLs from strangers. It reaches public addresses, and others only if `egress` allows them.

    A URL or a redirect to any other address raises Refused with the violations in `data`. A response that is too long
    or too late raises LimitExceeded. A connection that fails raises what httpx2 raises. From the environment it reads
    only which certificates to trust, and it keeps no cookies.

    resolver   finds the addresses of a host; the system's resolver by default
    tls        replaces the default trust in certificates

    Raises UsageError if httpx2 is not installed.
    """

    def __init__(
        self, egress: Egress | None = None, *, resolver: Resolver | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._egress = egress or Egress()
        self._http = _client(self._egress, resolver, tls)
        self._find_token: FindToken | None = None

    def with_tokens(self, find_token: FindToken) -> GuardedClient:
        """The same client, for one caller: `find_token` gives the tokens of `token_for`."""
        client = copy(self)
        client._find_token = find_token
        return client

    async def get(self, url: str, **sending: Unpack[SendOptions]) -> httpx2.Response:
        """`request` with GET."""
        return await self.request("GET", url, **sending)

    async def head(self, url: str, **sending: Unpack[SendOptions]) -> httpx2.Response:
        """`request` with HEAD."""
        return await self.request("HEAD", url, **sending)

    async def post(self, url: str, **sending: Unpack[SendOptions]) -> httpx2.Response:
        """`request` with POST."""
        return await self.request("POST", url, **sending)

    async def put(self, url: str, **sending: Unpack[SendOptions]) -> httpx2.Response:
        """`request` with PUT."""
        return await self.request("PUT", url, **sending)

    async def patch(self, url: str, **sending: Unpack[SendOptions]) -> httpx2.Response:
        """`request` with PATCH."""
        return await self.request("PATCH", url, **sending)

    async def delete(self, url: str, **sending: Unpack[SendOptions]) -> httpx2.Response:
        """`request` with DELETE."""
        return await self.request("DELETE", url, **sending)

    async def request(self, method: str, url: str, **sending: Unpack[SendOptions]) -> httpx2.Response:
        """The response with its body."""
        async with self.stream(method, url, **sending) as response:
            await response.aread()
        return response

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, **sending: Unpack[SendOptions]
    ) -> AsyncGenerator[httpx2.Response, None]:
        """The response without its body; read that with `aiter_bytes`, `aiter_lines` or `aread`."""
        auth, target = sending.pop("auth", None), sending.pop("token_for", None)
        request = self._request(method, url, **sending)
        if target is not None:
            if self._find_token is None:
                raise UsageError("token_for= needs a caller", fix="use ctx.http of the tool that is called")
            request.headers["authorization"] = f"Bearer {await self._find_token(target, str(request.url))}"
        response = await self._follow(request, auth, follows=target is None)
        try:
            yield response
        finally:
            await response.aclose()

    def _request(self, method: str, url: str, **content: Unpack[RequestContent]) -> httpx2.Request:
        verdict = self._egress.judge(url)
        if not verdict or verdict.url is None:
            raise make_url_refusal(verdict)
        request = self._http.build_request(method, verdict.url, **content)
        request.headers["host"] = request.url.netloc.decode("ascii")
        # Only encodings that can be decompressed in bounded pieces.
        request.headers["accept-encoding"] = self._http.headers["accept-encoding"]
        request.extensions[DEADLINE_REQUEST_EXTENSION] = asyncio.get_running_loop().time() + self._egress.timeout
        return request

    async def _follow(self, request: httpx2.Request, auth: tuple[str, str] | None, *, follows: bool) -> httpx2.Response:
        hops = 0
        while True:
            response = await self._http.send(request, stream=True, auth=auth)
            if response.next_request is None or self._egress.redirects == 0 or not follows:
                return response
            await response.aclose()
            hops += 1
            if hops > self._egress.redirects:
                violation = Violation("redirects", f"Too many redirects: at most {self._egress.redirects}")
                raise make_url_refusal(self._egress.refuse(violation), "Redirect refused")
            request, last = response.next_request, request
            if not (verdict := self._egress.judge(str(request.url))):
                raise make_url_refusal(verdict, "Redirect refused")
            if _origin(request) != _origin(last):
                auth = None
                for name in set(request.headers) - _CARRIED_ACROSS:
                    del request.headers[name]

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _origin(request: httpx2.Request) -> tuple[str, str, int | None]:
    return request.url.scheme, request.url.host, request.url.port


def _client(egress: Egress, resolver: Resolver | None, tls: ssl.SSLContext | None) -> httpx2.AsyncClient:
    httpx = load_httpx("the guarded HTTP client")
    from defserve.guard.http_transport import CONNECT_TIMEOUT_SECONDS, GuardedTransport

    return make_shared_http_client(
        GuardedTransport(egress, resolver, tls),
        headers={"user-agent": f"defserve/{VERSION}", "accept-encoding": ACCEPT_ENCODING_VALUE},
        timeout=httpx.Timeout(egress.timeout, connect=min(egress.timeout, CONNECT_TIMEOUT_SECONDS)),
    )


def make_shared_http_client(transport: httpx2.AsyncBaseTransport, **options: Any) -> httpx2.AsyncClient:
    """A client of httpx that serves many callers: a cookie that one caller was given is never sent for another."""
    cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
    return load_httpx("an HTTP client").AsyncClient(
        transport=transport, cookies=cookies, trust_env=False, follow_redirects=False, **options
    )


def load_httpx(what: str, *, fix: str = 'pip install "defserve[client]"') -> Any:
    """httpx2. Raises UsageError that says what needs it, if it is not installed."""
    try:
        import httpx2
    except ImportError:
        raise UsageError(f"{what} needs httpx2, which is not installed", fix=fix) from None
    for log in map(logging.getLogger, _LOGGERS_WITH_SECRETS):
        if log.level == logging.NOTSET:
            log.setLevel(logging.WARNING)
    return httpx2
