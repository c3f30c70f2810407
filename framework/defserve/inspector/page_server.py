"""Runs an inspector: the page and its socket on loopback, for the one person who has the token.

Every request is judged by its Host, where it comes from and its token before anything else is done (`Access`). The
page is the files of `page/` as they are; all that is about a server goes through the socket.
"""

from __future__ import annotations

import asyncio
import gzip
import secrets
import sys
import time
import webbrowser
from collections.abc import AsyncGenerator, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from hmac import compare_digest
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from pydantic_core import to_json

from defserve.base.redaction import get_logger
from defserve.core.json_values import is_array
from defserve.inspector.era_connection import InspectionTarget
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
    PAGE_LEFT_REASON,
    BadMessage,
    Json,
    PageRequest,
    describe_error_for_page,
    is_displayable_scope,
    parse_page_message,
)
from defserve.limits import Limits
from defserve.serve.session_opener import serve_on_loopback
from defserve.serve.sockets import Receive, Scope, Send

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
LIMITS: Final = Limits(message=MAX_FRAME_BYTES)


@dataclass(frozen=True, slots=True)
class InspectorWebOptions:
    """port     where to listen; 0 lets the system choose
    browser  whether to open a browser
    """

    port: int = 0
    browser: bool = True


@dataclass(frozen=True, slots=True)
class RunningInspector:
    """An inspector that listens. `url` has the token."""

    url: str
    inspection: Inspection
    access: Access

    def ticket_url(self) -> str:
        """An address that leads to `url` once, for the arguments of a browser: other users may read those."""
        return f"{self.url.partition('?')[0]}?ticket={self.access.new_ticket()}"


@asynccontextmanager
async def serve_inspector(target: InspectionTarget, port: int = 0) -> AsyncGenerator[RunningInspector]:
    """An inspector of `target` while the block runs. Raises UsageError if it cannot listen."""
    access = Access()
    async with Inspection(target) as inspection, serve_on_loopback(views := inspection.views, LIMITS) as frames:
        views.origin = frames.rstrip("/")
        async with serve_on_loopback(InspectorApp(inspection, access, views.origin), LIMITS, port=port) as address:
            access.port = views.page_port = urlsplit(address).port or 0
            yield RunningInspector(f"{address}?token={access.token}", inspection, access)


async def run_inspector(target: InspectionTarget, options: InspectorWebOptions, ending: asyncio.Future[int]) -> int:
    """Inspect until `ending` has an exit code, and return it. The address is printed on a line of its own."""
    async with serve_inspector(target, options.port) as running:
        print("The inspector runs until Ctrl-C. Open this address:", file=sys.stderr)
        print(running.url, flush=True)
        if options.browser:
            await asyncio.to_thread(webbrowser.open, running.ticket_url())
        return await ending


# -- The inspector as an ASGI app: the files of the page, and the socket at `/socket`.


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
MAX_PAGES: Final = 16


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
        if scope["path"] == "/" and scope["method"] == "GET" and self._access.spend_ticket(headers, query):
            await self._answer(303, {"location": f"/?token={self._access.token}"}, b"", send)
            return
        if refusal := self._access.find_page_refusal(headers, query):
            await self._refuse(refusal, send)
            return
        asset = assets().get(scope["path"])
        if asset is None or scope["method"] not in ("GET", "HEAD"):
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
        refusal = self._access.find_socket_refusal(headers_of(scope), list(scope.get("subprotocols") or ()))
        if scope["path"] != "/socket" or refusal is not None or self._open >= MAX_PAGES:
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
            pass  # the inspector ends
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


# -- Who gets in. Other users of this machine, pages of other origins and names that were rebound to us do not.
#
# The token is in the address that was printed. Two things follow from it:
#
# - A page is loaded with the token in its query, or later with a cookie that such a load has set. The cookie opens the
#   files of the page and nothing else: browsers send cookies to every port of a host, so another server on this machine
#   may see it.
# - The socket, and with it everything about the server, needs the token itself, as a subprotocol of its handshake. So
#   it is in no URL, and a socket without it is refused before it is open. The page keeps it in `sessionStorage`, which
#   belongs to one tab and one origin, port included.
#
# A browser that defserve starts is not given the token: every user of this machine can read the arguments of a process.
# It gets a ticket, which is exchanged for the token once.


NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
SUBPROTOCOL: Final = "defserve-inspector"
TOKEN_PROTOCOL: Final = "token."
OWN_SITES: Final = (None, "none", "same-origin")
MAX_QUERY_LENGTH: Final = 2_048
TICKET_SECONDS: Final = 60.0


class Refusal(NamedTuple):
    """An HTTP status, and what to tell."""

    status: int
    text: str


NO_TOKEN: Final = Refusal(401, "This page needs the token of its address. Open the address that defserve printed.")
WRONG_HOST: Final = Refusal(421, "The inspector does not answer for this host name.")
WRONG_ORIGIN: Final = Refusal(403, "The inspector does not answer pages of other origins.")


class Access:
    """The rules of one inspector. `port` is known once it listens."""

    def __init__(self, token: str | None = None) -> None:
        self.token = token or secrets.token_urlsafe(32)
        self.port = 0
        self._ticket: tuple[str, float] | None = None
        self._page_key = sha256(b"page of " + self.token.encode()).hexdigest()

    @property
    def cookie(self) -> str:
        """The header that lets a browser load the page again. A name for each port: cookies know no ports."""
        return f"{self._cookie_name}={self._page_key}; HttpOnly; SameSite=Strict; Path=/"

    def find_page_refusal(self, headers: Mapping[str, str], query: str) -> Refusal | None:
        """Why a request for a file of the page is refused; None if it may pass."""
        if refusal := self._place(headers):
            return refusal
        if headers.get("sec-fetch-site") not in OWN_SITES:
            return WRONG_ORIGIN
        return None if self.has_token(query) or self._has_cookie(headers.get("cookie", "")) else NO_TOKEN

    def find_socket_refusal(self, headers: Mapping[str, str], protocols: list[str]) -> Refusal | None:
        """Why a socket is refused; None if it may be opened. A page of our own always says its Origin."""
        if refusal := self._place(headers):
            return refusal
        if headers.get("origin") != f"http://{headers['host']}":
            return WRONG_ORIGIN
        given = [one.removeprefix(TOKEN_PROTOCOL) for one in protocols if one.startswith(TOKEN_PROTOCOL)]
        if SUBPROTOCOL not in protocols or len(given) != 1:
            return NO_TOKEN
        return None if compare_digest(given[0].encode(), self.token.encode()) else NO_TOKEN

    def new_ticket(self) -> str:
        """What opens the page once, within a minute."""
        ticket = secrets.token_urlsafe(32)
        self._ticket = ticket, time.monotonic() + TICKET_SECONDS
        return ticket

    def spend_ticket(self, headers: Mapping[str, str], query: str) -> bool:
        """Whether a request has the ticket. It is spent then."""
        if self._ticket is None or self._place(headers) or headers.get("sec-fetch-site") not in OWN_SITES:
            return False
        ticket, until = self._ticket
        if not _has(query, "ticket", ticket):
            return False
        self._ticket = None
        return time.monotonic() < until

    def has_token(self, query: str) -> bool:
        """Whether a query string has the token."""
        return _has(query, "token", self.token)

    @property
    def _cookie_name(self) -> str:
        return f"defserve-inspector-{self.port}"

    def _place(self, headers: Mapping[str, str]) -> Refusal | None:
        host = headers.get("host", "").lower()
        return None if host in {f"{name}:{self.port}" for name in NAMES} else WRONG_HOST

    def _has_cookie(self, text: str) -> bool:
        try:
            found = SimpleCookie(text).get(self._cookie_name)
        except CookieError:
            return False
        return found is not None and compare_digest(found.value.encode(), self._page_key.encode())


def _has(query: str, name: str, secret: str) -> bool:
    if len(query) > MAX_QUERY_LENGTH:
        return False
    given = parse_qs(query).get(name, [])
    return len(given) == 1 and compare_digest(given[0].encode(), secret.encode())


# -- The files of the page, each read and compressed once.


KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}


class Asset(NamedTuple):
    """One file. `packed` is its content compressed with gzip."""

    kind: str
    content: bytes
    packed: bytes


@cache
def assets() -> dict[str, Asset]:
    """Path to file. `/` is the page itself. Files of other kinds (licences) are not served."""
    found: dict[str, Asset] = {}
    folder = Path(__file__).parent / "page"
    for file in folder.rglob("*"):
        if kind := KINDS.get(file.suffix):
            content = file.read_bytes()
            found[f"/{file.relative_to(folder).as_posix()}"] = Asset(kind, content, gzip.compress(content, 9, mtime=0))
    found["/"] = found.pop("/index.html")
    return found


# -- The socket of one page.


BATCH_SECONDS: Final = 0.1
MAX_REQUESTS: Final = 256
MAX_UNSENT_BYTES = 64 * 1024 * 1024
"""Bytes that wait for a page that does not read. Then it is disconnected: it reconnects and asks again."""
LATEST: Final = frozenset(("status", "messages"))
"""Topics of which only the newest message matters."""

POLICY_VIOLATION: Final = 1008
TRY_AGAIN: Final = 1013

log = get_logger("inspector")


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
                task.cancel(PAGE_LEFT_REASON)
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_requests(self) -> int | None:
        """Take requests. The code to close the socket with; None if the page has left."""
        while True:
            event = await self._receive()
            if event["type"] == "websocket.disconnect":
                return None
            text = event.get("text")
            if text is None:
                return POLICY_VIOLATION
            try:
                id, verb, arguments = parse_page_message(text)
            except BadMessage as error:
                self._send_message({"on": "refused", "data": describe_error_for_page(error)})
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
            told = describe_error_for_page(error)
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


async def greet_page(inspection: Inspection, request: PageRequest) -> Any:
    return inspection.hello()


async def open_era(inspection: Inspection, request: PageRequest) -> Any:
    """Open the conversation of an era, if it is not open. What is told about it."""
    connection = inspection.connection(get_request_era(request))
    await connection.client()
    return inspection.describe_connection(connection)


async def retry_connection(inspection: Inspection, request: PageRequest) -> Any:
    inspection.connection(get_request_era(request)).retry()


async def restart_target(inspection: Inspection, request: PageRequest) -> Any:
    """Start the server's process again; one that runs is ended first."""
    await inspection.restart_process()


async def sign_in(inspection: Inspection, request: PageRequest) -> Any:
    """Begin to sign in. Answered when there is an address to open, or when it has failed."""
    scopes = request.arguments.get("scopes", [])
    if not is_array(scopes) or len(scopes) > MAX_SCOPES or not all(map(is_displayable_scope, scopes)):
        raise BadMessage(f"scopes are a list of at most {MAX_SCOPES} words")
    return await inspection.account.sign_in(scopes)


async def cancel_sign_in(inspection: Inspection, request: PageRequest) -> Any:
    return await inspection.account.cancel()


async def sign_out(inspection: Inspection, request: PageRequest) -> Any:
    """Revoke the tokens and forget them. `note` says what was not possible at the issuer."""
    return {"note": await inspection.account.sign_out()}


# -- What a page can ask for: the verbs of all panels in one table. A new panel is one more line here.


PAGE_HANDLERS: Final[Mapping[str, PageRequestHandler]] = {
    "hello": greet_page,
    "era.open": open_era,
    "connection.retry": retry_connection,
    "connection.restart": restart_target,
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
