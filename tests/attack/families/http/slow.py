"""Slow clients: every wait has an end, and nobody else waits with them."""

from __future__ import annotations

import select
import time
from collections.abc import Callable

from tests.attack.arena import Kind
from tests.attack.controls.http import read_on_always, wait_for_bodies, wait_for_heads
from tests.attack.families.on_http import attack_http
from tests.attack.speaking.http import Wire, head
from tests.attack.speaking.mcp import Caller, works
from tests.attack.speaking.sockets import Place
from tests.attack.speaking.websocket import upgrade
from tests.attack.trial import Control, Family, Trial

FAMILY = Family("slow")
MANY, GAP = 60, 0.2
HEADER, BODY, GRACE = 2.0, 3.0, 3.0
"""What the attacked server allows (servers/open.py), and how late a busy machine may be."""

JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


def _head(place: Place) -> bytes:
    return head("POST", "/mcp", place, {**JSON, "Content-Length": "1000"})


# Name → what is sent at once, and what is then sent again and again, a piece at a time; how long that may go on.
SLOW: dict[str, tuple[Callable[[Place], bytes], Callable[[int], bytes], float]] = {
    "nothing": (lambda p: b"", lambda n: b"", HEADER),
    "a request line byte by byte": (lambda p: b"POST /mcp?", lambda n: b"a", HEADER),
    "header lines": (lambda p: head("POST", "/mcp", p, {})[:-2], lambda n: b"X-%d: y\r\n" % n, HEADER),
    "one header byte by byte": (lambda p: head("POST", "/mcp", p, {})[:-2] + b"X: ", lambda n: b"y", HEADER),
    "empty lines": (lambda p: b"", lambda n: b"\r\n", HEADER),
    "a WebSocket handshake": (lambda p: upgrade(p)[:-2], lambda n: b"X-%d: y\r\n" % n, HEADER),
    "a body byte by byte": (_head, lambda n: b" ", BODY),
    "a body that stops": (_head, lambda n: b"", BODY),
    "chunks of one byte": (
        lambda p: head("POST", "/mcp", p, {**JSON, "Transfer-Encoding": "chunked"}),
        lambda n: b"1\r\n \r\n",
        BODY,
    ),
    "a chunk extension byte by byte": (
        lambda p: head("POST", "/mcp", p, {**JSON, "Transfer-Encoding": "chunked"}) + b"1;",
        lambda n: b"a",
        BODY,
    ),
    "a chunk size of zeros": (
        lambda p: head("POST", "/mcp", p, {**JSON, "Transfer-Encoding": "chunked"}),
        lambda n: b"0",
        BODY,
    ),
    "trailers line by line": (
        lambda p: head("POST", "/mcp", p, {**JSON, "Transfer-Encoding": "chunked"}) + b"1\r\n \r\n0\r\n",
        lambda n: b"x: y\r\n",
        BODY,
    ),
    "a body after 100-continue": (
        lambda p: head("POST", "/mcp", p, {**JSON, "Content-Length": "9", "Expect": "100-continue"}),
        lambda n: b"",
        BODY,
    ),
    "a body for REST": (
        lambda p: head("POST", "/tools/echo", p, {**JSON, "Content-Length": "1000"}),
        lambda n: b" ",
        BODY,
    ),
}  # fmt: skip


def deadlines(trial: Trial, kind: Kind) -> None:
    """Sixty slow clients of every sort at once: all are cut off in time, and others are answered meanwhile."""
    served = trial.arena.serve(kind)
    honest, slowest = Caller(served.place), 0.0
    crowd = {name: [Wire(served.place) for _ in range(MANY // len(SLOW) + 1)] for name in SLOW}
    began = time.monotonic()
    for name, wires in crowd.items():
        for wire in wires:
            wire.send(SLOW[name][0](served.place))
    ended: dict[str, float] = {}
    turn = 0
    while time.monotonic() - began < max(HEADER, BODY) + GRACE and len(ended) < len(crowd):
        for name, wires in crowd.items():
            piece = SLOW[name][1](turn)
            for wire in wires:
                if not wire.is_closed and piece:
                    wire.send(piece)
                while not wire.is_closed and select.select([wire.socket], [], [], 0)[0]:
                    wire.more(0.1)
            if name not in ended and all(wire.is_closed for wire in wires):
                ended[name] = time.monotonic() - began
        asked = time.monotonic()
        if turn % 4 == 0:
            trial.expect(not (said := works(honest)), f"an honest caller meanwhile: {said}")
            slowest = max(slowest, time.monotonic() - asked)
        turn += 1
        time.sleep(GAP)
    for name in crowd:
        allowed = SLOW[name][2] + GRACE
        trial.expect(
            ended.get(name, 1e9) < allowed, f"{name}: open after {ended.get(name, max(HEADER, BODY) + GRACE):.1f} s"
        )
        for wire in crowd[name]:
            wire.socket.close()
    trial.expect(slowest < 2, f"an honest caller waited {slowest:.1f} s")
    trial.notes.append(f"honest callers waited at most {slowest * 1000:.0f} ms")


def unread(trial: Trial, kind: Kind) -> None:
    """Large answers that nobody reads: what waits for them is bounded."""
    import json

    from tests.attack.speaking.mcp import STATELESS, message, stateless_params, tool_call

    served = trial.arena.serve(kind)
    body = json.dumps(message("tools/call", stateless_params(tool_call("echo", {"text": "x" * 500_000}), {}))).encode()
    headers = {**JSON, "Mcp-Protocol-Version": STATELESS, "Mcp-Method": "tools/call", "Mcp-Name": "echo"}
    one = head("POST", "/mcp", served.place, {**headers, "Content-Length": str(len(body))}) + body
    wires = [Wire(served.place, receive_buffer=4096) for _ in range(4)]
    for wire in wires:
        wire.socket.settimeout(1.5)
        sent = 0
        while sent < 20 and wire.send(one):
            sent += 1
        trial.expect(sent < 20, "twenty answers of 500 kB were made for a client that reads none")
    trial.expect(not (said := works(Caller(served.place))), f"an honest caller meanwhile: {said}")
    for wire in wires:
        wire.socket.close()


HEADS = Control(wait_for_heads, "^header lines: open after")
BODIES = Control(wait_for_bodies, "^a body byte by byte: open after")
attack_http(FAMILY, "heads and bodies", deadlines, Kind(options=("--rest",)), controls=[HEADS, BODIES])
attack_http(FAMILY, "answers that nobody reads", unread, controls=[Control(read_on_always, "twenty answers")])
