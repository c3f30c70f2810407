"""A child on an inherited socket, and the HTTP sessions that outlive it.

It reports when it is ready, and refuses no client when it is replaced. The next child opens the sessions again by
repeating their client's messages.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from _thread import start_new_thread
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from pydantic_core import from_json

from defserve.core.json_values import is_mapping
from defserve.protocols.mcp.subscriptions import LIST_CHANGED_FILTERS
from defserve.serve.address import Address
from defserve.serve.http.app import HttpApp
from defserve.serve.network import run_listener
from defserve.serve.session_opener import SessionOpener
from defserve.serve.sockets import BUFFERED_REQUEST_KEY
from defserve.server import web
from defserve.server.server import Server
from defserve.server.serving import explain_failed_lifespan
from defserve.tooling.devserver.handover import READY_LINE, ReplayableClientSetup, ServePlan

STDIN, STDOUT, STDERR = 0, 1, 2

# After this time the listener has stopped listening and closed idle connections.
LEAVING = 0.3


def serve_http_child(server: Server, plan: ServePlan) -> int:
    """Serve until standard input ends or a signal comes, and return the exit code."""
    ready = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)  # what the author prints is for the person who watches
    options: Any = {name: value for name, value in plan.options.items() if name != "on"}
    address = Address.parse(plan.options["on"])
    provider = SessionOpener(server.composition)
    sockets = [socket.socket(fileno=number) for number in plan.sockets]
    key = Path(plan.local_key).read_text() or None
    app = web.make_http_app(provider, server.mcp, server.auth, options, address, key)

    def on_started() -> None:
        on_end_of_input(lambda: leave(provider, app))
        os.write(ready, READY_LINE)
        os.close(ready)

    def announce() -> None:
        for kind in LIST_CHANGED_FILTERS:
            server.mcp.subscriptions.notify_list_changed(kind)

    served = SessionReopener(app, Path(plan.sessions), on_started, announce)
    # The parent has said where it serves, and says when it serves something new.
    network = replace(web.make_network_options(options), show_address=_show_nothing)
    with explain_failed_lifespan(server):
        return run_listener(served, address, network, server.limits, provider, sockets)


def _show_nothing(_: str) -> None: ...


def leave(provider: SessionOpener, app: HttpApp) -> None:
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


# -- HTTP sessions that outlive their process: the next child opens them again by repeating their client's messages.


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]

SESSION, LAST_EVENT = b"mcp-session-id", b"last-event-id"
LENGTH, NEGOTIATION = b"content-length", (b"content-type", b"accept")
MAX_SETUP: Final = 256 * 1024
"""Bytes of the messages that set up a session: its opening, and what was subscribed to."""
MAX_SESSIONS: Final = 1_000
JSON_HEADERS = [(b"content-type", b"application/json"), (b"accept", b"application/json, text/event-stream")]


class SessionSetups:
    """The messages with which the client of each session set it up, in a folder that all children share.

    A message that would make them too long is not kept, and of too many sessions the oldest is forgotten.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def record_message(self, session: str, message: Any) -> None:
        if is_mapping(message) and "method" in message:
            known, setup = self.messages(session), ReplayableClientSetup()
            for each in (*known, dict(message)):
                setup.record_message(each)
            messages = [setup.initialize, setup.initialized, *setup.settings]
            if (new := [each for each in messages if each is not None]) != known:
                self._write(session, json.dumps(new).encode())

    def messages(self, session: str) -> list[dict[str, Any]]:
        try:
            return json.loads(self._file(session).read_bytes())
        except FileNotFoundError:
            return []

    def drop_setup(self, session: str) -> None:
        self._file(session).unlink(missing_ok=True)

    def _write(self, session: str, text: bytes) -> None:
        if len(text) > MAX_SETUP:
            return
        file = self._file(session)
        if not file.exists() and len(files := list(self._folder.iterdir())) >= MAX_SESSIONS:
            min(files, key=lambda each: each.stat().st_mtime_ns).unlink(missing_ok=True)
        file.write_bytes(text)

    def _file(self, session: str) -> Path:
        return self._folder / sha256(session.encode()).hexdigest()


class SessionReopener:
    """Wraps an app. Clients keep their session ids, even those that an earlier child gave them.

    What comes is judged by the app: nothing is read before it reads, nor kept unless it answers well.
    """

    def __init__(self, app: App, folder: Path, started: Callable[[], None], announce: Callable[[], None]) -> None:
        self._app, self._setups = app, SessionSetups(folder)
        self._started, self._announce = started, announce
        self._here: dict[str, str] = {}
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, self._starting(send))
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        else:
            # Other requests are made of this one, so the fast path must not answer for it.
            copied = {name: value for name, value in scope.items() if name != BUFFERED_REQUEST_KEY}
            await self._serve(copied, receive, send)

    async def _serve(self, scope: Any, receive: Receive, send: Send) -> None:
        name = _header(scope["headers"], SESSION)
        here = name if name is None else await self._session_here(name, scope)
        if here is not None and here != name:
            # Event ids start again.
            scope["headers"] = [*_without(scope["headers"], (SESSION, LAST_EVENT)), (SESSION, here.encode())]
        if scope["method"] == "POST":
            body = OverheardBody(receive)
            await self._app(scope, body.receive, self._noting(send, name, body))
        elif scope["method"] == "DELETE" and name is not None:
            await self._app(scope, receive, self._forgetting(send, name))
        else:
            await self._app(scope, receive, send)

    def _starting(self, send: Send) -> Send:
        async def on_send(message: Message) -> None:
            await send(message)
            if message["type"] == "lifespan.startup.complete":
                self._started()

        return on_send

    def _noting(self, send: Send, session: str | None, body: OverheardBody) -> Send:
        """Notes the message of a session, and the id of a new one, once the app has taken it."""

        async def on_send(response: Message) -> None:
            if response["type"] == "http.response.start":
                message = _message(body.take_body())
                if _is_taken(response) and (name := session or _header(response.get("headers", ()), SESSION)):
                    if session is None:
                        self._here[name] = name
                    self._setups.record_message(name, message)
            await send(response)

        return on_send

    def _forgetting(self, send: Send, session: str) -> Send:
        async def on_send(response: Message) -> None:
            if response["type"] == "http.response.start" and _is_taken(response):
                self._setups.drop_setup(session)
                self._here.pop(session, None)
            await send(response)

        return on_send

    async def _session_here(self, name: str, scope: Any) -> str:
        """The id of a session in this process. A session of an earlier process is opened again."""
        async with self._turn:
            messages = self._setups.messages(name) if name not in self._here else []
            # With the identity of this request: the session belongs to this caller or to nobody.
            if messages and (opened := await self._post(scope, messages[0], None)) is not None:
                self._here[name] = opened
                for message in messages[1:]:
                    await self._post(scope, message, opened)
                self._announce()
            return self._here.get(name, name)

    async def _post(self, scope: Any, message: Any, session: str | None) -> str | None:
        """Post a message to the app as its client would, and return the session id of the response."""
        body, names = json.dumps(message).encode(), list[str]()
        headers = [*_without(scope["headers"], (SESSION, LAST_EVENT, LENGTH, *NEGOTIATION)), *JSON_HEADERS]
        headers += [(LENGTH, b"%d" % len(body)), *([(SESSION, session.encode())] if session else [])]

        async def on_send(response: Message) -> None:
            if (name := _header(response.get("headers", ()), SESSION)) is not None:
                names.append(name)

        unread = [body]

        async def receive() -> Message:
            if not unread:
                await asyncio.Event().wait()  # this client does not leave
            return {"type": "http.request", "body": unread.pop(), "more_body": False}

        await self._app({**scope, "method": "POST", "headers": headers}, receive, on_send)
        return names[0] if names else None


def _message(body: bytes) -> Any:
    try:
        return from_json(body) if body else None
    except ValueError:
        return None


def _header(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> str | None:
    return next((value.decode("latin-1") for name, value in headers if name.lower() == wanted), None)


def _without(headers: Iterable[tuple[bytes, bytes]], names: tuple[bytes, ...]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in names]


def _is_taken(response: Message) -> bool:
    return 200 <= response["status"] < 300


class OverheardBody:
    """What the app has read of a body, until it answers. What is too long for a setup is let go at once."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._chunks: list[bytes] = []
        self._left = MAX_SETUP

    async def receive(self) -> Message:
        message = await self._receive()
        if chunk := message.get("body", b""):
            self._left -= len(chunk)
            if self._left >= 0:
                self._chunks.append(chunk)
            else:
                self._chunks.clear()
        return message

    def take_body(self) -> bytes:
        """The body; empty if it was too long. Nothing is kept any longer."""
        whole = b"".join(self._chunks)
        self._chunks, self._left = [], -1
        return whole
