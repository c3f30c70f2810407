"""The origin of views: an address of its own, so that what a server wrote cannot reach the page."""

from __future__ import annotations

import secrets
from typing import Final, NamedTuple

from defserve.transports.asgi import Receive, Scope, Send

MOST_VIEWS: Final = 64


class View(NamedTuple):
    """A document of a server, and the policy that it is shown under."""

    html: str
    policy: str


class Views:
    """An ASGI app with one document a path. A path is a secret of its own, made by `add`."""

    def __init__(self) -> None:
        self.origin = ""
        self._views: dict[str, View] = {}

    def add(self, view: View) -> str:
        """The address of a view. Only the newest are kept."""
        path = f"/{secrets.token_urlsafe(24)}"
        self._views[path] = view
        while len(self._views) > MOST_VIEWS:
            del self._views[next(iter(self._views))]
        return self.origin + path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        view = self._views.get(scope["path"]) if scope["method"] == "GET" else None
        policy = view.policy if view else "default-src 'none'"
        body = view.html.encode() if view else b"There is no such view.\n"
        headers = {
            "content-type": f"text/{'html' if view else 'plain'}; charset=utf-8",
            "content-security-policy": policy,
            "content-length": str(len(body)),
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-store",
        }
        encoded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200 if view else 404, "headers": encoded})
        await send({"type": "http.response.body", "body": body})
