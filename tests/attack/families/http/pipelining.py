"""Requests sent before the answers are read: answered in order, one at a time, and the rest waits in the network."""

from __future__ import annotations

import json

from tests.attack.arena import Kind
from tests.attack.controls.http import answer_out_of_turn, go_on_after_the_last_request, read_on_always
from tests.attack.families.on_http import attack_http
from tests.attack.speaking.http import Wire, head
from tests.attack.speaking.mcp import STATELESS, Caller, message, outcome, reply_in, stateless_params, tool_call, works
from tests.attack.speaking.sockets import Place
from tests.attack.trial import Control, Family, Trial

FAMILY = Family("pipelining")
MEGABYTE = 1024 * 1024
TAKEN = 12 * MEGABYTE


def call(place: Place, tool: str, id: int, arguments: dict[str, object], *more: tuple[str, str]) -> bytes:
    body = json.dumps(message("tools/call", stateless_params(tool_call(tool, arguments), {}), id)).encode()
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Mcp-Protocol-Version": STATELESS,
        "Mcp-Method": "tools/call",
        "Mcp-Name": tool,
        "Content-Length": str(len(body)),
    }
    return head("POST", "/mcp", place, [*headers.items(), *more]) + body


def in_order(trial: Trial, kind: Kind) -> None:
    served = trial.arena.serve(kind)
    count = 500
    with Wire(served.place) as wire:
        wire.send(b"".join(call(served.place, "echo", n, {"text": f"text {n}"}) for n in range(count)))
        for n in range(count):
            said = outcome(reply_in(wire.response(10), n))
            if not trial.expect(said == f"result: text {n}", f"answer {n} of {count}: {said}"):
                break


def unread(trial: Trial, kind: Kind) -> None:
    """Small requests without an end, of which no answer is read."""
    served = trial.arena.serve(kind)
    piece = call(served.place, "echo", 1, {"text": "a" * 100}) * 200
    for _ in range(3):
        sent = 0
        with Wire(served.place, patience=3, receive_buffer=4096) as wire:
            while sent < 60 * MEGABYTE and wire.send(piece):
                sent += len(piece)
        trial.expect(sent < TAKEN, f"{sent / MEGABYTE:.0f} MB of requests were taken, and no answer was read")
    trial.expect(not (said := works(Caller(served.place))), f"an honest caller afterwards: {said}")


def behind_a_slow_call(trial: Trial, kind: Kind) -> None:
    """While one call runs, what is sent behind it stays in the network."""
    served = trial.arena.serve(kind)
    for name, piece in (
        ("requests", call(served.place, "echo", 1, {"text": "a" * 1000}) * 50),
        ("bytes", b"x" * 60_000),
        ("empty lines", b"\r\n" * 30_000),
    ):
        sent = 0
        with Wire(served.place, patience=2) as wire:
            wire.send(call(served.place, "slow", 1, {"seconds": 4}))
            while sent < 60 * MEGABYTE and wire.send(piece):
                sent += len(piece)
        trial.expect(sent < TAKEN, f"{name}: {sent / MEGABYTE:.0f} MB were taken behind a call that runs")


def after_the_end(trial: Trial, kind: Kind) -> None:
    """Bytes behind a request that asked to close: not read, not answered."""
    served = trial.arena.serve(kind)
    word = f"late-{trial.random.randrange(10**12)}"
    with Wire(served.place) as wire:
        wire.send(call(served.place, "slow", 1, {"seconds": 1}, ("Connection", "close")))
        wire.send(call(served.place, "mark", 2, {"word": word}))
        sent = 0
        wire.socket.settimeout(2)
        while sent < 30 * MEGABYTE and wire.send(b"x" * 60_000):
            sent += 60_000
        wire.response(5)
        wire.closes_within(1)
    trial.expect(sent < TAKEN, f"{sent / MEGABYTE:.0f} MB were taken after the last request")
    trial.expect(not served.has_marked(word), "a request behind `Connection: close` ran")


READ_ON = Control(read_on_always, "MB .*were taken")
LAST = Control(go_on_after_the_last_request, "a request behind `Connection: close` ran")
attack_http(FAMILY, "500 calls in one write", in_order, controls=[Control(answer_out_of_turn, r"^answer \d+ of 500")])
attack_http(FAMILY, "answers that nobody reads", unread, controls=[READ_ON])
attack_http(FAMILY, "behind a slow call", behind_a_slow_call, controls=[READ_ON])
attack_http(FAMILY, "behind the last request", after_the_end, controls=[LAST])
