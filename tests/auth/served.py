"""A server whose `auth` needs to know its own address, on a real socket of this process, in a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from defserve import Context, Server
from defserve.auth import Auth
from defserve.serve.address import Address
from defserve.server.web import make_asgi_app
from tests.waiting import wait_until


def notes(auth: Auth) -> Server:
    """A server with a tool for everybody, and one that needs a scope."""
    server = Server("notes", "1", auth=auth)

    @server.tool
    def who(ctx: Context) -> str:
        """Who is calling."""
        return ctx.principal

    @server.tool(scopes=["notes:write"])
    def write() -> str:
        """Write a note."""
        return "written"

    return server


@contextmanager
def served(make: Callable[[str], Auth], host: str = "localhost") -> Iterator[str]:
    """The URL of the endpoint, which `make` is given as well."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        url = f"http://{host}:{port}/mcp"
        server = notes(make(url))
        made = make_asgi_app(
            server.composition, server.mcp, server.auth, {}, Address.parse(f"http://127.0.0.1:{port}/mcp", "/mcp")
        )
        running = uvicorn.Server(uvicorn.Config(made, log_level="error", lifespan="on"))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            wait_until(lambda: running.started)
            yield url
        finally:
            running.should_exit = True
            thread.join(10)
