"""Every message of MCP Events, recorded from a real server, in both dialects: `golden/sep.json`, `golden/sketch.json`.

`python -m tests.protocols.mcp.events.golden_messages` writes them anew. Read the difference before you keep it: these
files say what clients of the draft may rely on.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

from defserve import Server
from defserve.protocols.mcp.events import sending, streams
from defserve.protocols.mcp.events import webhooks as deliveries
from defserve.protocols.mcp.events.extension import Events
from defserve.server import EventSettings
from defserve.stores.store import StoreBusy
from tests.listening import Listening, listening
from tests.protocols.mcp.events.repositories import SEP, Push, make_server
from tests.raw import PREFIX, STATELESS, Json, Raw, raw

FOLDER = Path(__file__).with_name("golden")
DIALECTS: Mapping[str, Json] = {"sep": SEP, "sketch": {}}
SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
LOOPBACK = EventSettings(allow_loopback=True)
ABOUT: Json = {"name": "pushed", "arguments": {"repository": "x"}}


# -- What differs from run to run.


NAMED = {
    "cursor": "<cursor>",
    "timestamp": "<time>",
    "refreshBefore": "<time>",
    "lastDeliveryAt": "<time>",
    "challenge": "<challenge>",
    "webhook-timestamp": "<seconds>",
    "webhook-signature": "<signature>",
}
PATTERNS = {
    r"http(s?)://127\.0\.0\.1:\d+/": r"http\1://receiver/",
    r"sub_[0-9a-f]{32}": "<subscription>",
    r"req-[0-9a-f]{16}": "<trace>",
    r"(msg_[a-z]+)_[0-9a-f]+": r"\1_<random>",
}


def tidy(value: Any, name: str = "") -> Any:
    """A message with words for what is never the same."""
    if isinstance(value, dict):
        return {key: tidy(each, key) for key, each in value.items()}  # pyright: ignore
    if isinstance(value, list):
        return [tidy(each) for each in value]  # pyright: ignore
    if not isinstance(value, str) or not value or value.startswith("<"):
        return value
    for pattern, word in PATTERNS.items():
        value = re.sub(pattern, word, value)
    return NAMED.get(name, value)


class Recorder:
    """A peer of one dialect, and what was said: `→` by the client, `←` by the server, `⇒` to the webhook."""

    def __init__(self, peer: Raw, server: Server, receiver: AnyReceiver) -> None:
        self.peer, self.server, self.receiver, self.said = peer, server, receiver, list[Any]()

    async def ask(self, method: str, params: Json | None = None) -> Json:
        """Both messages, without the `_meta` that every request has."""
        reply = await self.peer.ask(method, params)
        self.note("→", {"method": method, "params": params or {}})
        self.note("←", {name: value for name, value in reply.items() if name in ("result", "error")})
        return reply

    async def hear(self, *methods: str) -> None:
        """The notifications up to the last of these. Heartbeats come as often as they like."""
        left = list(methods)
        while left:
            message = await self.peer.hear()
            if message.get("method") in left:
                left.remove(message["method"])
                self.note("←", {"method": message["method"], "params": message["params"]})
            elif "method" not in message:
                self.note("←", {name: value for name, value in message.items() if name in ("result", "error")})

    def note(self, direction: str, message: Any) -> None:
        self.said.append([direction, tidy(message)])

    async def receive(self, count: int = 1) -> None:
        """What the webhook was sent."""
        for headers, body in await asyncio.to_thread(self.receiver.take, count):
            self.note("⇒", {"headers": headers, "body": body})

    async def push(self, number: int = 1) -> None:
        await self.server.emit_event("pushed", Push(commits=number), event_id=f"evt_{number}", repository="x")

    def delivery(self, path: str = "hook", **members: Any) -> Json:
        return {"mode": "webhook", "url": self.receiver.url + path, "secret": SECRET, **members}


class AnyReceiver:
    """An address that answers by its path: `hook` well, `500` with that status, `wrong` with another challenge, `slow`
    only when it is released."""

    def __init__(self) -> None:
        self.requests: list[tuple[Json, Json]] = []
        self.released, self.holds = threading.Event(), threading.Event()
        self._news = threading.Condition()
        self._taken = 0

    def __enter__(self) -> Self:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Head and body are written one after the other: the body would wait 40 ms for the head to be acknowledged.
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                path = self.path.strip("/")
                if path == "slow" or (path == "held" and "type" not in body):
                    receiver.holds.set()
                    receiver.released.wait(30)
                names = (
                    "webhook-id",
                    "webhook-timestamp",
                    "webhook-signature",
                    "x-mcp-subscription-id",
                    "content-type",
                )
                receiver.add({name: self.headers[name] for name in names}, body)
                given = {"challenge": "?" if path == "wrong" else body.get("challenge")}
                answer = json.dumps(given).encode()
                self.send_response(int(path) if path.isdigit() else 200)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None: ...

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None: ...

        self._server = Quiet(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def add(self, headers: Json, body: Json) -> None:
        with self._news:
            self.requests.append((headers, body))
            self._news.notify_all()

    def take(self, count: int) -> list[tuple[Json, Json]]:
        """The next requests, once they have come."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.requests) >= self._taken + count, 30)
            self._taken += count
            return self.requests[self._taken - count : self._taken]


# -- The scenes. Each begins with a server of its own.


async def discover(here: Recorder) -> None:
    capabilities = here.peer.opening["capabilities"]
    here.note("←", {"extensions": capabilities["extensions"], "events": capabilities["events"]})
    await here.ask("events/list")


async def poll(here: Recorder) -> None:
    start = (await here.ask("events/poll", {**ABOUT, "cursor": None}))["result"]["cursor"]
    for number in (1, 2):
        await here.push(number)
    await here.ask("events/poll", {**ABOUT, "cursor": start, "maxEvents": 1})
    await here.ask("events/poll", {**ABOUT, "cursor": start, "maxAgeMs": 60_000})


async def poll_truncated(here: Recorder) -> None:
    start = (await here.ask("events/poll", {**ABOUT, "cursor": None}))["result"]["cursor"]
    for number in range(4):
        await here.push(number)
    await here.ask("events/poll", {**ABOUT, "cursor": start})


async def stream(here: Recorder) -> None:
    with patch.object(streams, "HEARTBEAT_SECONDS", 0.02):
        id = await here.peer.begin("events/stream", {**ABOUT, "cursor": None})
        here.note("→", {"method": "events/stream", "params": {**ABOUT, "cursor": None}})
        await here.hear("notifications/events/active")
        await here.hear("notifications/events/heartbeat")
        await here.push()
        await here.hear("notifications/events/event")
        events = find_events(here.server)
        with patch.object(events.log, "read_page", side_effect=StoreBusy("away")):
            await here.hear("notifications/events/error")
        here.server.remove_event("pushed")
        await here.hear("notifications/events/terminated")
        here.note("←", {"result": (await here.peer.reply_to(id))["result"]})


async def stream_of_a_changed_type(here: Recorder) -> None:
    await here.peer.begin("events/stream", {**ABOUT, "cursor": None})
    await here.hear("notifications/events/active")
    here.server.add_event(_other, name="pushed", replace=True)
    await here.hear("notifications/events/terminated")


def _other(repository: str, tag: str) -> Push: ...


async def list_changed(here: Recorder) -> None:
    await here.peer.begin("subscriptions/listen", {"notifications": {"eventsListChanged": True}})
    here.note("→", {"method": "subscriptions/listen", "params": {"notifications": {"eventsListChanged": True}}})
    await here.hear("notifications/subscriptions/acknowledged")
    here.server.remove_event("pushed")
    await here.hear("notifications/events/list_changed")


async def webhook(here: Recorder) -> None:
    await here.ask("events/subscribe", {**ABOUT, "delivery": here.delivery(), "ttlMs": 3_600_000})
    await here.receive()
    await here.push()
    await here.receive()
    await here.ask("events/unsubscribe", {**ABOUT, "delivery": {"mode": "webhook", "url": here.receiver.url + "hook"}})
    await here.ask("events/unsubscribe", {**ABOUT, "delivery": {"mode": "webhook", "url": here.receiver.url + "hook"}})


async def webhook_gap_and_end(here: Recorder) -> None:
    await here.ask("events/subscribe", {**ABOUT, "delivery": here.delivery("held"), "ttlMs": None})
    await here.receive()
    await here.push(0)
    await asyncio.to_thread(here.receiver.holds.wait, 30)
    for number in range(1, 5):
        await here.push(number)
    here.receiver.released.set()
    await here.receive(4)  # the first one, the gap, and the two that are left
    here.server.remove_event("pushed")
    await here.receive()


async def not_found(here: Recorder) -> None:
    for method in ("events/poll", "events/stream", "events/subscribe"):
        await here.ask(method, {**ABOUT, "name": "nope", "delivery": here.delivery()})


async def invalid(here: Recorder) -> None:
    await here.ask("events/poll", {"arguments": {}})
    await here.ask("events/poll", {"name": "pushed", "arguments": {}})
    await here.ask("events/poll", {**ABOUT, "cursor": "x"})
    await here.ask("events/stream", {**ABOUT, "arguments": {"repository": 7}})
    await here.ask("events/subscribe", ABOUT)
    await here.ask("events/subscribe", {**ABOUT, "delivery": here.delivery(url="http://example.com/")})
    await here.ask("events/subscribe", {**ABOUT, "delivery": here.delivery(secret="whsec_c2hvcnQ=")})
    await here.ask("events/subscribe", {**ABOUT, "delivery": here.delivery(), "ttlMs": -1})
    await here.ask("events/unsubscribe", {**ABOUT, "delivery": {"url": "ftp://example.com/"}})


async def unsupported(here: Recorder) -> None:
    here.server.add_event(_polled, name="polled", delivery=["poll"])
    await here.ask("events/stream", {"name": "polled", "cursor": None})
    await here.ask("events/subscribe", {"name": "polled", "delivery": here.delivery()})
    await here.ask("events/subscribe", {**ABOUT, "delivery": here.delivery(mode="mail")})


def _polled() -> Push: ...


async def exhausted(here: Recorder) -> None:
    await here.peer.begin("events/stream", {**ABOUT, "cursor": None})
    await here.hear("notifications/events/active")
    await here.ask("events/stream", {**ABOUT, "cursor": None})
    await here.ask("events/subscribe", {**ABOUT, "delivery": here.delivery()})
    await here.ask("events/subscribe", {**ABOUT, "arguments": {"repository": "y"}, "delivery": here.delivery()})


async def callback_endpoint(here: Recorder) -> None:
    unused = here.delivery(url="http://127.0.0.1:9/")
    secured = here.delivery(url=here.receiver.url.replace("http:", "https:"))
    with patch.object(sending, "TIMEOUT_SECONDS", 0.2):
        for delivery in (unused, here.delivery("slow"), secured, *map(here.delivery, ("404", "500", "wrong"))):
            await here.ask("events/subscribe", {**ABOUT, "delivery": delivery})


SCENES: Mapping[str, tuple[Callable[[Recorder], Awaitable[None]], EventSettings]] = {
    "discover and list": (discover, LOOPBACK),
    "poll": (poll, LOOPBACK),
    "poll, truncated": (poll_truncated, EventSettings(max_events=2)),
    "stream: every notification, and its end": (stream, LOOPBACK),
    "stream: the type has changed": (stream_of_a_changed_type, LOOPBACK),
    "the list of types has changed": (list_changed, LOOPBACK),
    "webhook": (webhook, LOOPBACK),
    "webhook: gap and end": (webhook_gap_and_end, EventSettings(max_events=2, allow_loopback=True)),
    "InvalidParams": (invalid, LOOPBACK),
    "NotFound": (not_found, LOOPBACK),
    "ResourceExhausted": (exhausted, EventSettings(streams=1, webhooks=1, allow_loopback=True)),
    "Unsupported": (unsupported, LOOPBACK),
    "CallbackEndpointError": (callback_endpoint, LOOPBACK),
}


def find_events(server: Server) -> Events:
    return next(extension for extension in server.extensions if isinstance(extension, Events))


async def record_scene(title: str, dialect: str) -> list[Any]:
    """What is said in a scene, by a client of this dialect."""
    scene, settings = SCENES[title]
    server = make_server(settings=settings)
    with ExitStack() as stack:
        for name in ("LOOK_SECONDS", "IDLE_LOOK_SECONDS"):
            stack.enter_context(patch.object(deliveries, name, 0.02))
        receiver = stack.enter_context(AnyReceiver())
        async with asyncio.timeout(60), raw(server, capabilities=DIALECTS[dialect]) as peer:
            here = Recorder(peer, server, receiver)
            await scene(here)
            return here.said


async def record_forbidden(dialect: str) -> list[Any]:
    """An unauthenticated caller over HTTP asks for a webhook; and a server without events is asked for some."""
    said: list[Any] = []
    for server, method in ((make_server(settings=LOOPBACK), "events/subscribe"), (Server("git", "1"), "events/list")):
        async with asyncio.timeout(60), listening(server) as where:
            params = {**ABOUT, "delivery": {"mode": "webhook", "url": "https://example.com/hook", "secret": SECRET}}
            asked = params if method == "events/subscribe" else {}
            reply = await _ask_http(where, DIALECTS[dialect], method, asked)
            said.append(["←", tidy({"method": method, "error": reply["error"]})])
    return said


async def _ask_http(where: Listening, capabilities: Json, method: str, params: Json) -> Json:
    meta = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": capabilities}
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    lines = (
        f"mcp-protocol-version: {STATELESS}",
        f"mcp-method: {method}",
        "accept: application/json, text/event-stream",
    )
    answer = await where.ask(*lines, body=json.dumps(message).encode())
    return json.loads(answer.partition(b"\r\n\r\n")[2])


async def record_all(dialect: str) -> Json:
    """Every scene of a dialect."""
    recorded = {title: await record_scene(title, dialect) for title in SCENES}
    return {**recorded, FORBIDDEN: await record_forbidden(dialect)}


FORBIDDEN = "Forbidden, and a server without events"


def format_golden(recorded: Json) -> str:
    """A line for each message."""
    scenes = [
        f"{json.dumps(title)}: [\n " + ",\n ".join(_format_line(each) for each in said) + "\n]"
        for title, said in recorded.items()
    ]
    return "{\n" + ",\n".join(scenes) + "\n}\n"


def _format_line(message: Any) -> str:
    return json.dumps(message, ensure_ascii=False, sort_keys=True)


def load_golden(dialect: str) -> Json:
    return json.loads((FOLDER / f"{dialect}.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in DIALECTS:
        (FOLDER / f"{each}.json").write_text(format_golden(asyncio.run(record_all(each))), encoding="utf-8")
