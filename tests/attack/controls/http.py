"""What servers do over HTTP and WebSocket without their protections. How to write one: `controls/__init__.py`."""

from __future__ import annotations

import re
from typing import Any

from tests.attack.controls.patching import Patch

GATE = "defserve.serve.http.request_heads:HostOriginGate"
HEADS = "defserve.serve.fastpath.deadlines:RequestHeadDeadline"
SOCKET = "defserve.serve.fastpath.websockets:BoundedWebSocket"
EXCHANGE = "defserve.serve.http.exchange:Exchange"
APP = "defserve.serve.http.app:HttpApp"

# -- names: Host, Origin, targets, types -----------------------------------------------------------------


def take_any_host(patch: Patch) -> None:
    patch.set(f"{GATE}._check_host", lambda self, host: None)


def take_any_origin(patch: Patch) -> None:
    patch.set(f"{GATE}._check_origin", lambda self, host, origin: None)


def take_any_host_in_a_target(patch: Patch) -> None:
    """Only the path of an absolute URI counts."""
    patch.set("defserve.serve.http.request_heads:_strip_default_port", lambda authority, scheme: "")


def open_the_gate(patch: Patch) -> None:
    patch.set(f"{GATE}.check", lambda self, host, origin, fetch_site: None)


def take_any_type(patch: Patch) -> None:
    patch.set("defserve.serve.http.request_heads:is_json_content_type", lambda content_type: True)


# -- framing: a reader that reads requests as one of its kind once did -----------------------------------


def _read_as(patch: Patch, pattern: bytes, replacement: bytes) -> None:
    """Read what comes as if it were something else. Strictness of a parser in C can only be removed in front of it."""
    compiled = re.compile(pattern, re.DOTALL | re.IGNORECASE)

    def make(receive: Any) -> Any:
        return lambda self, data: receive(self, compiled.sub(replacement, data, 1))

    patch.wrap(f"{HEADS}.data_received", make)


def prefer_chunks_to_a_length(patch: Patch) -> None:
    patch.set("defserve.serve.fastpath.framing:check_framing", lambda version, headers: None)
    patch.set("defserve.serve.fastpath.httptools:check_framing", lambda version, headers: None)

    def make(start: Any) -> Any:
        def connection_made(self: Any, transport: Any) -> None:
            self.parser.set_dangerous_leniencies(lenient_chunked_length=True, lenient_transfer_encoding=True)
            start(self, transport)

        return connection_made

    patch.wrap("uvicorn.protocols.http.httptools_impl:HttpToolsProtocol.connection_made", make)


def read_the_first_of_two_lengths(patch: Patch) -> None:
    _read_as(patch, rb"(content-length: \d+\r\n)content-length: \d+\r\n", rb"\1")


def read_the_digits_of_a_length(patch: Patch) -> None:
    _read_as(patch, rb"content-length *: *[^0-9\r]*([0-9]+)[^\r]*\r\n", rb"Content-Length: \1\r\n")


def read_chunk_sizes_as_a_language_does(patch: Patch) -> None:
    """`0x1f` is a number too."""
    _read_as(patch, rb"\r\n\r\n0x", b"\r\n\r\n")


def skip_unknown_codings(patch: Patch) -> None:
    _read_as(patch, rb"transfer-encoding: [^\r]*chunked[^\r]*", b"Transfer-Encoding: chunked")


def skip_lines_that_are_no_headers(patch: Patch) -> None:
    _read_as(patch, rb"\r\n[a-z]+\r\n", b"\r\n")


def know_no_body_of_a_get(patch: Patch) -> None:
    _read_as(patch, rb"^(GET .*?)content-length: \d+\r\n", rb"\1")


def take_trailers_for_headers(patch: Patch) -> None:
    _read_as(patch, rb"^(.*?)\r\n\r\n(.*\r\n0\r\n)(.+?)\r\n\r\n", rb"\1\r\n\3\r\n\r\n\2\r\n")


def go_on_after_the_last_request(patch: Patch) -> None:
    """`Connection: close` counts for nothing, and what is no request is skipped."""
    _read_as(patch, rb"connection: close\r\n", b"")
    _read_as(patch, rb"x{2,}$", b"")


# -- bounds: bytes, times, turns ------------------------------------------------------------------------


def wait_for_heads(patch: Patch) -> None:
    patch.set(f"{HEADS}._await_head", lambda self: None)


def wait_for_bodies(patch: Patch) -> None:
    patch.wrap(f"{EXCHANGE}.read_body", lambda body: lambda self, limit, seconds: body(self, limit, 3600))


def take_any_amount(patch: Patch) -> None:
    """Heads, trailers and what stands between chunks have no end, in bytes or in time."""
    patch.set("defserve.serve.fastpath.deadlines:MAX_REQUEST_HEAD_BYTES", 10**12)
    wait_for_heads(patch)
    wait_for_bodies(patch)


def keep_every_chunk(patch: Patch) -> None:
    """Each piece of a body is kept as the message that it came in."""
    kept: list[Any] = []
    wait_for_bodies(patch)

    def make_httptools(take: Any) -> Any:
        def on_body(self: Any, body: bytes) -> None:
            kept.append({"type": "http.request", "body": body, "more_body": True})
            take(self, body)

        return on_body

    patch.wrap("uvicorn.protocols.http.httptools_impl:HttpToolsProtocol.on_body", make_httptools)

    def make_h11(take: Any) -> Any:
        def next_event(self: Any) -> Any:
            kept.append(event := take(self))
            return event

        return next_event

    patch.wrap("defserve.serve.fastpath.h11:StrictConnection.next_event", make_h11)


def keep_closed_connections(patch: Patch) -> None:
    """What a connection has brought stays when it ends."""
    kept: list[Any] = []

    def make(receive: Any) -> Any:
        def data_received(self: Any, data: bytes) -> None:
            kept.append(data)
            receive(self, data)

        return data_received

    patch.wrap(f"{HEADS}.data_received", make)


def end_with_the_sending_half(patch: Patch) -> None:
    """A client that sends no more is taken for one that has gone."""
    patch.set(f"{HEADS}.eof_received", lambda self: False)


def wait_for_half_closed_clients(patch: Patch) -> None:
    """A connection stays whatever it was about, until its client closes the other half too."""
    patch.set(f"{HEADS}.eof_received", lambda self: True)
    wait_for_heads(patch)
    wait_for_bodies(patch)


def read_on_always(patch: Patch) -> None:
    """More is read from a connection while its requests wait for their answers."""
    patch.set("defserve.serve.fastpath.holding:PausableFlowControl.hold_reading", lambda self: None)
    patch.set("uvicorn.protocols.http.flow_control:FlowControl.pause_reading", lambda self: None)


def answer_out_of_turn(patch: Patch) -> None:
    """Of the requests that wait, the last is answered first; with h11 they do not wait their turn at all."""
    from collections import deque

    from defserve.serve.fastpath.deadlines import RequestHeadDeadline

    class Stack(deque[Any]):
        def pop(self) -> Any:  # type: ignore[override]
            return self.popleft()

    patch.set("uvicorn.protocols.http.httptools_impl:deque", Stack)
    patch.set("defserve.serve.fastpath.h11:BoundedH11Protocol._feed", RequestHeadDeadline._feed)


# -- WebSocket -------------------------------------------------------------------------------------------


def take_binary(patch: Patch) -> None:
    def make(take: Any) -> Any:
        def send_receive_event_to_app(self: Any) -> None:
            self.curr_msg_data_type = "text"
            take(self)

        return send_receive_event_to_app

    patch.wrap(f"{SOCKET}.send_receive_event_to_app", make)


def read_any_text(patch: Patch) -> None:
    """Bytes that are not UTF-8 are read as some other characters."""

    def make(take: Any) -> Any:
        def send_receive_event_to_app(self: Any) -> None:
            name = "frames" if hasattr(self, "frames") else "bytes"
            data = b"".join(self.frames) if name == "frames" else bytes(self.bytes)
            text = data.decode("latin-1").encode()
            setattr(self, name, [text] if name == "frames" else text)
            take(self)

        return send_receive_event_to_app

    patch.wrap(f"{SOCKET}.send_receive_event_to_app", make)


def _settings(patch: Patch, **changed: Any) -> None:
    patch.wrap("defserve.serve.network:_settings", lambda make: lambda *given: {**make(*given), **changed})


def take_messages_of_any_size(patch: Patch) -> None:
    _settings(patch, ws_max_size=2**40)
    patch.wrap(
        "defserve.serve.http.other_endpoints:WebSocket.__init__",
        lambda start: lambda self, receive, send, limit: start(self, receive, send, 2**40),
    )


def take_any_fragments(patch: Patch) -> None:
    patch.set("defserve.serve.sockets:MAX_SMALL_FRAGMENTS", 10**12)


def inflate_messages_of_any_size(patch: Patch) -> None:
    _settings(patch, ws_max_size=2**40, ws_per_message_deflate=True)


def read_sockets_always(patch: Patch) -> None:
    """A socket is read whether its client reads or not, and pings are not counted."""
    from defserve.serve.fastpath.deadlines import StallGuard

    patch.set(f"{SOCKET}.pause_writing", StallGuard.pause_writing)
    patch.set(f"{SOCKET}.data_received", lambda self, data: super(_class(SOCKET), self).data_received(data))
    patch.set("defserve.serve.fastpath.websockets:CONTROL_FRAMES", 10**12)


def _class(place: str) -> Any:
    from importlib import import_module

    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


# -- tokens ----------------------------------------------------------------------------------------------


def let_everybody_in(patch: Patch) -> None:
    async def authenticate(self: Any, exchange: Any, scope: Any) -> bool:
        return True

    patch.set(f"{APP}._authenticate", authenticate)


def take_tokens_from_the_query(patch: Patch) -> None:
    def make(authenticate: Any) -> Any:
        def look(self: Any, exchange: Any, scope: Any) -> Any:
            if found := re.search(rb"access_token=([^&]+)", scope.get("query_string", b"")):
                scope["headers"] = [*scope["headers"], (b"authorization", b"Bearer " + found[1])]
            return authenticate(self, exchange, scope)

        return look

    patch.wrap(f"{APP}._authenticate", make)
