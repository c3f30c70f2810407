"""How the guarded client sends a request and reads the response. Needs httpx2.

Every URL is judged again as it is sent, and sockets are opened only to judged addresses. The body of a response is
bounded in time and in bytes, both as received and as decompressed.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import zlib
from collections.abc import AsyncIterator, Generator, Iterable
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

import httpcore2
import httpx2

from defserve.base.http_connection import (
    ACCEPT_ENCODING_VALUE,
    SUPPORTED_CONTENT_CODINGS,
    Decompressor,
    find_text_codec,
)
from defserve.errors import LimitExceeded, Refused
from defserve.guard.network import (
    DEADLINE_REQUEST_EXTENSION,
    Egress,
    Resolver,
    make_url_refusal,
    resolve_allowed_addresses,
)

CONNECT_TIMEOUT_SECONDS = 10.0
MAX_CONNECTIONS = 100

# Common servers hang up after five seconds. This is less, so that a connection is not closed just as it is reused.
IDLE_SECONDS = 4.0


@cache
def _load_trust(cert_file: str | None, cert_dir: str | None) -> ssl.SSLContext:
    """The certificates that this machine trusts, read once a process: it takes long, and the event loop waits."""
    return httpcore2.default_ssl_context()


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Judges a request, sends it, and bounds its response. The client follows redirects."""

    def __init__(self, egress: Egress, resolver: Resolver | None, tls: ssl.SSLContext | None) -> None:
        self._egress = egress
        tls = tls or _load_trust(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        self._inner: httpx2.AsyncBaseTransport = (
            httpx2.AsyncHTTPTransport(verify=tls, proxy=egress.proxy, trust_env=False)
            if egress.proxy
            else _PinnedTransport(PinnedBackend(egress, resolver), tls)
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        verdict = self._egress.judge(str(request.url))
        if not verdict:
            raise make_url_refusal(verdict)
        deadline = (
            request.extensions.get(DEADLINE_REQUEST_EXTENSION)
            or asyncio.get_running_loop().time() + self._egress.timeout
        )
        try:
            async with asyncio.timeout_at(deadline):
                response = await self._inner.handle_async_request(request)
        except TimeoutError:
            raise too_late(self._egress.timeout) from None
        return await self._limit_response(request, response, deadline)

    async def _limit_response(
        self, request: httpx2.Request, response: httpx2.Response, deadline: float
    ) -> httpx2.Response:
        length = response.headers.get("content-length", "")
        if request.method != "HEAD" and length.isdecimal() and int(length[:20]) > self._egress.max_bytes:
            await response.aclose()
            raise too_long(self._egress.max_bytes)
        encoding = response.headers.get("content-encoding", "").strip().lower()
        # The body is passed on decoded, so the headers that described the encoded one are dropped.
        stale = (b"content-encoding", b"content-length") if encoding else ()
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        bounded = httpx2.Response(
            response.status_code,
            headers=[(name, value) for name, value in response.headers.raw if name.lower() not in stale],
            stream=BoundedBody(response.stream, encoding, self._egress, deadline),
            extensions=response.extensions,
        )
        bounded.encoding = find_text_codec(response.headers.get("content-type", ""))  # or httpx2 looks for it
        return bounded

    async def aclose(self) -> None:
        await self._inner.aclose()


class PinnedBackend(httpcore2.AsyncNetworkBackend):
    """Resolves a host once, judges all its addresses, and connects to one of those.

    Everything above it uses the name of the host: the Host header, the name that TLS verifies, and the key under which
    a connection is kept and reused.
    """

    def __init__(self, egress: Egress, resolver: Resolver | None = None) -> None:
        self._egress, self._resolver = egress, resolver
        self._sockets = cast(httpcore2.AsyncNetworkBackend, httpcore2.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        failure: Exception = httpcore2.ConnectError("no address")
        for address in await resolve_allowed_addresses(host, port, self._egress, resolver=self._resolver):
            try:
                return await self._sockets.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        raise httpcore2.UnsupportedProtocol("a guarded client opens no unix socket")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _PinnedTransport(httpx2.AsyncBaseTransport):
    """Like httpx's own transport, which does not accept a network backend."""

    def __init__(self, backend: PinnedBackend, tls: ssl.SSLContext) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=MAX_CONNECTIONS,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=backend,
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        assert isinstance(request.stream, httpx2.AsyncByteStream)
        with _as_httpx():
            response = await self._pool.handle_async_request(
                httpcore2.Request(
                    request.method,
                    httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        extensions = cast(dict[str, Any], response.extensions)  # pyright: ignore[reportUnknownMemberType]
        return httpx2.Response(response.status, headers=response.headers, stream=_Body(response), extensions=extensions)

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Body(httpx2.AsyncByteStream):
    def __init__(self, response: httpcore2.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx():
            async for chunk in self._response.aiter_stream():
                yield chunk

    async def aclose(self) -> None:
        await self._response.aclose()


@contextmanager
def _as_httpx() -> Generator[None, None, None]:
    """Turns exceptions of httpcore into those of httpx, which have the same names."""
    try:
        yield
    except Exception as error:
        alike = getattr(httpx2, type(error).__name__, None) if type(error).__module__.startswith("httpcore2") else None
        if alike is None:
            raise
        raise alike(str(error)) from error


# -- The body of a response, bounded in time and in bytes, both as received and as decompressed.


class BoundedBody(httpx2.AsyncByteStream):
    """The decoded body of a response; `encoding` is its Content-Encoding."""

    def __init__(self, body: httpx2.AsyncByteStream, encoding: str, egress: Egress, deadline: float) -> None:
        self._body, self._encoding, self._egress, self._deadline = body, encoding, egress, deadline

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = decoded = 0
        most = self._egress.max_bytes
        decompressor = Decompressor(self._encoding) if self._encoding in SUPPORTED_CONTENT_CODINGS else None
        async for chunk in self._chunks():
            received += len(chunk)
            if received > most:
                raise too_long(most)
            if decompressor is None and self._encoding not in ("", "identity"):
                # Only a body that has bytes is refused: HEAD has none.
                reason = f"the body has the Content-Encoding {self._encoding[:40]!r}, which was not asked for"
                hints = {"accepted": ACCEPT_ENCODING_VALUE}
                raise Refused(reason, data={"status": "rejected", "reason": reason, "violations": [], "hints": hints})
            try:
                for piece in decompressor.decompress(chunk) if decompressor else (chunk,):
                    decoded += len(piece)
                    if decoded > most:
                        raise too_long(most)
                    yield piece
            except zlib.error as error:
                raise httpx2.DecodingError(f"the body is not what its Content-Encoding says: {error}") from None

    async def _chunks(self) -> AsyncIterator[bytes]:
        chunks = aiter(self._body)
        while True:
            try:
                async with asyncio.timeout_at(self._deadline):
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise too_late(self._egress.timeout) from None
            yield chunk

    async def aclose(self) -> None:
        await self._body.aclose()


def too_long(most: int) -> LimitExceeded:
    return _make_limit_error(f"the response is longer than {most} bytes", "max_bytes", most)


def too_late(seconds: float) -> LimitExceeded:
    return _make_limit_error(f"the response was not complete within {seconds:g} s", "timeout", seconds)


def _make_limit_error(reason: str, limit: str, value: float) -> LimitExceeded:
    data = {"status": "rejected", "reason": reason, "violations": [reason], "hints": {limit: value}, "limit": limit}
    return LimitExceeded(reason, data=data)
