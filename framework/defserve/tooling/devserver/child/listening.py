"""A child on an inherited socket: it reports when it is ready, and refuses no client when it is replaced."""

from __future__ import annotations

import asyncio
import os
import socket
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from defserve.protocols.mcp.resources.subscriptions import KINDS
from defserve.runner.address import Address
from defserve.runner.network import listen
from defserve.runner.web_sessions import WebSessions
from defserve.server.server import Server
from defserve.serving import web
from defserve.tooling.devserver.child.sessions import SessionReopener
from defserve.tooling.devserver.plan import READY, ServePlan
from defserve.transports.http.app import HttpApp

STDIN, STDOUT, STDERR = 0, 1, 2
# After this time the listener has stopped listening and closed idle connections.
LEAVING = 0.3


def listen_on(server: Server, plan: ServePlan) -> int:
    """Serve until standard input ends or a signal comes, and return the exit code."""
    ready = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)  # what the author prints is for the person who watches
    options: Any = {name: value for name, value in plan.options.items() if name not in ("on", "log_level", "log_json")}
    address = Address.parse(plan.options["on"])
    server.observe(
        log_level=plan.options.get("log_level"),
        log_json=plan.options.get("log_json", False),
        metrics=plan.options.get("metrics", False),
    )
    provider = WebSessions(server.composition)
    sockets = [socket.socket(fileno=number) for number in plan.sockets]
    key = Path(plan.local_key).read_text() or None
    app = web.app_of(provider, server.mcp, server.auth, options, address, key)

    def started() -> None:
        on_end_of_input(lambda: leave(provider, app))
        os.write(ready, READY)
        os.close(ready)

    def announce() -> None:
        for kind in KINDS:
            server.mcp.subscriptions.changed(kind)

    served = SessionReopener(app, Path(plan.sessions), started, announce)
    return listen(served, address, web.network_options(options), server.limits, provider, sockets)


def leave(provider: WebSessions, app: HttpApp) -> None:
    """Stop accepting, answer running requests, then close streams that would never end by themselves.

    After a signal, calls are refused at once. Here they are not: another child takes them on the same socket.
    """
    provider.over(provider.limits.drain)
    asyncio.get_running_loop().call_later(LEAVING, app.drain)


def on_end_of_input(action: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()

    def wait() -> None:
        with suppress(RuntimeError):  # the loop has ended
            while os.read(STDIN, 1024):
                pass
            loop.call_soon_threadsafe(action)

    start_new_thread(wait, ())
