"""WebSockets: uvicorn's class with bounds for what a peer sends, and for one that does not read."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any, cast

from defserve.runner.fastpath.deadlines import StallGuard

FRAGMENTS = 1024

_WRITTEN = (b"content-length", b"content-type")


class PatientWebSocket(StallGuard):
    """When the server stops, uvicorn does not close the socket. The app does, as soon as its calls are answered.

    While the peer does not read, nothing more is read from it: each ping would add a pong to what waits.
    """

    handshake_complete: bool
    close_sent: bool
    read_paused: bool
    writable: asyncio.Event

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.read_paused:
            self.transport.resume_reading()

    async def receive(self) -> MutableMapping[str, Any]:
        message = await cast(Any, super()).receive()
        if not (self.writable.is_set() or self.transport.is_closing()):
            self.transport.pause_reading()  # uvicorn has resumed it
        return message

    def handle_cont(self, event: Any) -> None:
        """uvicorn keeps every fragment as an object of its own. A message may have millions, each of a byte or none."""
        held: Any = self
        if not hasattr(self, "frames"):  # older versions of uvicorn join them, which copies all of them each time
            held.bytes = held.bytes if isinstance(held.bytes, bytearray) else bytearray(held.bytes)
        elif len(held.frames) >= FRAGMENTS:
            first, *others = held.frames
            joined = first if isinstance(first, bytearray) else bytearray(first)
            joined += b"".join(others)
            held.frames = [joined]
        cast(Any, super()).handle_cont(event)

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "websocket.http.response.start":
            # uvicorn writes these by itself, and older versions would send them twice.
            message = {**message, "headers": [each for each in message["headers"] if each[0] not in _WRITTEN]}
        await cast(Any, super()).send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            # A refusal is an answer too. Without this line uvicorn logs an error for each refusal.
            self.handshake_complete = True

    def shutdown(self) -> None:
        if not self.handshake_complete or self.close_sent:
            cast(Any, super()).shutdown()
