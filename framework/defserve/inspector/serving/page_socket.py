"""The socket of one page: its requests, each in a task of its own; answers at once, pushes in batches."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from pydantic_core import to_json

from defserve.inspector.inspection import Inspection
from defserve.inspector.protocol import CANCEL, BadMessage, Json, Request, error_of, read
from defserve.inspector.verbs import VERBS
from defserve.transports.asgi import Receive, Send

BATCH_SECONDS: Final = 0.1
MOST_REQUESTS: Final = 256
MOST_UNSENT: Final = 20_000
"""Messages that wait for a page that does not read. Then it is disconnected: it comes back and asks anew."""
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
        self._unsent: list[Json] = []
        self._more, self._now = asyncio.Event(), asyncio.Event()

    async def serve(self) -> None:
        """Serve until the page leaves, or stops reading."""
        self._inspection.pages.append(self._push)
        tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if (code := task.result()) is not None:
                    await self._send({"type": "websocket.close", "code": code})
        finally:
            self._inspection.pages.remove(self._push)
            tasks += self._running.values()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self) -> int | None:
        """Take requests. The code to close the socket with; None if the page has left."""
        while True:
            event = await self._receive()
            if event["type"] == "websocket.disconnect":
                return None
            text = event.get("text")
            if text is None:
                return POLICY
            try:
                id, verb, arguments = read(text)
            except BadMessage as error:
                self._say({"on": "refused", "data": error_of(error)})
                continue
            if verb == CANCEL:
                self._cancel(arguments.get("of"))
            elif id is not None:
                self._begin(id, verb, arguments)

    def _cancel(self, id: Any) -> None:
        if isinstance(id, int) and (task := self._running.get(id)) is not None:
            task.cancel()

    def _begin(self, id: int, verb: str, arguments: Json) -> None:
        if id in self._running or len(self._running) >= MOST_REQUESTS:
            why = "this id is in use" if id in self._running else f"{MOST_REQUESTS} requests run already"
            self._say({"id": id, "error": {"message": why}})
            return
        task = self._running[id] = asyncio.create_task(self._run(id, verb, arguments), name=f"inspector {verb}")
        task.add_done_callback(lambda _: self._running.pop(id, None))

    async def _run(self, id: int, verb: str, arguments: Json) -> None:
        async def part(value: Any) -> None:
            self._say({"id": id, "part": value})

        try:
            run = VERBS.get(verb)
            if run is None:
                raise BadMessage(f"there is no verb {verb!r}")
            answer: Json = {"id": id, "ok": await run(self._inspection, Request(arguments, part))}
        except asyncio.CancelledError:
            self._say({"id": id, "error": {"message": "cancelled", "cancelled": True}})
            raise
        except Exception as error:
            told = error_of(error)
            if "code" not in told:
                log.debug("%s failed", verb, exc_info=True)
            answer = {"id": id, "error": told}
        self._say(answer)

    # -- to the page -------------------------------------------------------------------------------------

    def _push(self, topic: str, data: Any) -> None:
        self._unsent.append({"on": topic, "data": data})
        self._more.set()

    def _say(self, message: Json) -> None:
        self._unsent.append(message)
        self._more.set()
        self._now.set()

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
            messages, self._unsent = _newest(self._unsent), []
            sending = asyncio.ensure_future(self._send({"type": "websocket.send", "text": _frame(messages)}))
            while not sending.done():
                await asyncio.wait((sending,), timeout=1.0)
                if len(self._unsent) > MOST_UNSENT:
                    sending.cancel()
                    return TRY_AGAIN
            sending.result()


def _newest(messages: list[Json]) -> list[Json]:
    """Without messages that a later one replaces."""
    last = {message["on"]: place for place, message in enumerate(messages) if message.get("on") in LATEST}
    return [message for place, message in enumerate(messages) if last.get(message.get("on"), place) == place]


def _frame(messages: list[Json]) -> str:
    # What a tool or a server gave may hold anything: it must not end the socket.
    return to_json(messages, fallback=str, inf_nan_mode="null").decode()
