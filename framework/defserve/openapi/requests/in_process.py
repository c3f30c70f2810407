"""An ASGI app called in this process, without a network: a client of it, and its lifespan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

from defserve.errors import UsageError

App = Callable[[Any, Any, Any], Awaitable[None]]
STOP_SECONDS = 10.0


class InProcessApp:
    """An ASGI app whose lifespan this server enters. Its requests have the state that the lifespan made."""

    def __init__(self, app: App) -> None:
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
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await stopped.wait()
            except TimeoutError:
                pass
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def in_process_client(app: Any) -> Any:
    """An httpx client of an ASGI app. Raises UsageError if httpx2 is not installed."""
    try:
        import httpx2
    except ImportError:
        raise UsageError(
            "calling an app needs httpx2, which is not installed", fix='pip install "defserve[client]"'
        ) from None

    return httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app, raise_app_exceptions=False),
        # One client serves many callers: a cookie that one was given must not be sent for another.
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        trust_env=False,
        follow_redirects=False,
    )
