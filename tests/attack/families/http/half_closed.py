"""Clients that close their sending half (as `nc -N` does) get their answer, and do not stay for ever."""

from __future__ import annotations

import json
import time

from tests.attack.arena import Kind
from tests.attack.controls.http import end_with_the_sending_half, wait_for_half_closed_clients
from tests.attack.families.on_http import attack_http
from tests.attack.speaking.http import Wire, head
from tests.attack.speaking.mcp import (
    STATELESS,
    Caller,
    message,
    outcome,
    reply_in,
    stateless_params,
    tool_call,
    works,
)  # fmt: skip
from tests.attack.trial import Control, Family, Trial

FAMILY = Family("half-closed")
JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}

# Tool, arguments, further _meta, what the answer holds.
CALLS = {
    "a quick call": ("echo", {"text": "quick"}, {}, "quick"),
    "a call that takes a second": ("slow", {"seconds": 1}, {}, "slept"),
    "a call that streams": ("count", {"n": 10}, {"progressToken": 1}, "counted"),
}


def answered(trial: Trial, kind: Kind) -> None:
    served = trial.arena.serve(kind)
    for name, (tool, arguments, meta, wanted) in CALLS.items():
        params = stateless_params(tool_call(tool, arguments), {}, meta)
        body = json.dumps(message("tools/call", params)).encode()
        own = {**JSON, "Mcp-Protocol-Version": STATELESS, "Mcp-Method": "tools/call", "Mcp-Name": tool}
        whole = head("POST", "/mcp", served.place, {**own, "Content-Length": str(len(body))}) + body
        chunks = head("POST", "/mcp", served.place, {**own, "Transfer-Encoding": "chunked"})
        chunks += b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        for form, data in (("", whole), (" in chunks", chunks), (", twice", whole + whole)):
            with Wire(served.place) as wire:
                wire.send(data)
                wire.half_close()
                answers = [wire.response(8) for _ in range(2 if "twice" in form else 1)]
                ended = wire.closes_within(4)
            for answer in answers:
                said = outcome(reply_in(answer, 1))
                trial.expect(wanted in said, f"{name}{form}, then shutdown(SHUT_WR): {said}")
            trial.expect(ended, f"{name}{form}: the connection stays open after the answer")


def rest_and_probes(trial: Trial, kind: Kind) -> None:
    served = trial.arena.serve(kind)
    for verb, path, body in (("GET", "/healthz", b""), ("POST", "/tools/echo", b'{"text": "a"}')):
        more = {"Content-Length": str(len(body)), "Content-Type": "application/json"} if body else {}
        with Wire(served.place) as wire:
            wire.send(head(verb, path, served.place, more) + body)
            wire.half_close()
            answer = wire.response(5)
        trial.expect(answer is not None and answer.status == 200, f"{verb} {path}: {answer and answer.status}")


def not_for_ever(trial: Trial, kind: Kind) -> None:
    """Half a request, then half a connection: it ends, and its descriptor is freed."""
    served = trial.arena.serve(kind)
    before = served.open_files
    starts = {
        "nothing": b"",
        "half a head": head("POST", "/mcp", served.place, JSON)[:-10],
        "half a body": head("POST", "/mcp", served.place, {**JSON, "Content-Length": "100"}) + b"{",
        "half a chunk": head("POST", "/mcp", served.place, {**JSON, "Transfer-Encoding": "chunked"}) + b"64\r\n{",
    }
    for name, data in trial.choose(starts):
        wires = [Wire(served.place) for _ in range(20)]
        for wire in wires:
            wire.send(data)
            wire.half_close()
        deadline = time.monotonic() + 6
        ended = all(wire.closes_within(max(deadline - time.monotonic(), 0.01)) for wire in wires)
        trial.expect(ended, f"{name}: open after 6 s")
        for wire in wires:
            wire.socket.close()
    deadline = time.monotonic() + 5
    while served.open_files > before and time.monotonic() < deadline:
        time.sleep(0.05)
    trial.expect(served.open_files <= before, f"{served.open_files - before} descriptors stay open")
    trial.expect(not (said := works(Caller(served.place))), f"an honest caller afterwards: {said}")


REST = Kind(options=("--rest",))
GONE, STAYS = end_with_the_sending_half, wait_for_half_closed_clients
attack_http(FAMILY, "they are answered", answered, controls=[Control(GONE, "then shutdown")])
attack_http(FAMILY, "REST and probes", rest_and_probes, REST, controls=[Control(GONE, "POST /tools/echo: None")])
attack_http(FAMILY, "half a request", not_for_ever, controls=[Control(STAYS, "open after 6 s", "half a body")])
