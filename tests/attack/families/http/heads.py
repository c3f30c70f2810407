"""Large heads: many headers, long ones, lines without an end, and what else the HTTP library would gather."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.attack.arena import Kind
from tests.attack.controls.http import keep_every_chunk, take_any_amount
from tests.attack.families.on_http import attack_http
from tests.attack.speaking.http import Wire, head
from tests.attack.speaking.mcp import STATELESS, Caller, message, stateless_params, tool_call, works
from tests.attack.speaking.sockets import Place
from tests.attack.trial import Control, Family, Trial

FAMILY = Family("heads")
SECONDS = 10.0
"""More than the attacked server allows for a head, a body, and a farewell."""

JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
BODY = json.dumps(message("tools/call", stateless_params(tool_call("echo", {"text": "a"}), {}))).encode()
CALL = {**JSON, "Mcp-Protocol-Version": STATELESS, "Mcp-Method": "tools/call", "Mcp-Name": "echo"}
CHUNKED = {**JSON, "Transfer-Encoding": "chunked"}

# Name → what is sent once, and what is sent for as long as it is taken.
ENDLESS: dict[str, tuple[Callable[[Place], bytes], bytes]] = {
    "a request line": (lambda p: b"POST /mcp?", b"a" * 60_000),
    "a method": (lambda p: b"", b"A" * 60_000),
    "a header's value": (lambda p: head("POST", "/mcp", p, JSON)[:-2] + b"X: ", b"y" * 60_000),
    "a header's name": (lambda p: head("POST", "/mcp", p, JSON)[:-2], b"x" * 60_000),
    "headers": (lambda p: head("POST", "/mcp", p, JSON)[:-2], b"".join(b"x-%d: y\r\n" % n for n in range(5_000))),
    "the same header": (lambda p: head("POST", "/mcp", p, JSON)[:-2], b"cookie: a=b\r\n" * 5_000),
    "blanks after a colon": (lambda p: head("POST", "/mcp", p, JSON)[:-2] + b"X:", b" " * 60_000),
    "empty lines before a request": (lambda p: b"", b"\r\n" * 30_000),
    "digits of a chunk size": (lambda p: head("POST", "/mcp", p, CHUNKED), b"0" * 60_000),
    "a chunk extension": (lambda p: head("POST", "/mcp", p, CHUNKED) + b"1;", b"a" * 60_000),
    "a body in chunks": (lambda p: head("POST", "/mcp", p, CHUNKED), b"ea60\r\n" + b" " * 60_000 + b"\r\n"),
    "a body of the largest length": (
        lambda p: head("POST", "/mcp", p, {**JSON, "Content-Length": str(2**62)}),
        b" " * 60_000,
    ),
    "a body for a path that is not there": (
        lambda p: head("POST", "/no", p, {**JSON, "Content-Length": str(2**40)}),
        b" " * 60_000,
    ),
    "a body of the wrong type": (
        lambda p: head("POST", "/mcp", p, {"Content-Type": "text/plain", "Content-Length": str(2**40)}),
        b" " * 60_000,
    ),
    "a body for a GET": (lambda p: head("GET", "/mcp", p, {**JSON, "Content-Length": str(2**40)}), b" " * 60_000),
    "a body from another host": (
        lambda p: head("POST", "/mcp", p, {**JSON, "Host": "evil.example", "Content-Length": str(2**40)}),
        b" " * 60_000,
    ),
    "a body for REST": (lambda p: head("POST", "/tools/echo", p, CHUNKED), b"ea60\r\n" + b" " * 60_000 + b"\r\n"),
    "bytes that are not HTTP": (lambda p: b"\x16\x03\x01", b"\x00" * 60_000),
}  # fmt: skip


def endless(trial: Trial, kind: Kind) -> None:
    """For as long as it is taken, sixty MB at least: the connection ends, and memory stays."""
    served = trial.arena.serve(kind)
    for name, (first, piece) in trial.choose(ENDLESS):
        with Wire(served.place, patience=6) as wire:
            wire.send(first(served.place))
            ended = wire.flood(piece, SECONDS)
            answer = wire.response(2)
            closed = wire.closes_within(2)
        trial.expect(ended is not None or closed, f"{name}: it is still taken after {SECONDS:g} s")
        trial.expect(answer is None or answer.status >= 400, f"{name}: answered {answer and answer.status}")
    trial.expect(not (said := works(Caller(served.place))), f"an honest caller afterwards: {said}")


def large(trial: Trial, kind: Kind) -> None:
    """Heads that are whole but too large: refused, on two hundred connections at once."""
    served = trial.arena.serve(kind)
    shapes = {
        "5,000 headers": {f"X-{n}": "y" for n in range(5_000)},
        "a header of 300 kB": {"X": "y" * 300_000},
        "a token of 300 kB": {"Authorization": "Bearer " + "y" * 300_000},
        "a session id of 300 kB": {"Mcp-Session-Id": "y" * 300_000},
        "an origin of 300 kB": {"Origin": "http://" + "y" * 300_000},
    }
    for name, more in shapes.items():
        with Wire(served.place) as wire:
            # A good call but for its size: nothing else may be the reason to refuse it.
            wire.send(head("POST", "/mcp", served.place, {**CALL, "Content-Length": str(len(BODY)), **more}) + BODY)
            answer = wire.response(5)
        trial.expect(answer is None or answer.status >= 400, f"{name}: answered {answer and answer.status}")
    held = [Wire(served.place) for _ in range(200)]
    for wire in held:
        wire.send(head("POST", "/mcp", served.place, JSON)[:-2] + b"X: " + b"y" * 60_000)
    trial.expect(not (said := works(Caller(served.place))), f"beside 200 heads of 60 kB: {said}")
    for wire in held:
        wire.socket.close()


def small_chunks(trial: Trial, kind: Kind) -> None:
    """A body in chunks of one byte: what is kept is the body, not its pieces."""
    served = trial.arena.serve(kind)
    with Wire(served.place, patience=30) as wire:
        wire.send(head("POST", "/mcp", served.place, CHUNKED))
        for _ in range(50):
            if not wire.send(b"1\r\n \r\n" * 10_000):
                break
        wire.send(b"0\r\n\r\n")
        answer = wire.response(20)
    trial.expect(answer is not None, "no answer to a body in 500,000 chunks")
    trial.expect(not (said := works(Caller(served.place))), f"an honest caller afterwards: {said}")


REST = Kind(options=("--rest",))
TAKEN = Control(take_any_amount, "still taken|grew by", "headers")
attack_http(FAMILY, "endless", endless, REST, controls=[TAKEN])
attack_http(FAMILY, "too large", large, controls=[Control(take_any_amount, "answered 200")])
attack_http(FAMILY, "a body in one-byte chunks", small_chunks, controls=[Control(keep_every_chunk, "grew by")])
