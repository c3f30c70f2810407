"""The socket of one page, and what a page can ask for: the verbs of all panels in one table.

Each request has a task of its own; answers go out at once, pushes in batches. A new panel is a line of `PAGE_HANDLERS`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import to_json

from defserve.core.json_values import is_array
from defserve.inspector.inspection import Inspection, PageRequestHandler, get_request_era
from defserve.inspector.panels import (
    kernel_security,
    live_topics,
    resources,
    session,
    state,
    tasks_questions,
    tools,
    wire,
)
from defserve.inspector.protocol import (
    CANCEL_VERB,
    MAX_SCOPES,
    PAGE_LEFT,
    BadMessage,
    Json,
    PageRequest,
    describe_wire_error,
    is_scope,
    parse_message,
)
from defserve.serve.sockets import Receive, Send

BATCH_SECONDS: Final = 0.1
MAX_REQUESTS: Final = 256
MAX_UNSENT_BYTES = 64 * 1024 * 1024
"""Bytes that wait for a page that does not read. Then it is disconnected: it comes back and asks anew."""
LATEST: Final = frozenset(("status", "messages"))
"""Topics of which only the newest message matters."""

POLICY: Final = 1008
TRY_AGAIN: Final = 1013

log = logging.getLogger("defserve").getChild("inspector")


class PageSocket:
    """One open socket, from its acceptance to its end."""

    def __init__(self, inspection: Inspection, receive: Receive, send: Send) -> None:
        self._inspection, self._receive, self._send = inspection, receive, send
        self._running: dict[int, asyncio.Task[None]] = {}
        self._unsent: list[bytes] = []
        self._size = 0
        self._latest: dict[str, int] = {}
        self._more, self._now, self._full = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def serve(self) -> None:
        """Serve until the page leaves, or stops reading."""
        self._inspection.pages.append(self._push)
        tasks = [asyncio.create_task(work) for work in (self._read_requests(), self._write(), self._overflow())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if (code := task.result()) is not None:
                    await self._send({"type": "websocket.close", "code": code})
        finally:
            self._inspection.pages.remove(self._push)
            tasks += self._running.values()
            for task in tasks:
                task.cancel(PAGE_LEFT)
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_requests(self) -> int | None:
        """Take requests. The code to close the socket with; None if the page has left."""
        while True:
            event = await self._receive()
            if event["type"] == "websocket.disconnect":
                return None
            text = event.get("text")
            if text is None:
                return POLICY
            try:
                id, verb, arguments = parse_message(text)
            except BadMessage as error:
                self._send_message({"on": "refused", "data": describe_wire_error(error)})
                continue
            if verb == CANCEL_VERB:
                self._cancel(arguments.get("of"))
            elif id is not None:
                self._begin(id, verb, arguments)

    def _cancel(self, id: Any) -> None:
        if isinstance(id, int) and (task := self._running.get(id)) is not None:
            task.cancel()

    def _begin(self, id: int, verb: str, arguments: Json) -> None:
        if id in self._running or len(self._running) >= MAX_REQUESTS:
            why = "this id is in use" if id in self._running else f"{MAX_REQUESTS} requests run already"
            self._send_message({"id": id, "error": {"message": why}})
            return
        task = self._running[id] = asyncio.create_task(self._run(id, verb, arguments), name=f"inspector {verb}")
        task.add_done_callback(lambda _: self._running.pop(id, None))

    async def _run(self, id: int, verb: str, arguments: Json) -> None:
        def part(value: Any) -> None:
            self._send_message({"id": id, "part": value})

        try:
            run = PAGE_HANDLERS.get(verb)
            if run is None:
                raise BadMessage(f"there is no verb {verb!r}")
            answer: Json = {"id": id, "ok": await run(self._inspection, PageRequest(arguments, part))}
        except asyncio.CancelledError:
            self._send_message({"id": id, "error": {"message": "cancelled", "cancelled": True}})
            raise
        except Exception as error:
            told = describe_wire_error(error)
            if "code" not in told:
                log.debug("%s failed", verb, exc_info=True)
            answer = {"id": id, "error": told}
        self._send_message(answer)

    # -- to the page -------------------------------------------------------------------------------------

    def _push(self, topic: str, data: Any) -> None:
        place = self._latest.get(topic)
        if topic in LATEST:
            self._latest[topic] = len(self._unsent)
        if place is not None:
            self._size -= len(self._unsent[place])
            self._unsent[place] = b""
        self._queue_message({"on": topic, "data": data})

    def _send_message(self, message: Json) -> None:
        self._queue_message(message)
        self._now.set()

    def _queue_message(self, message: Json) -> None:
        # What a tool or a server gave may hold anything: it must not end the socket.
        encoded = to_json(message, fallback=str, inf_nan_mode="null")
        self._unsent.append(encoded)
        self._size += len(encoded)
        self._more.set()
        if self._size > MAX_UNSENT_BYTES:
            self._full.set()

    async def _overflow(self) -> int:
        await self._full.wait()
        return TRY_AGAIN

    async def _write(self) -> int | None:
        while True:
            await self._more.wait()
            try:
                async with asyncio.timeout(BATCH_SECONDS):
                    await self._now.wait()
            except TimeoutError:
                pass
            self._more.clear()
            self._now.clear()
            frame = b"[" + b",".join(filter(None, self._unsent)) + b"]"
            self._unsent, self._size, self._latest = [], 0, {}
            await self._send({"type": "websocket.send", "text": frame.decode()})


# -- What the frame of the page needs: the first facts, the eras, the connection, the sign-in.


async def hello(inspection: Inspection, request: PageRequest) -> Any:
    return inspection.hello()


async def open_era(inspection: Inspection, request: PageRequest) -> Any:
    """Open the conversation of an era, if it is not open. What is told about it."""
    connection = inspection.connection(get_request_era(request))
    await connection.client()
    return inspection.describe_connection(connection)


async def retry(inspection: Inspection, request: PageRequest) -> Any:
    inspection.connection(get_request_era(request)).retry()


async def restart(inspection: Inspection, request: PageRequest) -> Any:
    """Start the server's process again; one that runs is ended first."""
    await inspection.restart_process()


async def sign_in(inspection: Inspection, request: PageRequest) -> Any:
    """Begin to sign in. Answered when there is an address to open, or when it has failed."""
    scopes = request.arguments.get("scopes", [])
    if not is_array(scopes) or len(scopes) > MAX_SCOPES or not all(map(is_scope, scopes)):
        raise BadMessage(f"scopes are a list of at most {MAX_SCOPES} words")
    return await inspection.account.sign_in(scopes)


async def cancel_sign_in(inspection: Inspection, request: PageRequest) -> Any:
    return await inspection.account.cancel()


async def sign_out(inspection: Inspection, request: PageRequest) -> Any:
    """Revoke the tokens and forget them. `note` says what was not possible at the issuer."""
    return {"note": await inspection.account.sign_out()}


# -- What a page can ask for: the verbs of all panels in one table. A new panel is one more line here.


PAGE_HANDLERS: Final[Mapping[str, PageRequestHandler]] = {
    "hello": hello,
    "era.open": open_era,
    "connection.retry": retry,
    "connection.restart": restart,
    "account.sign_in": sign_in,
    "account.cancel": cancel_sign_in,
    "account.sign_out": sign_out,
    **tools.PAGE_HANDLERS,
    **resources.PAGE_HANDLERS,
    **tasks_questions.PAGE_HANDLERS,
    **live_topics.PAGE_HANDLERS,
    **kernel_security.PAGE_HANDLERS,
    **state.PAGE_HANDLERS,
    **wire.PAGE_HANDLERS,
    **session.PAGE_HANDLERS,
}
