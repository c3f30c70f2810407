"""WebSockets: bad frames end the socket, nothing in it is unbounded, and nobody opens one who may not."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable

from tests.attack.arena import Kind
from tests.attack.controls.http import (
    inflate_messages_of_any_size,
    let_everybody_in,
    lose_heads_that_the_library_refuses,
    open_the_gate,
    read_any_text,
    read_sockets_always,
    take_any_fragments,
    take_binary,
    take_messages_of_any_size,
    take_tokens_from_the_query,
)
from tests.attack.families.on_http import attack_http
from tests.attack.keys import create
from tests.attack.speaking.http import Wire
from tests.attack.speaking.mcp import Caller, message, stateless_params, tool_call, works
from tests.attack.speaking.sockets import Place
from tests.attack.speaking.websocket import BINARY, CLOSE, CONTINUATION, PING, TEXT, WebSocket, frame, upgrade
from tests.attack.trial import Control, Family, Trial

FAMILY = Family("websocket")
MEGABYTE = 1024 * 1024
TAKEN = 12 * MEGABYTE


def calling(tool: str, id: int = 1, **arguments: object) -> bytes:
    return json.dumps(message("tools/call", stateless_params(tool_call(tool, arguments), {}), id)).encode()


BAD: dict[str, bytes] = {
    "not masked": frame(TEXT, calling("echo", text="a"), masked=False),
    "reserved opcode 3": frame(3, b"a"),
    "reserved opcode 11": frame(11, b"a"),
    "RSV1 without an extension": frame(TEXT, b"a", rsv=4),
    "RSV2": frame(TEXT, b"a", rsv=2),
    "RSV3": frame(TEXT, b"a", rsv=1),
    "a ping of 126 bytes": frame(PING, b"a" * 126),
    "a ping in fragments": frame(PING, b"a", fin=False),
    "a continuation of nothing": frame(CONTINUATION, b"a"),
    "a text inside another": frame(TEXT, b"{", fin=False) + frame(TEXT, b"}"),
    "a close of one byte": frame(CLOSE, b"\x03"),
    "a close with code 1005": frame(CLOSE, b"\x03\xed"),
    "a close with code 999": frame(CLOSE, b"\x03\xe7"),
    "a close with code 65535": frame(CLOSE, b"\xff\xff"),
    "a close whose reason is not UTF-8": frame(CLOSE, b"\x03\xe8\xff\xfe"),
    "a text that is not UTF-8": frame(TEXT, b"\xff\xfe{}"),
    "an overlong character": frame(TEXT, b"\xc0\x80"),
    "a surrogate": frame(TEXT, b"\xed\xa0\x80"),
    "a length of 2^63": frame(TEXT, b"", length=2**63),
    "a length of 2^62": frame(TEXT, b"x" * 1000, length=2**62),
    "a message of 5 MB": frame(TEXT, b" " * (5 * MEGABYTE)),
    "binary": frame(BINARY, calling("echo", text="a")),
    "bytes that are no frames": b"GET / HTTP/1.1\r\n\r\n" * 10,
}


def bad_frames(trial: Trial, kind: Kind) -> None:
    served = trial.arena.serve(kind)
    for name, data in trial.choose(BAD):
        with WebSocket(served.place) as socket:
            trial.expect(socket.is_open, f"a socket is not opened: {socket.status}")
            socket.send(data)
            ended = socket.ends_within(6)
        trial.expect(ended, f"{name}: the socket stays open")
    trial.expect(not (said := works(Caller(served.place))), f"an honest caller afterwards: {said}")


def _fill(socket: WebSocket, piece: bytes, most: int = 60 * MEGABYTE) -> int:
    sent = 0
    while sent < most and socket.send(piece):
        sent += len(piece)
    return sent


# Name → the first frame, the frames that follow without an end, and how many MB of them are sent.
FLOODS: dict[str, tuple[bytes, bytes, int]] = {
    "fragments of one byte": (frame(TEXT, b" ", fin=False), frame(CONTINUATION, b" ", fin=False) * 5_000, 8),
    "empty fragments": (frame(TEXT, b"", fin=False), frame(CONTINUATION, b"", fin=False) * 5_000, 8),
    "fragments of 60 kB": (frame(TEXT, b" ", fin=False), frame(CONTINUATION, b" " * 60_000, fin=False), 40),
    "one frame without an end": (frame(TEXT, b"", length=2**40), b" " * 60_000, 40),
}


def endless_messages(trial: Trial, kind: Kind) -> None:
    """A message that never ends is cut off at the size of a message. Many small pieces cost no more than a few."""
    for name, (first, piece, most) in trial.choose(FLOODS):
        served = trial.arena.serve(kind)
        served.begin_measuring()
        with WebSocket(served.place, patience=6) as socket:
            socket.send(first)
            sent = _fill(socket, piece, most * MEGABYTE)
            ended = socket.ends_within(2)
        trial.expect(ended, f"{name}: the socket stays open")
        trial.expect(sent < most * MEGABYTE or most < 10, f"{name}: {sent / MEGABYTE:.0f} MB were taken")
        trial.expect(served.growth < 30, f"{name}: {served.growth:.0f} MB more for {sent / MEGABYTE:.0f} MB sent")
        trial.expect(not (said := works(Caller(served.place))), f"an honest caller after {name}: {said}")


def unread(trial: Trial, kind: Kind) -> None:
    """Pings and calls whose answers nobody reads: no more is taken than fits."""
    served = trial.arena.serve(kind)
    pieces = {
        "pings": frame(PING, b"a" * 125) * 400,
        "calls": frame(TEXT, calling("echo", text="a" * 2000)) * 30,
        "broken messages": frame(TEXT, b"{") * 5,
    }
    for name, piece in trial.choose(pieces):
        with WebSocket(served.place, patience=4) as socket:
            sent = _fill(socket, piece, 40 * MEGABYTE if name != "broken messages" else MEGABYTE)
        if name != "broken messages":
            trial.expect(sent < TAKEN, f"{name}: {sent / MEGABYTE:.0f} MB were taken, and nothing was read")
    trial.expect(not (said := works(Caller(served.place))), f"an honest caller afterwards: {said}")


def compression(trial: Trial, kind: Kind) -> None:
    """A compressed message of 60 kB that would be 60 MB: refused, or never agreed to."""
    served = trial.arena.serve(kind)
    squeezed = zlib.compressobj(9, wbits=-15)
    data = squeezed.compress(b" " * (60 * MEGABYTE)) + squeezed.flush(zlib.Z_SYNC_FLUSH)[:-4]
    for offer in ("permessage-deflate", "permessage-deflate; client_max_window_bits; server_no_context_takeover"):
        with WebSocket(served.place, {"Sec-WebSocket-Extensions": offer}) as socket:
            agreed = socket.answer.headers.get("sec-websocket-extensions", "") if socket.answer else ""
            socket.send(frame(TEXT, data, rsv=4))
            ended = socket.ends_within(8)
        trial.expect(ended, f"{offer}: agreed to {agreed!r}, and the socket stays open")
    trial.notes.append("compression is agreed to" if agreed else "compression is never agreed to")


HANDSHAKES: dict[str, dict[str, str | None]] = {
    "no key": {"Sec-WebSocket-Key": None},
    "a short key": {"Sec-WebSocket-Key": "abc"},
    "version 12": {"Sec-WebSocket-Version": "12"},
    "no version": {"Sec-WebSocket-Version": None},
    "another subprotocol": {"Sec-WebSocket-Protocol": "graphql"},
    "a foreign origin": {"Origin": "https://evil.example"},
    "a null origin": {"Origin": "null"},
    "a foreign host": {"Host": "evil.example"},
    "a page of another site": {"Sec-Fetch-Site": "cross-site"},
    "an upgrade to something else": {"Upgrade": "h2c"},
}


def handshakes(trial: Trial, kind: Kind) -> None:
    served = trial.arena.serve(kind)
    for name, headers in trial.choose(HANDSHAKES):
        with WebSocket(served.place, headers, patience=5) as socket:  # type: ignore[arg-type]
            trial.expect(not socket.is_open, f"{name}: opened")
    for path in ("/", "/sse", "/tools/echo", "/metrics", "/nowhere"):
        with WebSocket(served.place, path=path, patience=5) as socket:
            trial.expect(not socket.is_open, f"a socket at {path}: opened")


LARGE_HEADS: dict[str, tuple[dict[str, str], str]] = {
    "a header of 20 kB": ({"X-Long": "a" * 20_000}, "/mcp"),
    "a thousand headers": ({f"X-{number}": "a" for number in range(1_000)}, "/mcp"),
    "a path of 20 kB": ({}, f"/mcp?{'a' * 20_000}"),
}


def large_heads(trial: Trial, kind: Kind) -> None:
    """Each is answered, and the places that they took are free afterwards."""
    served = trial.arena.serve(kind.with_env(ATTACK_LIMITS=json.dumps({"connections": 40})))
    for name, (headers, path) in trial.choose(LARGE_HEADS):
        for _ in range(50):
            with WebSocket(served.place, headers, path, patience=5) as socket:
                answered = socket.status is not None
            if not answered:
                break
        trial.expect(answered, f"{name}: no answer")
    for _ in range(50):  # more than there are places
        with WebSocket(served.place, {"X-Long": "a" * 20_000}, patience=5):
            pass
    trial.expect(not (said := works(Caller(served.place))), f"an honest caller afterwards: {said}")
    trial.expect("Traceback" not in served.new_log, f"the log has a traceback: {served.new_log[-300:]}")


def without_a_token(trial: Trial, kind: Kind) -> None:
    served = trial.arena.serve(kind)
    good = create(served, "alice", "ToolInvoke(*)").token
    old = create(served, "alice", "ToolInvoke(*)", expires_in=0.2).token
    time.sleep(0.3)
    ways: dict[str, tuple[dict[str, str], str]] = {
        "no token": ({}, "/mcp"),
        "a bad token": ({"Authorization": "Bearer " + "0" * 16 + "." + "a" * 43}, "/mcp"),
        "an expired key": ({"Authorization": f"Bearer {old}"}, "/mcp"),
        "a token in the query": ({}, f"/mcp?token={good}&access_token={good}&authorization=Bearer%20{good}"),
        "a token as subprotocol": ({"Sec-WebSocket-Protocol": f"mcp, {good}"}, "/mcp"),
        "a token as cookie": ({"Cookie": f"token={good}; Authorization=Bearer {good}"}, "/mcp"),
        "a token as Basic": ({"Authorization": f"Basic {good}"}, "/mcp"),
        "a token as X-Api-Key": ({"X-Api-Key": good}, "/mcp"),
    }
    for name, (headers, path) in trial.choose(ways):
        with WebSocket(served.place, headers, path, patience=5) as socket:
            trial.expect(socket.status in (400, 401, 403), f"{name}: {socket.status}")
    with WebSocket(served.place, {"Authorization": f"Bearer {good}"}) as socket:
        trial.expect(socket.is_open, f"a good token: {socket.status}")


def before_the_answer(trial: Trial, kind: Kind) -> None:
    """Frames behind the handshake, before it is answered: held back, or taken within bounds."""
    served = trial.arena.serve(kind)
    starts: dict[str, Callable[[Place], bytes]] = {
        "an open socket": lambda p: upgrade(p),
        "a refused one": lambda p: upgrade(p, {"Origin": "https://evil.example"}),
        "one at no path": lambda p: upgrade(p, path="/nowhere"),
    }
    for name, first in trial.choose(starts):
        sent = 0
        with Wire(served.place, patience=4) as wire:
            piece = frame(TEXT, calling("slow", seconds=5))
            wire.send(first(served.place) + piece * 50)
            while sent < 40 * MEGABYTE and wire.send(frame(PING, b"a" * 125) * 400):
                sent += 400 * 131
        trial.expect(sent < TAKEN, f"{name}: {sent / MEGABYTE:.0f} MB were taken")
    trial.expect(not (said := works(Caller(served.place))), f"an honest caller afterwards: {said}")


OPEN = "the socket stays open"
BINARY_TAKEN = Control(take_binary, OPEN, "binary")
ANY_TEXT = Control(read_any_text, OPEN, "a text that is not UTF-8")
ANY_SIZE = Control(take_messages_of_any_size, "MB were taken", "fragments of 60 kB")
ANY_FRAGMENTS = Control(take_any_fragments, "empty fragments: the socket stays open", "empty fragments")
INFLATED = Control(inflate_messages_of_any_size, f"{OPEN}|grew by")
NOBODY = Control(let_everybody_in, "no token: 101", "no token")
QUERY = Control(take_tokens_from_the_query, "a token in the query: 101", "a token in the query")
PONGS = Control(read_sockets_always, "MB were taken", "pings")
EARLY = Control(read_sockets_always, "MB were taken", "an open socket")
ALL = Kind(options=("--rest", "--legacy-sse", "--metrics"))
attack_http(FAMILY, "bad frames", bad_frames, controls=[BINARY_TAKEN, ANY_TEXT])
FAMILY.add("messages without an end", lambda trial: endless_messages(trial, Kind()), ANY_SIZE, ANY_FRAGMENTS)
FAMILY.add("answers that nobody reads", lambda trial: unread(trial, Kind()), PONGS)
attack_http(FAMILY, "compression", compression, controls=[INFLATED])
attack_http(
    FAMILY,
    "handshakes",
    handshakes,
    ALL,
    controls=[Control(open_the_gate, "opened", "a foreign origin")],
)
LOST = Control(lose_heads_that_the_library_refuses, "an honest caller afterwards")
attack_http(FAMILY, "large heads", large_heads, controls=[LOST])
attack_http(FAMILY, "without a token", without_a_token, Kind("keyed"), controls=[NOBODY, QUERY])
attack_http(FAMILY, "frames before the answer", before_the_answer, controls=[EARLY])
