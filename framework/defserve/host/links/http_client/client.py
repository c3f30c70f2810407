"""The client of one origin: it keeps connections and sends requests on them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from typing import Final

from defserve.errors import Refused
from defserve.host.link import Resolve
from defserve.host.links.http_client.address import Address
from defserve.host.links.http_client.connection import Connection, Response
from defserve.host.links.http_client.content_coding import ACCEPTED
from defserve.host.links.http_client.cookies import Cookies
from defserve.host.links.http_client.errors import Broken, Unanswered
from defserve.host.links.http_client.head import FORBIDDEN, NAME

CONNECT_SECONDS = 10.0
# Common servers close an idle connection after five seconds. It must not close just as it is used again.
IDLE_SECONDS = 4.0
MOST_IDLE: Final = 20
END: Final = b"\r\n"


class HttpClient:
    """Sends requests to the origin of `address`. `headers` go with every request.

    There may be any number of connections: requests are limited elsewhere, and an answer to the server must never wait
    behind a request. There is no read timeout: the caller decides how long an answer may take. With `resolve`, each
    connection goes to an address that it gave just before.
    Raises ValueError for a header that HTTP cannot carry.
    """

    def __init__(self, address: Address, headers: Mapping[str, str], resolve: Resolve | None = None) -> None:
        self._origin, self._resolve = address.origin, resolve
        own = {"host": address.authority, "accept-encoding": ACCEPTED}
        given = {name.lower(): value for name, value in headers.items()}
        if address.userinfo is not None:
            own["authorization"] = address.userinfo
        self._headers = {**own, **given}
        encode_head("GET", "/", self._headers)
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
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
    ) -> Response:
        """Send a request and wait for the head of its response, which the caller closes.

        A kept connection may end just as it is used. A request that is `repeatable` is then sent once more, on a new
        connection. Any other is not: TCP does not tell whether the server has read it, and what it asks for must not
        happen twice. Raises Broken.
        """
        head = self._head(method, target, headers, content)
        try:
            response = await (self._kept() or await self._connect()).send(head, content)
        except Unanswered:
            if not repeatable:
                raise
            response = await (await self._connect()).send(head, content)
        if (cookies := response.headers.get("set-cookie")) is not None:
            self._cookies.take(cookies)
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
                head = encode_head(method, target, whole)
            except ValueError as error:
                raise Broken(str(error)) from None
            self._last_request, self._last_head = (*request[:3], dict(headers)), head[: -len(END)]
        if content is None and method != "POST":
            return self._last_head + END
        return b"%scontent-length: %d\r\n\r\n" % (self._last_head, len(content or b""))

    def _kept(self) -> Connection | None:
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

    async def _connect(self) -> Connection:
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
            raise Broken(f"no connection within {CONNECT_SECONDS:g} s") from None
        except OSError as error:
            raise Broken(str(error) or type(error).__name__) from None
        except Refused as error:
            raise Broken(error.message) from None
        if self._closed:
            connection.abort()
            raise Broken("the client was closed")
        return connection

    async def _connect_to(self, host: str, port: int, name: str | None = None) -> Connection:
        """Connect to a host or an address. `name` is the host that its certificate must be of."""
        transport, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self._is_idle, self._open),
            host,
            port,
            ssl=self._ssl,
            server_hostname=name if self._ssl is not None else None,
        )
        self.peers.add(str((transport.get_extra_info("peername") or ("",))[0]))
        return connection

    async def _connect_to_one_of(self, addresses: Sequence[str], host: str, port: int) -> Connection:
        failed: OSError | None = None
        for address in addresses:
            try:
                return await self._connect_to(address, port, host)
            except OSError as error:
                failed = error
        raise failed or OSError(f"{host} has no address")

    def _is_idle(self, connection: Connection) -> None:
        if self._closed or len(self._idle) >= MOST_IDLE:
            connection.abort()
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)


def encode_head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """The head of a request. Raises ValueError for a header that HTTP cannot carry."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    # One line ending for each header, and nothing else that ends a line or cannot be seen.
    if lines.count("\n") != len(headers) or FORBIDDEN.search(lines) or not lines.isascii():
        for name, value in headers.items():
            if NAME.fullmatch(name) is None or not value.isascii() or not value.replace("\t", " ").isprintable():
                raise ValueError(f"the header {name!r} has characters that HTTP cannot carry")
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("ascii")
