"""The inspector as an ASGI app: the files of the page, and the socket at `/socket`."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any, Final

from defserve.inspector.inspection import Inspection
from defserve.inspector.serving.access import SUBPROTOCOL, Access, Refusal
from defserve.inspector.serving.assets import assets
from defserve.inspector.serving.page_socket import PageSocket
from defserve.transports.asgi import Receive, Scope, Send

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src data: blob:; "
    "connect-src 'self'; frame-src {frames}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ALWAYS: Final = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
SOCKET: Final = "/socket"
METHODS: Final = ("GET", "HEAD")
MOST_PAGES: Final = 16


class InspectorApp:
    """Serves one inspection. `frames` is the origin that views of apps come from."""

    def __init__(self, inspection: Inspection, access: Access, frames: str = "'none'") -> None:
        self._inspection, self._access = inspection, access
        self._policy = POLICY.format(frames=frames)
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send)
        elif scope["type"] == "http":
            await self._file(scope, send)
        else:
            await _lifespan(receive, send)

    async def _file(self, scope: Scope, send: Send) -> None:
        headers, query = headers_of(scope), scope["query_string"].decode("latin-1")
        if scope["path"] == "/" and scope["method"] == "GET" and self._access.spend(headers, query):
            await self._answer(303, {"location": f"/?token={self._access.token}"}, b"", send)
            return
        if refusal := self._access.page(headers, query):
            await self._refuse(refusal, send)
            return
        asset = assets().get(scope["path"])
        if asset is None or scope["method"] not in METHODS:
            await self._refuse(Refusal(404, "There is no such page.") if asset is None else Refusal(405, "GET."), send)
            return
        packed = "gzip" in headers.get("accept-encoding", "")
        told = {"content-type": asset.kind, "vary": "accept-encoding"}
        if packed:
            told["content-encoding"] = "gzip"
        if self._access.has_token(query):
            told["set-cookie"] = self._access.cookie
        body = asset.packed if packed else asset.content
        await self._answer(200, told, body, send, is_head=scope["method"] == "HEAD")

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._access.socket(headers_of(scope), list(scope.get("subprotocols") or ()))
        if scope["path"] != SOCKET or refusal is not None or self._open >= MOST_PAGES:
            await receive()
            # Before the socket is accepted this is a 403.
            await send({"type": "websocket.close", "code": 1008})
            return
        self._open += 1
        try:
            await receive()
            await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL})
            await PageSocket(self._inspection, receive, send).serve()
        except asyncio.CancelledError:
            pass  # the inspector ends; uvicorn would log a traceback for each open page
        finally:
            self._open -= 1

    async def _refuse(self, refusal: Refusal, send: Send) -> None:
        told = {"content-type": "text/plain; charset=utf-8"}
        await self._answer(refusal.status, told, f"{refusal.text}\n".encode(), send)

    async def _answer(
        self, status: int, headers: dict[str, str], body: bytes, send: Send, *, is_head: bool = False
    ) -> None:
        told = {**ALWAYS, "content-security-policy": self._policy, **headers, "content-length": str(len(body))}
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in told.items()]
        await send({"type": "http.response.start", "status": status, "headers": encoded})
        await send({"type": "http.response.body", "body": b"" if is_head else body})


def headers_of(scope: MutableMapping[str, Any]) -> dict[str, str]:
    """The headers by their names in lower case. The values of one that came twice are joined, so that none matches."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        event = await receive()
        await send({"type": f"{event['type']}.complete"})
        if event["type"] == "lifespan.shutdown":
            return
