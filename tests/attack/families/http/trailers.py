"""Trailers: they are never headers, and their bytes are bounded like those of headers."""

from __future__ import annotations

import json
import time

from tests.attack.arena import Kind
from tests.attack.controls.http import keep_closed_connections, take_any_amount, take_trailers_for_headers
from tests.attack.families.on_http import attack_http
from tests.attack.speaking.http import Wire
from tests.attack.speaking.mcp import STATELESS, Caller, message, outcome, reply_in, stateless_params, tool_call, works
from tests.attack.speaking.sockets import Place
from tests.attack.trial import Control, Family, Trial

FAMILY = Family("trailers")
SECONDS = 10.0


def begun(place: Place, tool: str, arguments: dict[str, object], *more: str) -> bytes:
    """A chunked call up to its last chunk; trailers may follow."""
    body = json.dumps(message("tools/call", stateless_params(tool_call(tool, arguments), {}))).encode()
    lines = [
        "POST /mcp HTTP/1.1",
        f"Host: {place.authority}",
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        f"Mcp-Protocol-Version: {STATELESS}",
        "Mcp-Method: tools/call",
        f"Mcp-Name: {tool}",
        "Transfer-Encoding: chunked",
        *more,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n%x\r\n%s\r\n0\r\n" % (len(body), body)


ENDLESS: dict[str, bytes] = {
    "many short lines": b"x: y\r\n" * 10_000,
    "long lines": (b"x: " + b"y" * 8_000 + b"\r\n") * 8,
    "one line without an end": b"y" * 60_000,
    "many different names": b"".join(b"x-%d: y\r\n" % n for n in range(5_000)),
}


def endless(trial: Trial, kind: Kind) -> None:
    """For as long as they are taken, sixty MB at least: the connection ends, and memory stays."""
    served = trial.arena.serve(kind)
    for name, piece in trial.choose(ENDLESS):
        before = served.open_files
        with Wire(served.place, patience=6) as wire:
            wire.send(begun(served.place, "echo", {"text": "a"}))
            if not piece.endswith(b"\n"):
                wire.send(b"x: ")
            ended = wire.flood(piece, SECONDS)
            answered = wire.response(2)
            closed = wire.closes_within(2)
        status = answered.status if answered is not None else None
        trial.expect(ended is not None or closed, f"{name}: they are still taken after {SECONDS:g} s")
        trial.expect(status in (None, 200, 400, 431), f"{name}: answered {status}")
        deadline = time.monotonic() + 5
        while served.open_files > before and time.monotonic() < deadline:
            time.sleep(0.05)
        trial.expect(served.open_files <= before, f"{name}: its descriptor stays open")
    trial.expect(not (said := works(Caller(served.place))), f"honest callers afterwards: {said}")


def repeated(trial: Trial, kind: Kind) -> None:
    """Just less than the limit, on a thousand connections: nothing of a closed connection stays."""
    served = trial.arena.serve(kind)
    trailer = b"".join(b"x-%d: %s\r\n" % (n, b"y" * 200) for n in range(60)) + b"\r\n"
    for _ in range(1_000):
        with Wire(served.place) as wire:
            wire.send(begun(served.place, "echo", {"text": "a"}, "Connection: close") + trailer)
            answered = wire.response(5)
        trial.expect(answered is not None, "no answer to a request with 13 kB of trailers")


def as_headers(trial: Trial, kind: Kind) -> None:
    """A trailer never says who is calling, where from, or which session."""
    served = trial.arena.serve(kind)
    plain = Caller(served.place)
    usual = outcome(plain.call_alone("who"))
    for trailer in (
        "X-Forwarded-For: 203.0.113.9",
        "Forwarded: for=203.0.113.9",
        "X-Real-IP: 203.0.113.9",
        "Host: evil.example",
        "Origin: https://evil.example",
        "Mcp-Session-Id: abc",
        "Mcp-Protocol-Version: 2025-11-25",
        "Content-Length: 3",
        "Transfer-Encoding: chunked",
        "Content-Type: text/plain",
        "Authorization: Bearer x",
    ):
        with Wire(served.place) as wire:
            wire.send(begun(served.place, "who", {}) + trailer.encode() + b"\r\n\r\n")
            answer = wire.response(5)
        said = outcome(reply_in(answer, 1))
        is_refused = answer is not None and answer.status == 400
        trial.expect(is_refused or said == usual, f"trailer {trailer!r}: {said} instead of {usual}")


def as_credentials(trial: Trial, kind: Kind) -> None:
    """A good token in a trailer lets nobody in."""
    from tests.attack.keys import create

    served = trial.arena.serve(kind)
    key = create(served, "alice", "ToolInvoke(*)")
    trial.expect("alice" in outcome(Caller(served.place, key.token).call_alone("who")), "the key does not work at all")
    for trailer in (f"Authorization: Bearer {key.token}", f"authorization: bearer {key.token}"):
        with Wire(served.place) as wire:
            wire.send(begun(served.place, "who", {}) + trailer.encode() + b"\r\n\r\n")
            answer = wire.response(5)
        refused = answer is None or answer.status in (400, 401)
        trial.expect(refused, f"a token in a trailer: {outcome(reply_in(answer, 1))}")


TAKEN = Control(take_any_amount, "still taken|grew by", "many different names")
AS_HEADERS = Control(take_trailers_for_headers, "^trailer")
AS_CREDENTIALS = Control(take_trailers_for_headers, "^a token in a trailer: result")
attack_http(FAMILY, "endless", endless, controls=[TAKEN])
# 13 MB come in all: what stays of a closed connection shows at less than that.
KEPT = Control(keep_closed_connections, "grew by")
attack_http(FAMILY, "a thousand connections", repeated, controls=[KEPT], growth=10)
attack_http(FAMILY, "as headers", as_headers, Kind(options=("--trusted-proxy",)), controls=[AS_HEADERS])
attack_http(FAMILY, "as credentials", as_credentials, Kind("keyed"), controls=[AS_CREDENTIALS])
