"""Sends requests to the API: bounded in time and bytes, repeated only where that does no harm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from defserve.base.backoff import Backoff, parse_retry_after
from defserve.errors import LimitExceeded, Refused, ToolError, UsageError
from defserve.limits import Limits

if TYPE_CHECKING:
    from defserve.openapi.request_building import ApiRequest


RETRIED: Final = frozenset({429, 502, 503, 504})
MAX_PAUSE_SECONDS: Final = 10.0
FIRST_PAUSE: Final = 0.25
MAX_RESPONSE_BYTES: Final = Limits().response


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """A response with its whole body."""

    status: int
    reason: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def media(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def text(self) -> str:
        _, _, charset = self.headers.get("content-type", "").partition("charset=")
        try:
            return self.body.decode(charset.partition(";")[0].strip().strip('"') or "utf-8", "replace")
        except LookupError:
            return self.body.decode("utf-8", "replace")


class ApiSender:
    """The way to one API. Connections belong to an event loop, so there is a client for each.

    `is_trusted`: the author wrote the address, so it may be on a private network.
    """

    def __init__(self, base: str, timeout: float, retries: int, client: Any, *, is_trusted: bool) -> None:
        self._base, self._timeout, self._retries, self._given = base, timeout, retries, client
        self._is_trusted = is_trusted
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()

    async def send(self, request: ApiRequest, *, idempotent: bool) -> ApiResponse:
        """The response. Raises ToolError if there is none."""
        left = self._retries if idempotent else 0
        backoff = Backoff(FIRST_PAUSE, MAX_PAUSE_SECONDS, jitter=(0.5, 1.0))
        for attempt in range(left + 1):
            pause = backoff.next_wait()
            try:
                response = await self._exchange(request)
            except (Refused, LimitExceeded, ToolError):
                raise
            except Exception as error:
                if not _is_of_httpx(error):
                    raise
                if attempt == left:
                    # Not its text: that may hold the address, and in it a key.
                    raise ToolError(
                        f"The API cannot be reached ({type(error).__name__}).", data={"retry": True}
                    ) from None
            else:
                if response.status not in RETRIED or attempt == left:
                    return response
                pause = max(pause, parse_retry_after(response.headers))
                if pause > MAX_PAUSE_SECONDS:
                    return response
            await asyncio.sleep(pause)
        raise AssertionError

    async def _exchange(self, request: ApiRequest) -> ApiResponse:
        client = self._client()
        try:
            async with asyncio.timeout(self._timeout):
                async with client.stream(
                    request.method, request.address, headers=request.all_headers, **request.content
                ) as response:
                    body = await _read_body(response)
                    headers = {name.lower(): value for name, value in response.headers.items()}
                    return ApiResponse(response.status_code, response.reason_phrase, headers, body)
        except TimeoutError:
            raise ToolError(f"The API did not answer within {self._timeout:g} s.", data={"retry": True}) from None

    def _client(self) -> Any:
        if self._given is not None and hasattr(self._given, "stream"):
            return self._given
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            if self._given is not None:
                self._clients[loop] = in_process_client(self._given)
            else:
                self._clients[loop] = make_guarded_client(self._base, self._timeout, is_trusted=self._is_trusted)
        return self._clients[loop]

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Close the connections of this loop at the end."""
        try:
            yield
        finally:
            client = self._clients.pop(asyncio.get_running_loop(), None)
            if client is not None:
                await client.aclose()


def make_guarded_client(base: str, timeout: float, *, is_trusted: bool) -> Any:
    """A client that reaches this address and no other, whatever a response says."""
    from defserve.guard.egress import Egress
    from defserve.guard.http_client import GuardedClient
    from defserve.guard.network import parse_authority

    try:
        where = parse_authority(base + "/")
    except ValueError as error:
        raise UsageError(f"{base!r} is not the address of an API: {error}", fix='say base_url="https://…"') from None
    schemes = (urlsplit(base).scheme,)
    if is_trusted:
        # Only by this name and port; all else is off the list.
        egress = Egress(schemes, None, ("none.invalid",), (str(where),), MAX_RESPONSE_BYTES, timeout)
    else:
        egress = Egress(schemes, (where.port,), (where.host,), (), MAX_RESPONSE_BYTES, timeout)
    return GuardedClient(egress)


async def _read_body(response: Any) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for chunk in response.aiter_bytes():
        size += len(chunk)
        if size > MAX_RESPONSE_BYTES:
            raise ToolError(f"The answer of the API is longer than {MAX_RESPONSE_BYTES} bytes: ask for less.")
        parts.append(chunk)
    return b"".join(parts)


def _is_of_httpx(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2")


# -- An ASGI app called in this process, without a network: a client of it, and its lifespan.


STOP_SECONDS = 10.0


class InProcessApp:
    """An ASGI app whose lifespan this server enters. Its requests have the state that the lifespan made."""

    def __init__(self, app: Callable[[Any, Any, Any], Awaitable[None]]) -> None:
        self._app = app
        self._state: dict[str, Any] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        # No address of a caller: an app may trust some, and none of them made this call.
        await self._app({**scope, "client": None, "state": dict(self._state)}, receive, send)

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Enter the app's lifespan. An app without one is served as it is. Raises UsageError if it fails to start."""
        incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        started: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        stopped = asyncio.Event()

        async def send(message: Any) -> None:
            kind = message["type"]
            if kind.startswith("lifespan.startup.") and not started.done():
                started.set_result(None if kind.endswith("complete") else str(message.get("message") or "it failed"))
            elif kind.startswith("lifespan.shutdown."):
                stopped.set()

        async def run() -> None:
            scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self._state}
            try:
                await self._app(scope, incoming.get, send)
            except Exception:
                if started.done():
                    raise
            finally:
                if not started.done():
                    started.set_result(None)  # it has no lifespan
                stopped.set()

        self._state.clear()
        task = asyncio.create_task(run())
        try:
            incoming.put_nowait({"type": "lifespan.startup"})
            if (problem := await started) is not None:
                raise UsageError(f"the app did not start: {problem[:500]}", fix="see its log")
            yield
        finally:
            incoming.put_nowait({"type": "lifespan.shutdown"})
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await stopped.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def in_process_client(app: Any) -> Any:
    """An httpx client of an ASGI app. Raises UsageError if httpx2 is not installed."""
    from defserve.guard.http_client import load_httpx, make_shared_client

    return make_shared_client(load_httpx("calling an app").ASGITransport(app, raise_app_exceptions=False))
