"""What servers do over HTTP and WebSocket without their protections. How to write one: `controls/__init__.py`."""

from __future__ import annotations

import re
from typing import Any

from tests.attack.controls.patching import Patch

GATE = "defserve.serve.http.request_heads:HostOriginGate"
HEADS = "defserve.serve.http1.connection:HttpConnection"
SOCKET = "defserve.serve.http1.websocket:WebSocketConnection"
FRAMING = "defserve.serve.http1.framing"
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
    """Read what comes as if it were something else."""
    compiled = re.compile(pattern, re.DOTALL | re.IGNORECASE)

    def make(receive: Any) -> Any:
        return lambda self, data: receive(self, compiled.sub(replacement, data, 1))

    patch.wrap(f"{HEADS}.data_received", make)


def prefer_chunks_to_a_length(patch: Patch) -> None:
    def read_length(headers: dict[bytes, bytes], version: bytes) -> int | None:
        return None if b"chunked" in headers.get(b"transfer-encoding", b"") else int(headers.get(b"content-length", 0))

    patch.set(f"{FRAMING}:_read_length", read_length)
    patch.set(f"{FRAMING}:_ONLY_ONCE", frozenset[bytes]())


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
    patch.set(f"{HEADS}._await", lambda self, what, seconds: None)


def wait_for_bodies(patch: Patch) -> None:
    patch.wrap(f"{EXCHANGE}.read_body", lambda body: lambda self, limit, seconds: body(self, limit, 3600))


def take_any_amount(patch: Patch) -> None:
    """Heads, trailers and what stands between chunks have no end, in bytes or in time."""
    patch.set(f"{FRAMING}:MAX_HEAD_BYTES", 10**12)
    patch.set(f"{FRAMING}:MAX_TRAILER_BYTES", 10**12)
    patch.set(f"{FRAMING}:MAX_CHUNK_LINE_BYTES", 10**12)
    wait_for_heads(patch)
    wait_for_bodies(patch)


def keep_every_chunk(patch: Patch) -> None:
    """Each piece of a body is kept as the message that it came in."""
    kept: list[Any] = []
    wait_for_bodies(patch)

    def make(read_line: Any) -> Any:
        def keep(self: Any, data: bytes, at: int) -> int | None:
            kept.append({"type": "http.request", "body": data[at : at + 8], "more_body": True})
            return read_line(self, data, at)

        return keep

    patch.wrap(f"{FRAMING}:ChunkedBody._read_line", make)


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
    patch.set(f"{HEADS}._pause_reading", lambda self: None)
    patch.set("defserve.serve.http1.connection:StallGuard.pause_writing", lambda self: None)


def answer_out_of_turn(patch: Patch) -> None:
    """Of the requests in a write, the last is read first."""

    def make(receive: Any) -> Any:
        def data_received(self: Any, data: bytes) -> None:
            requests = re.split(rb"(?=POST )", data)
            receive(self, b"".join(reversed(requests)))

        return data_received

    patch.wrap(f"{HEADS}.data_received", make)


# -- WebSocket -------------------------------------------------------------------------------------------


def take_binary(patch: Patch) -> None:
    def make(take: Any) -> Any:
        def add_fragment(self: Any, frame: Any) -> None:
            from dataclasses import replace

            from websockets.frames import Opcode

            take(self, replace(frame, opcode=Opcode.TEXT) if frame.opcode is Opcode.BINARY else frame)

        return add_fragment

    patch.wrap(f"{SOCKET}._add_fragment", make)


def read_any_text(patch: Patch) -> None:
    """Bytes that are not UTF-8 are read as some other characters."""

    def make(take: Any) -> Any:
        def add_fragment(self: Any, frame: Any) -> None:
            from dataclasses import replace

            take(self, replace(frame, data=bytes(frame.data).decode("latin-1").encode()))

        return add_fragment

    patch.wrap(f"{SOCKET}._add_fragment", make)


def _library(patch: Patch, **changed: Any) -> None:
    """Have frames read by a library with other settings."""
    patch.wrap(
        "defserve.serve.http1.websocket:ServerProtocol",
        lambda make: lambda **given: make(**{**given, **{name: value() for name, value in changed.items()}}),
    )


def take_messages_of_any_size(patch: Patch) -> None:
    _library(patch, max_size=lambda: None)
    patch.wrap(
        "defserve.serve.http.other_endpoints:WebSocket.__init__",
        lambda start: lambda self, scope, receive, send, limit: start(self, scope, receive, send, 2**40),
    )


def take_any_fragments(patch: Patch) -> None:
    patch.set("defserve.serve.sockets:MAX_SMALL_FRAGMENTS", 10**12)


def inflate_messages_of_any_size(patch: Patch) -> None:
    def make_extensions() -> Any:
        from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory

        return [ServerPerMessageDeflateFactory()]

    _library(patch, max_size=lambda: None, extensions=make_extensions)


def lose_heads_that_the_library_refuses(patch: Patch) -> None:
    """The library reads the head too, after the socket has its place. What it refuses, nobody answers."""

    def make(convert: Any) -> Any:
        def read(head: Any) -> Any:
            if len(head.headers) > 128 or max(len(value) for _, value in (*head.headers, (b"", head.target))) > 8192:
                raise ValueError("a line is too long, or there are too many")
            return convert(head)

        return read

    patch.wrap("defserve.serve.http1.websocket:_make_library_request", make)


def read_sockets_always(patch: Patch) -> None:
    """A socket is read whether its client reads or not, and pings are not counted."""
    patch.set(f"{SOCKET}._must_wait", False)
    patch.set(f"{SOCKET}.pause_writing", lambda self: None)
    patch.set("defserve.serve.http1.websocket:MAX_CONTROL_FRAMES", 10**12)


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
