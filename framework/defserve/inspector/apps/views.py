"""The origin of views: an address of its own, so that what a server wrote cannot reach the page."""

from __future__ import annotations

import secrets
from typing import Final, NamedTuple

from defserve.transports.asgi import Receive, Scope, Send

MOST_VIEWS: Final = 64
MOST_BYTES: Final = 64 * 1024 * 1024
NOTHING: Final = "default-src 'none'"
# Also without a frame around it, in a tab of its own, a view has no origin: no cookies and no storage.
SANDBOX: Final = "sandbox allow-scripts"
FRAMES: Final = (None, b"iframe")


class View(NamedTuple):
    """A document of a server, and the policy that it is shown under."""

    html: str
    policy: str


class Views:
    """An ASGI app with one document a path. A path is a secret of its own, made by `add`.

    `page_port` is where the page is: nobody else may put a view into a frame.
    """

    def __init__(self) -> None:
        self.origin = ""
        self.page_port = 0
        self._views: dict[str, tuple[bytes, str]] = {}
        self._size = 0

    def add(self, view: View) -> str:
        """The address of a view. Only the newest are kept."""
        path = f"/{secrets.token_urlsafe(24)}"
        # A text of a server may hold half of a character.
        body = view.html.encode("utf-8", "replace")
        self._views[path] = body, view.policy
        self._size += len(body)
        while len(self._views) > MOST_VIEWS or (self._size > MOST_BYTES and len(self._views) > 1):
            self._size -= len(self._views.pop(next(iter(self._views)))[0])
        return self.origin + path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        found = self._views.get(scope["path"]) if scope["method"] == "GET" and _is_framed(scope) else None
        body, policy = found or (b"There is no such view.\n", NOTHING)
        headers = {
            "content-type": f"text/{'html' if found else 'plain'}; charset=utf-8",
            "content-security-policy": f"{policy}; {SANDBOX}; frame-ancestors {self._ancestors}",
            "content-length": str(len(body)),
            "x-content-type-options": "nosniff",
            "x-dns-prefetch-control": "off",
            "referrer-policy": "no-referrer",
            "cache-control": "no-store",
            # A page that hangs should not take the inspector with it.
            "origin-agent-cluster": "?1",
        }
        encoded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200 if found else 404, "headers": encoded})
        await send({"type": "http.response.body", "body": body})

    @property
    def _ancestors(self) -> str:
        return f"http://127.0.0.1:{self.page_port} http://localhost:{self.page_port}" if self.page_port else "'none'"


def _is_framed(scope: Scope) -> bool:
    """Whether a browser asks for it to show it in a frame. What is no browser does not say."""
    return next((value for name, value in scope["headers"] if name == b"sec-fetch-dest"), None) in FRAMES
