"""A network for the official Python client that is as patient as a proxy: what may be repeated is repeated.

The client has the session, reads the streams and resumes them. It gives up what it reads for good after two failures,
and all of its conversation after one request that fails. So a stream that is cut ends here in silence, and a request
that is cut off is answered with an error that says so.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from importlib import import_module
from importlib.metadata import version
from typing import Any

IS_OLD = version("mcp").startswith("1.")
httpx = import_module("httpx" if IS_OLD else "httpx2")
CUT_OFF = -32077
PAUSE = 0.1
# Redis is away, or the worker that read this session's stream is dead and its lease has not ended.
PASSING = (503, 409)


class PatientTransport(httpx.AsyncBaseTransport):
    """`lost` has what the server said of a session, or of an event id, that it does not know."""

    def __init__(self, lost: list[str]) -> None:
        self._below = httpx.AsyncHTTPTransport()
        self._lost = lost
        self.resumed = 0

    async def handle_async_request(self, request: Any) -> Any:
        content = await request.aread()
        message = json.loads(content) if content else {}
        is_call = "method" in message and "id" in message
        self.resumed += "last-event-id" in request.headers
        while True:
            try:
                response = await self._below.handle_async_request(request)
                if response.status_code == 404:
                    await response.aread()
                    self._lost.append(f"{message.get('method', request.method)}: {response.text}")
                elif response.status_code in PASSING:
                    await response.aread()
                    await asyncio.sleep(PAUSE)
                    continue
                elif response.headers.get("content-type", "").startswith("application/json"):
                    await response.aread()
            except httpx.TransportError:
                if is_call:
                    return httpx.Response(200, json=cut_off(message["id"]), request=request)
                await asyncio.sleep(PAUSE)
                continue
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                quiet = QuietStream(response.stream, message.get("id") if is_call else None)
                return httpx.Response(response.status_code, headers=response.headers, stream=quiet)
            return response

    async def aclose(self) -> None:
        await self._below.aclose()


class QuietStream(httpx.AsyncByteStream):
    """The events of a response. If it is cut before a call has an id to resume with, its last event says so."""

    def __init__(self, stream: Any, call: Any) -> None:
        self._stream, self._call = stream, call

    async def __aiter__(self) -> AsyncIterator[bytes]:
        has_id = False
        block = b""
        try:
            async for data in self._stream:
                block += data
                whole, found, rest = block.rpartition(b"\n\n")
                # An event that is cut in two must not reach the client: it would be resumed from within.
                if found:
                    has_id = has_id or b"\nid: " in b"\n" + whole
                    yield whole + found
                    block = rest
            return
        except httpx.TransportError:
            pass
        if self._call is not None and not has_id:
            yield b"data: " + json.dumps(cut_off(self._call)).encode() + b"\n\n"

    async def aclose(self) -> None:
        await self._stream.aclose()


def cut_off(id: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "error": {"code": CUT_OFF, "message": "the connection was cut"}}
