"""One call of a tool: its progress, its log lines and its parts as they come, then its result."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

from defserve.host.client import Client
from defserve.host.fields import object_of
from defserve.host.mgp.streaming.ordering import ChunkOrder
from defserve.inspector.inspection import Inspection
from defserve.inspector.protocol import Json, Request

LONGEST_CALL: Final = 24 * 3600.0
LOG: Final = "notifications/message"


class RunningCall:
    """Follows one request. It is the observer of the request, and reads its chunks where the server sends some."""

    def __init__(self, client: Client, request: Request) -> None:
        self.id = ""
        self._client, self._request = client, request
        self._streams = client.mgp.streams if client.mgp and "streaming" in client.mgp.sections else None
        self._order = ChunkOrder()
        self._began = time.perf_counter()
        self.first: float | None = None

    @property
    def streams(self) -> bool:
        """Whether the server is asked for chunks."""
        return self._streams is not None

    @property
    def ms(self) -> float:
        """Milliseconds since it began."""
        return round((time.perf_counter() - self._began) * 1000, 1)

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        self._part({"progress": progress, "total": total, "message": message})

    def log(self, params: Json) -> None:
        self._part({"log": {name: params.get(name) for name in ("level", "logger", "data")}})

    def finish(self) -> None:
        """Send what still waited for an earlier chunk: every part goes before the answer."""
        if self._streams is not None:
            self._streams.pop(self.id, None)
        self._chunks(self._order.rest())

    # -- the observer of the request ---------------------------------------------------------------------

    def begins(self) -> str:
        if self._streams is not None:
            self._streams.pop(self.id, None)
        # Without a session anyone who knows the id can cancel the call, so it must be hard to guess.
        self.id = uuid4().hex
        # A question that was asked before the call was sent is not part of its time.
        self._began = time.perf_counter()
        if self._streams is not None:
            self._streams[self.id] = self
        self._order.repeat()
        return self.id

    @property
    def repeatable(self) -> bool:
        return self._order.next == 0

    def waits(self) -> bool:
        return True

    def heard(self, params: Mapping[str, Any]) -> None:
        """Take a chunk. Chunks may come in any order."""
        index = params.get("index")
        if type(index) is not int or index < 0:
            return
        lost = params.get("gap_unrecoverable") is True
        self._chunks(self._order.lose(index) if lost else self._order.take(index, params.get("content")))
        if missing := self._order.wanted():
            self._client.say("notifications/mgp.stream.gap", {"request_id": self.id, "missing_indices": missing})

    def _chunks(self, contents: list[Any]) -> None:
        for content in contents:
            self._part({"content": content})

    def _part(self, part: Json) -> None:
        self.first = self.first or self.ms
        self._request.part({**part, "ms": self.ms})


async def call(inspection: Inspection, request: Request, client: Client) -> Json:
    """Call a tool. Parts: `{"progress", "total", "message"}`, `{"log"}`, `{"content"}`, each with `ms`.

    Cancelling it cancels the call. The answer has the whole `result`, also one with `isError`.
    """
    spoken = "stateless" if client.stateless else "handshake"
    running = RunningCall(client, request)
    params: Json = {"name": request.text("tool"), "arguments": request.object("arguments")}
    if running.streams:
        params["_mgp"] = {"stream": True}

    def heard(of: str, method: str, said: Json) -> None:
        # A log line does not say which call it belongs to: every call of its conversation shows it.
        if of == spoken and method == LOG:
            running.log(said)

    inspection.notices.append(heard)
    try:
        result = await client.request(
            "tools/call", params, on_progress=running.progress, timeout=LONGEST_CALL, observer=running
        )
    finally:
        inspection.notices.remove(heard)
        running.finish()
    about = {"era": spoken, "ms": running.ms, "first": running.first, "request": running.id}
    return {**about, "result": result, "failed": object_of(result).get("isError") is True}
