"""A small HTTP/1.1 client for one origin: connections are kept and used again, bodies are read as they come.

It needs nothing but the standard library. Whatever the server sends is bounded: heads and chunk sizes here, bodies by
whoever reads them, and nothing is read ahead of a slow reader. A request is sent once: it is repeated only if the
caller says that it may be, and only if a kept connection ended before one byte of the response came.
Where the environment names a proxy for the address, httpx2 does the same work (`ProxiedClient`).
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from defserve.auth.oauth import is_loopback
from defserve.base.http_connection import (
    ACCEPT_ENCODING_VALUE,
    WRITE_TIMEOUT_SECONDS,
    BrokenHttpConnection,
    ClosedWithoutResponse,
    DirectResponse,
    HttpConnectFailed,
    HttpConnection,
    encode_request_head,
    join_parts_until_enough,
)
from defserve.client.link import ResolveHost
from defserve.errors import Refused

if TYPE_CHECKING:
    import httpx2


CONNECT_SECONDS = 10.0

# Common servers close an idle connection after five seconds. It must not close just as it is used again.
IDLE_SECONDS = 4.0
MAX_IDLE_CONNECTIONS: Final = 20
END: Final = b"\r\n"


class OriginHttpClient:
    """Sends requests to the origin of `address`. `headers` go with every request.

    There may be any number of connections: requests are limited elsewhere, and an answer to the server must never wait
    behind a request. There is no read timeout: the caller decides how long an answer may take. With `resolve`, each
    connection goes to an address that it gave just before.
    Raises ValueError for a header that HTTP cannot carry.
    """

    def __init__(self, address: RequestAddress, headers: Mapping[str, str], resolve: ResolveHost | None = None) -> None:
        self._origin, self._resolve = address.origin, resolve
        own = {"host": address.authority, "accept-encoding": ACCEPT_ENCODING_VALUE}
        given = {name.lower(): value for name, value in headers.items()}
        if address.userinfo is not None:
            own["authorization"] = address.userinfo
        self._headers = {**own, **given}
        encode_request_head("GET", "/", self._headers)
        self._idle: list[HttpConnection] = []
        self._open: set[HttpConnection] = set()
        self._cookies = Cookies()
        # Requests differ in their bodies, seldom in their heads.
        self._last_request: tuple[str, str, str, Mapping[str, str]] | None = None
        self._last_head = b""
        self._ssl: ssl.SSLContext | None = None
        self._closed = False
        self.peers: set[str] = set()
        """The IP addresses that connections went to."""

    async def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        content: bytes | None = None,
        *,
        repeatable: bool = False,
    ) -> DirectResponse:
        """Send a request and wait for the head of its response, which the caller closes.

        A kept connection may end just as it is used. A request that is `repeatable` is then sent once more, on a new
        connection. Any other is not: TCP does not tell whether the server has read it, and what it asks for must not
        happen twice. Raises BrokenHttpConnection.
        """
        head = self._head(method, target, headers, content)
        try:
            response = await (self._pop_idle_connection() or await self._connect()).send(head, content)
        except ClosedWithoutResponse:
            if not repeatable:
                raise
            response = await (await self._connect()).send(head, content)
        if (cookies := response.headers.get("set-cookie")) is not None:
            self._cookies.store_cookies(cookies)
        return response

    async def aclose(self) -> None:
        """Close all connections."""
        self._closed = True
        self._idle.clear()
        for connection in tuple(self._open):
            connection.abort()

    def _head(self, method: str, target: str, headers: Mapping[str, str], content: bytes | None) -> bytes:
        request = method, target, self._cookies.header, headers
        if request != self._last_request:
            whole = {**self._headers, **headers}
            whole.pop("content-length", None)
            if self._cookies.header and "cookie" not in whole:
                whole["cookie"] = self._cookies.header
            try:
                head = encode_request_head(method, target, whole)
            except ValueError as error:
                raise BrokenHttpConnection(str(error)) from None
            self._last_request, self._last_head = (*request[:3], dict(headers)), head[: -len(END)]
        if content is None and method != "POST":
            return self._last_head + END
        return b"%scontent-length: %d\r\n\r\n" % (self._last_head, len(content or b""))

    def _pop_idle_connection(self) -> HttpConnection | None:
        """An idle connection, the one that was used last. Those that nobody used for a while are closed."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if asyncio.get_running_loop().time() - connection.idle_since > IDLE_SECONDS:
                for older in (connection, *idle):
                    older.abort()
                idle.clear()
            elif connection.is_usable:
                return connection
            else:
                connection.abort()
        return None

    async def _connect(self) -> HttpConnection:
        scheme, host, port = self._origin
        if scheme == "https" and self._ssl is None:
            # Reading the certificates is slow, so only who needs them does.
            self._ssl = ssl.create_default_context()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if self._resolve is None:
                    connection = await self._connect_to(host, port)
                else:
                    connection = await self._connect_to_one_of(await self._resolve(host, port), host, port)
        except TimeoutError:
            raise HttpConnectFailed(f"no connection within {CONNECT_SECONDS:g} s") from None
        except (OSError, UnicodeError) as error:  # a name that no resolver takes
            raise HttpConnectFailed(str(error) or type(error).__name__) from None
        except Refused as error:
            raise HttpConnectFailed(error.message) from None
        if self._closed:
            connection.abort()
            raise BrokenHttpConnection("the client was closed")
        return connection

    async def _connect_to(self, host: str, port: int, name: str | None = None) -> HttpConnection:
        """Connect to a host or an address. `name` is the host that its certificate must be of."""
        transport, connection = await asyncio.get_running_loop().create_connection(
            lambda: HttpConnection(self._is_idle, self._open),
            host,
            port,
            ssl=self._ssl,
            server_hostname=name if self._ssl is not None else None,
        )
        self.peers.add(str((transport.get_extra_info("peername") or ("",))[0]))
        return connection

    async def _connect_to_one_of(self, addresses: Sequence[str], host: str, port: int) -> HttpConnection:
        failed: OSError | None = None
        for address in addresses:
            try:
                return await self._connect_to(address, port, host)
            except OSError as error:
                failed = error
        raise failed or OSError(f"{host} has no address")

    def _is_idle(self, connection: HttpConnection) -> None:
        if self._closed or len(self._idle) >= MAX_IDLE_CONNECTIONS:
            connection.abort()
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)


# -- An http(s) address, cut into what a request needs of it.


DEFAULT_PORTS: Final = {"http": 80, "https": 443}

# What may stand in a path or query as it is. `%` stays, so that nothing is quoted twice.
UNQUOTED: Final = "!$%&'()*+,-./:;=?@_~"
CONTROL_CHARACTERS: Final = re.compile(r"[\x00-\x20\x7f]")


class RequestAddress:
    """Where requests go. Raises ValueError for what is not an http(s) address.

    origin     scheme, host and port: credentials never leave it
    target     path and query, as they stand in the first line of a request
    authority  the `Host` header
    userinfo   an `Authorization` header for the user and password in the address; None without them
    """

    __slots__ = ("url", "origin", "target", "authority", "userinfo", "_shown")

    def __init__(self, url: str) -> None:
        parts = urlsplit(url.strip())
        scheme, host, port = parts.scheme, parts.hostname, parts.port
        if scheme not in DEFAULT_PORTS or not host or CONTROL_CHARACTERS.search(host):
            raise ValueError("not an http(s) address")
        if not host.isascii():
            import idna

            host = idna.encode(host, uts46=True).decode()
        named = f"[{host}]" if ":" in host else host
        self.url = url
        self.origin = (scheme, host, port or DEFAULT_PORTS[scheme])
        self.authority = named if self.origin[2] == DEFAULT_PORTS[scheme] else f"{named}:{self.origin[2]}"
        path = quote(parts.path or "/", safe=UNQUOTED)
        self.target = f"{path}?{quote(parts.query, safe=UNQUOTED)}" if parts.query else path
        self.userinfo: str | None = None
        if parts.username is not None:
            from defserve.auth.oauth import encode_basic_auth

            self.userinfo = encode_basic_auth(unquote(parts.username), unquote(parts.password or ""))
        self._shown = f"{scheme}://{self.authority}{path}"

    def __str__(self) -> str:
        """The address as it is asked for, without the parts that may be secret: user, password and query."""
        return self._shown

    def join(self, reference: str) -> RequestAddress:
        """The address that a relative or whole reference means here. Raises ValueError."""
        return RequestAddress(urljoin(self.url, reference))


# -- The cookies of one server. Load balancers use them to find the same worker again.


MAX_COOKIES: Final = 20
MAX_COOKIE_LENGTH: Final = 4096

COOKIE_PAIR: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+=[\x21-\x3a\x3c-\x7e]*")
COOKIE_ENDED: Final = re.compile(r";\s*max-age=(?:0|-\d+)\s*(?:;|$)", re.IGNORECASE)


class Cookies:
    """Kept in memory and sent back to the one address that set them. Other attributes than `Max-Age=0` mean nothing."""

    __slots__ = ("_kept", "header")

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}
        self.header = ""
        """The `Cookie` header; empty if there are none."""

    def store_cookies(self, lines: str) -> None:
        """Read what a response says in `Set-Cookie`, one cookie a line."""
        for line in lines.split("\n"):
            pair = line.partition(";")[0].strip()
            if len(pair) > MAX_COOKIE_LENGTH or COOKIE_PAIR.fullmatch(pair) is None:
                continue
            name = pair.partition("=")[0]
            if COOKIE_ENDED.search(line):
                self._kept.pop(name, None)
            elif name in self._kept or len(self._kept) < MAX_COOKIES:
                self._kept[name] = pair
        self.header = "; ".join(self._kept.values())


# -- The same work by httpx2, for addresses that the environment names a proxy for.


def uses_http_proxy(address: RequestAddress) -> bool:
    """Whether requests to this address go through a proxy. Never those to this machine."""
    scheme, host, port = address.origin
    if is_loopback(host):
        return False
    proxies = getproxies()
    return bool(proxies.get(scheme) or proxies.get("all")) and not proxy_bypass(f"{host}:{port}")


class ProxiedClient:
    """Does what `OriginHttpClient` does. Raises UsageError without httpx2."""

    def __init__(self, address: RequestAddress, headers: Mapping[str, str]) -> None:
        from defserve.guard.http_client import load_httpx

        httpx = load_httpx(
            "connecting to an http address through a proxy",
            fix='pip install "defserve[client]", or name the host in NO_PROXY',
        )
        self._address = address
        # The last two are for a header or an address that HTTP cannot carry.
        self._Errors: tuple[type[Exception], ...] = (httpx.HTTPError, httpx.InvalidURL, UnicodeEncodeError)
        self.peers: frozenset[str] = frozenset()
        """Only the proxy knows."""
        self._http: httpx2.AsyncClient = httpx.AsyncClient(
            headers=headers,
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=MAX_IDLE_CONNECTIONS, keepalive_expiry=IDLE_SECONDS
            ),
            timeout=httpx.Timeout(CONNECT_SECONDS, read=None, write=WRITE_TIMEOUT_SECONDS),
        )

    async def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        content: bytes | None = None,
        *,
        repeatable: bool = False,
    ) -> ProxiedResponse:
        """Send a request, once, and wait for the head of its response."""
        with self._errors():
            request = self._http.build_request(method, self._address.join(target).url, headers=headers, content=content)
            return ProxiedResponse(await self._http.send(request, stream=True), self._errors)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except self._Errors as error:
            raise BrokenHttpConnection(str(error) or type(error).__name__) from None


class ProxiedResponse:
    """Does what `DirectResponse` does."""

    def __init__(self, response: httpx2.Response, errors: Callable[[], AbstractContextManager[None]]) -> None:
        self._response, self._errors = response, errors
        self.status, self.reason = response.status_code, response.reason_phrase
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        self.is_over = False

    async def read_body_start(self, enough: int) -> bytes:
        """The body, or its start: reading stops once there are more than `enough` bytes."""
        return await join_parts_until_enough(self.iter_parts(), enough)

    async def iter_parts(self) -> AsyncGenerator[bytes]:
        """The body, part by part."""
        with self._errors():
            async for part in self._response.aiter_bytes():
                yield part

    async def aclose(self) -> None:
        """Have done with the response."""
        with self._errors():
            await self._response.aclose()
