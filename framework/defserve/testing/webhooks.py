"""A receiver of webhooks (MCP Events, a draft) on this machine, for tests: it does what a good receiver has to do.

    with WebhookReceiver() as receiver:
        client.subscribe("pushed", receiver.url, receiver.secret)      # the server needs allow_loopback
        …
        (event,) = receiver.wait_for_events(1)

It answers challenges, and takes an event only if its signature is good, it is fresh, and its id is new. What it refuses
is in `refused`. It runs in threads of its own, so a test may be sync or async.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from defserve.core.json_values import is_object
from defserve.protocols.mcp.events.draft import MAX_EVENT_BYTES, SUBSCRIPTION_ID_HEADER, VERIFICATION_TYPE
from defserve.protocols.mcp.events.sending import (
    BadSignature,
    make_webhook_secret,
    parse_webhook_secret,
    verify_webhook,
)

TIMEOUT_SECONDS: Final = 30.0


@dataclass(frozen=True)
class ReceivedEvent:
    """An event that was delivered. `subscription` is the id that `events/subscribe` gave; `body` is all of it."""

    id: str
    name: str
    timestamp: str
    data: dict[str, Any]
    cursor: str | None
    subscription: str
    body: dict[str, Any] = field(repr=False)


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True
    tls: ssl.SSLContext | None = None

    def finish_request(self, request: Any, client_address: Any) -> None:
        """TLS begins in the connection's own thread: a peer that says nothing holds up nobody else."""
        request.settimeout(TIMEOUT_SECONDS)
        if self.tls is None:
            super().finish_request(request, client_address)
            return
        with self.tls.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A sender that was killed is part of a test."""


class WebhookReceiver:
    """Receives at `url`, which is http, or https with a `tls` context. `secret` is what to subscribe with.

    `secrets` are those whose signatures it takes, the newest last. `planned` are the statuses of the next answers.
    `events` came, in this order. `control` are the bodies of gaps and ends. `refused` says why a request was refused.
    `duplicates` are ids that came again, which is no mistake: they were acknowledged and left out.
    """

    def __init__(self, *, tls: ssl.SSLContext | None = None, clock: Callable[[], float] = time.time) -> None:
        self.secrets = [make_webhook_secret()]
        self.planned: list[int] = []
        self.events: list[ReceivedEvent] = []
        self.control: list[dict[str, Any]] = []
        self.refused: list[str] = []
        self.duplicates: list[str] = []
        self.challenges = 0
        self._clock, self._tls = clock, tls
        self._ids: set[str] = set()
        self._news = threading.Condition()
        self._server: _QuietServer | None = None

    # -- for the test ------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Head and body are written one after the other: the body would wait 40 ms for the head to be acknowledged.
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                status, answer = receiver._receive(self)
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Tests have an output of their own."""

        self._server = _QuietServer(("127.0.0.1", 0), Handler)
        self._server.tls = self._tls
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Where it listens."""
        assert self._server is not None, "use it in a with block"
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._server.server_address[1]}/hook"

    @property
    def secret(self) -> str:
        """The newest secret."""
        return self.secrets[-1]

    def answer_with(self, *statuses: int) -> None:
        """Answer the next events with these statuses, and do not take them. Challenges are answered as ever."""
        self.planned.extend(statuses)

    def rotate_secret(self) -> str:
        """A new secret to subscribe with. What is signed with those before is taken as well."""
        self.secrets.append(make_webhook_secret())
        return self.secret

    def wait_for_events(self, count: int, *, timeout: float = TIMEOUT_SECONDS) -> list[ReceivedEvent]:
        """The events, once there are so many. Raises TimeoutError. In async code: `await asyncio.to_thread(…)`."""
        self.wait_until(lambda: len(self.events) >= count, timeout=timeout)
        return list(self.events)

    def wait_until(self, condition: Callable[[], bool], *, timeout: float = TIMEOUT_SECONDS) -> None:
        """Wait until something that it received makes a condition true. Raises TimeoutError."""
        with self._news:
            if not self._news.wait_for(condition, timeout):
                raise TimeoutError(f"it did not come within {timeout:g} s; refused so far: {self.refused}")

    # -- for the server ----------------------------------------------------------------------------------

    def _receive(self, request: BaseHTTPRequestHandler) -> tuple[int, dict[str, Any]]:
        length = request.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > MAX_EVENT_BYTES:
            request.close_connection = True
            return self._refuse(413, "the body is too long, or of no known length")
        data = request.rfile.read(int(length))
        headers = {name.lower(): value for name, value in request.headers.items()}
        with self._news:
            try:
                return self._take(headers, data)
            finally:
                self._news.notify_all()

    def _take(self, headers: dict[str, str], data: bytes) -> tuple[int, dict[str, Any]]:
        try:
            keys = [parse_webhook_secret(secret) for secret in self.secrets]
            id = verify_webhook(keys, headers, data, self._clock())
            body = json.loads(data)
        except (BadSignature, ValueError) as error:
            return self._refuse(401, str(error))
        if not is_object(body):
            return self._refuse(400, "the body is no object")
        if body.get("type") == VERIFICATION_TYPE:
            self.challenges += 1
            return 200, {"challenge": body.get("challenge")}
        if self.planned:
            return self.planned.pop(0), {}
        if id in self._ids:
            self.duplicates.append(id)
            return 200, {}
        self._ids.add(id)
        if "type" in body:
            self.control.append(body)
            return 200, {}
        subscription = headers.get(SUBSCRIPTION_ID_HEADER, "")
        event = ReceivedEvent(
            id=id,
            name=str(body.get("name")),
            timestamp=str(body.get("timestamp")),
            data=body.get("data") or {},
            cursor=body.get("cursor"),
            subscription=subscription,
            body=body,
        )
        before = [one.timestamp for one in self.events if one.subscription == subscription]
        if body.get("eventId") != id:
            return self._refuse(400, "webhook-id is not the id of the event")
        if before and before[-1] > event.timestamp:
            return self._refuse(409, "the event is older than the one before it")
        self.events.append(event)
        return 200, {}

    def _refuse(self, status: int, reason: str) -> tuple[int, dict[str, Any]]:
        self.refused.append(reason)
        return status, {"error": reason}
