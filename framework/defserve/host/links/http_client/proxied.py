"""The same work by httpx2, for addresses that the environment names a proxy for."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies, proxy_bypass

from defserve.auth.urls import is_loopback
from defserve.errors import UsageError
from defserve.host.links.http_client.address import Address
from defserve.host.links.http_client.client import CONNECT_SECONDS, IDLE_SECONDS, MOST_IDLE
from defserve.host.links.http_client.connection import WRITE_SECONDS, start_of
from defserve.host.links.http_client.errors import Broken

if TYPE_CHECKING:
    import httpx2


def is_proxied(address: Address) -> bool:
    """Whether requests to this address go through a proxy. Never those to this machine."""
    scheme, host, port = address.origin
    if is_loopback(host):
        return False
    proxies = getproxies()
    return bool(proxies.get(scheme) or proxies.get("all")) and not proxy_bypass(f"{host}:{port}")


class ProxiedClient:
    """Does what `HttpClient` does. Raises UsageError without httpx2."""

    def __init__(self, address: Address, headers: Mapping[str, str]) -> None:
        httpx = _httpx()
        self._address, self._Error = address, httpx.HTTPError
        self.peers: frozenset[str] = frozenset()
        """Only the proxy knows."""
        self._http: httpx2.AsyncClient = httpx.AsyncClient(
            headers=headers,
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=MOST_IDLE, keepalive_expiry=IDLE_SECONDS
            ),
            timeout=httpx.Timeout(CONNECT_SECONDS, read=None, write=WRITE_SECONDS),
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
        except self._Error as error:
            raise Broken(str(error) or type(error).__name__) from None


class ProxiedResponse:
    """Does what `Response` does."""

    def __init__(self, response: httpx2.Response, errors: Callable[[], AbstractContextManager[None]]) -> None:
        self._response, self._errors = response, errors
        self.status, self.reason = response.status_code, response.reason_phrase
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        self.is_over = False

    async def start(self, enough: int) -> bytes:
        """The body, or its start: reading stops once there are more than `enough` bytes."""
        return await start_of(self.parts(), enough)

    async def parts(self) -> AsyncGenerator[bytes]:
        """The body, part by part."""
        with self._errors():
            async for part in self._response.aiter_bytes():
                yield part

    async def aclose(self) -> None:
        """Have done with the response."""
        with self._errors():
            await self._response.aclose()


def _httpx() -> Any:
    try:
        import httpx2
    except ImportError:
        raise UsageError(
            "connecting to an http address through a proxy needs httpx2, which is not installed",
            fix='pip install "defserve[client]", or name the host in NO_PROXY',
        ) from None
    return httpx2
