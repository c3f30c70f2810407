"""Views of a server (MCP apps) at the page: where their documents come from, what they may reach, what they ask for.

A view is code of a server that is not trusted. Its document comes from a second port, in a sandbox without an origin.
It reaches what its policy names and never this inspector. What it asks for and has an effect, the person allows.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from pydantic_core import to_json

from defserve.auth.oauth import is_loopback
from defserve.client.apps import RenderedApp
from defserve.client.client import Client
from defserve.client.conversation import ProgressHandler
from defserve.client.replies import Json, object_or_empty, string_or_none
from defserve.core.json_values import is_array
from defserve.core.messages import INTERNAL_ERROR
from defserve.inspector.protocol import BadMessage
from defserve.inspector.questions import Questions
from defserve.serve.sockets import Receive, Scope, Send

MAX_CALL_SECONDS: Final = 24 * 3600.0
MAX_MESSAGE_BYTES: Final = 1024 * 1024
MAX_URL_LENGTH: Final = 8_192
MAX_PENDING_REQUESTS: Final = 16
MAX_APPS: Final = 16
MAX_FILES: Final = 8
MAX_FILE_NAME_LENGTH: Final = 120
MODES: Final = ("inline", "fullscreen")
CONTEXT: Final = ("theme", "styles", "displayMode", "containerDimensions", "locale", "timeZone", "platform")
"""What a page says about itself to a view."""


class ViewHostClient:
    """A client as the host of a view needs it, whose calls may take as long as they take."""

    def __init__(self, client: Client, on_progress: ProgressHandler | None = None) -> None:
        self._client, self._on_progress = client, on_progress
        self.find_tool, self.value, self.read, self.request = (
            client.find_tool,
            client.value,
            client.read,
            client.request,
        )

    async def call_raw(self, tool: str, arguments: Mapping[str, Any] | None = None) -> Json:
        return await self._client.call_raw(tool, arguments, on_progress=self._on_progress, timeout=MAX_CALL_SECONDS)


class ShownApp:
    """One view. `answer` takes its messages.

    A call of a tool, a link, a file to save, and a resource of another server than its own are put to the person, as a
    question of the kind `view`. `{"yes": true, "always": true}` allows further calls of the same tool, as long as this
    view is shown. Messages to a model go no further than the page, where the person reads them.
    """

    def __init__(self, era: str, app: RenderedApp, questions: Questions) -> None:
        self.era, self.app, self._questions = era, app, questions
        self._always: set[str] = set()
        self._pending = 0
        self.has_begun = False
        app.modes, app.permit = MODES, self._permit
        app.view_messages = deque(maxlen=0)  # the page keeps them, up to a number of bytes

    async def handle_view_message(self, message: Any) -> list[Json]:
        """The messages to post to the view after one of its own. Raises BadMessage for one that is too long."""
        if len(to_json(message, inf_nan_mode="null")) > MAX_MESSAGE_BYTES:
            raise BadMessage(f"the view sent a message of more than {MAX_MESSAGE_BYTES:,} bytes")
        asked = object_or_empty(message)
        if self._pending >= MAX_PENDING_REQUESTS and "id" in asked:
            error = {"code": INTERNAL_ERROR, "message": f"{MAX_PENDING_REQUESTS} requests of this view wait already"}
            return [{"jsonrpc": "2.0", "id": asked["id"], "error": error}]
        self._pending += 1
        try:
            answers = await self.app.answer(message)
        finally:
            self._pending -= 1
        if asked.get("method") == "ui/notifications/initialized":
            self.has_begun = True
        return answers

    def update_context(self, context: Json) -> list[Json]:
        """Tell the view what is different at the page. Before it has begun it is told with the rest."""
        changes = {name: context[name] for name in CONTEXT if name in context}
        self.app.context.update(changes)
        if not changes or not self.has_begun:
            return []
        return [{"jsonrpc": "2.0", "method": "ui/notifications/host-context-changed", "params": changes}]

    async def _permit(self, method: str, params: Json) -> bool:
        about: Json = {"tool": self.app.tool.get("name"), "uri": self.app.uri, "method": method}
        if method == "ui/open-link":
            url = string_or_none(params.get("url")) or ""
            if not is_web(url):
                return False
            return (await self._questions.ask_person("view", self.era, **about, url=url)).get("yes") is True
        if method == "ui/download-file":
            names = list_file_names(params.get("contents"))
            if not names:
                return False
            return (await self._questions.ask_person("view", self.era, **about, saves=names)).get("yes") is True
        if method == "resources/read":
            uri = string_or_none(params.get("uri")) or ""
            return (await self._questions.ask_person("view", self.era, **about, reads=uri)).get("yes") is True
        if method != "tools/call" or (name := str(params.get("name"))) in self._always:
            return True
        wants = {"calls": name, "arguments": object_or_empty(params.get("arguments"))}
        answer = await self._questions.ask_person("view", self.era, **about, **wants)
        if answer.get("yes") is True and answer.get("always") is True:
            self._always.add(name)
        return answer.get("yes") is True


def is_web(url: str) -> bool:
    """Whether a browser may be sent to it."""
    try:
        return len(url) <= MAX_URL_LENGTH and urlsplit(url).scheme in ("http", "https")
    except ValueError:
        return False


def list_file_names(contents: Any) -> list[str]:
    """The names of files that a view wants to save. None if one of them is not there whole: links are not followed."""
    blocks = [object_or_empty(content) for content in contents] if is_array(contents) else []
    resources = [object_or_empty(block.get("resource")) for block in blocks]
    if len(resources) > MAX_FILES or not all("text" in each or "blob" in each for each in resources):
        return []
    uris = [string_or_none(each.get("uri")) or "" for each in resources]
    return [unquote(uri.rpartition("/")[2])[:MAX_FILE_NAME_LENGTH] or "file" for uri in uris]


class ShownApps:
    """The views that pages show, by number. The oldest is given up for a new one."""

    def __init__(self) -> None:
        self._apps: dict[int, ShownApp] = {}
        self._last = 0

    def add(self, app: ShownApp) -> int:
        self._last += 1
        self._apps[self._last] = app
        while len(self._apps) > MAX_APPS:
            del self._apps[next(iter(self._apps))]
        return self._last

    def __getitem__(self, number: int) -> ShownApp:
        if (app := self._apps.get(number)) is None:
            raise BadMessage("this view is no longer shown", fix="show it again")
        return app

    def remove(self, number: int) -> None:
        self._apps.pop(number, None)


# -- The origin of views: an address of its own, so that what a server wrote cannot reach the page.


MAX_VIEWS: Final = 64
MAX_BYTES: Final = 64 * 1024 * 1024

# Also without a frame around it, in a tab of its own, a view has no origin: no cookies and no storage.
SANDBOX: Final = "sandbox allow-scripts"
FRAMES: Final = (None, b"iframe")


class ViewDocument(NamedTuple):
    """A document of a server, and the policy that it is shown under."""

    html: str
    policy: str


class ViewDocumentServer:
    """An ASGI app with one document a path. A path is a secret of its own, made by `add`.

    `page_port` is where the page is: nobody else may put a view into a frame.
    """

    def __init__(self) -> None:
        self.origin = ""
        self.page_port = 0
        self._views: dict[str, tuple[bytes, str]] = {}
        self._size = 0

    def add(self, view: ViewDocument) -> str:
        """The address of a view. Only the newest are kept."""
        path = f"/{secrets.token_urlsafe(24)}"
        # A text of a server may hold half of a character.
        body = view.html.encode("utf-8", "replace")
        self._views[path] = body, view.policy
        self._size += len(body)
        while len(self._views) > MAX_VIEWS or (self._size > MAX_BYTES and len(self._views) > 1):
            self._size -= len(self._views.pop(next(iter(self._views)))[0])
        return self.origin + path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        found = self._views.get(scope["path"]) if scope["method"] == "GET" and _is_framed(scope) else None
        body, policy = found or (b"There is no such view.\n", "default-src 'none'")
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


# -- What a view may reach: the origins that its server named, without those that are not the server's to name.


KEYWORDS: Final = ("'", "data:", "blob:")


def is_near(host: str) -> bool:
    """Whether a host is this machine or one of its own network, as far as its name tells."""
    name = host.lower().rstrip(".")
    try:
        return not ip_address(name).is_global
    except ValueError:
        return "." not in name or name.endswith((".localhost", ".local", ".internal", ".lan", ".home.arpa"))


def is_remote(address: str) -> bool:
    """Whether a server is at an address elsewhere. One that this machine runs reaches all of it anyway."""
    parts = urlsplit(address)
    return parts.scheme in ("http", "https", "ws", "wss") and not is_loopback(parts.hostname or "")


def make_refused_origin_check(ports: set[int], address: str) -> Callable[[str], bool]:
    """Which origins no view of the server at `address` reaches: our own `ports`; for a server elsewhere, what is near.

    A name can be pointed at this machine. So the inspector refuses by host name as well, and asks for its token.
    """
    remote = is_remote(address)

    def is_refused(source: str) -> bool:
        parts = urlsplit(source)
        try:
            port = parts.port
        except ValueError:
            return True
        return port in ports or (remote and is_near((parts.hostname or "").removeprefix("*.")))

    return is_refused


def narrow_content_policy(policy: str, refused: Callable[[str], bool]) -> tuple[str, list[str], list[str]]:
    """A `Content-Security-Policy` without the origins that are refused; those that it names; those that it lost."""
    directives: list[str] = []
    named: dict[str, bool] = {}
    for directive in policy.split("; "):
        name, *sources = directive.split(" ")
        kept: list[str] = []
        for source in sources:
            if source.startswith(KEYWORDS):
                kept.append(source)
                continue
            if source not in named:
                named[source] = not refused(source)
            if named[source]:
                kept.append(source)
        directives.append(" ".join((name, *(kept or ["'none'"]))))
    return (
        "; ".join(directives),
        [source for source, ok in named.items() if ok],
        [source for source, ok in named.items() if not ok],
    )
