"""An example served at an address, by this process and on the loop of the test."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module, reload

from defserve import Server
from defserve.auth.local_token import add_local_token_auth
from defserve.serve.session_opener import serve_on_loopback


def fresh(example: str) -> Server:
    """The example's server, loaded anew as a process would: an example may keep something while it runs."""
    return reload(import_module(f"examples.{example}")).server


@asynccontextmanager
async def at_address(
    server: Server, scheme: str = "http", key: str | None = None, *, metrics: bool = False
) -> AsyncGenerator[str]:
    """Where the server is reached, for as long as the block runs. Who shows the key is the local user."""
    app = server.asgi(metrics=metrics)
    if key is not None:
        app.auth = add_local_token_auth(key, app.auth)
    async with serve_on_loopback(app, server.limits, scheme=scheme) as url:
        yield url
        await app.provider.stop()
