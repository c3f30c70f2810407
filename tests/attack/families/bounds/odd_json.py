"""Deep, large, broken and odd JSON: a reply or an error at once, and the server goes on."""

from __future__ import annotations

import json
import time

from tests.attack.arena import Kind
from tests.attack.controls.bounds import fail_at_broken_messages, take_batches_of_any_number
from tests.attack.speaking.mcp import STATELESS, Caller, opening, works
from tests.attack.speaking.websocket import TEXT, WebSocket, frame
from tests.attack.trial import Control, Family, Trial

FAMILY = Family("odd JSON")
SECONDS = 3.0

BODIES: dict[str, bytes] = {
    "deep lists": b"[" * 1_000_000,
    "deep lists that end": b"[" * 500_000 + b"]" * 500_000,
    "deep objects": b'{"a":' * 300_000,
    "deep objects that end": b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
    "deep params": b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b'{"a":' * 1_000 + b"1" + b"}" * 1_001,
    "200,000 keys": b"{" + b",".join(b'"k%d":1' % n for n in range(200_000)) + b"}",
    "the same key": b'{"id":1,"method":"ping",' + b",".join([b'"a":1'] * 200_000) + b"}",
    "keys that collide": b"{" + b",".join(b'"%s":1' % (b"a" * n) for n in range(1, 2_000)) + b"}",
    "a batch of 100,000": b"[" + b",".join([b'{"jsonrpc":"2.0","id":1,"method":"ping"}'] * 80_000) + b"]",
    "a batch of nothing": b"[]",
    "batches in batches": b"[[[[" + b'{"jsonrpc":"2.0","id":1,"method":"ping"}' + b"]]]]",
    "an integer of a million digits": b'{"jsonrpc":"2.0","id":' + b"9" * 1_000_000 + b',"method":"ping"}',
    "a million digits": b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":' + b"9" * 1_000_000 + b"}}",
    "a huge exponent": b'{"jsonrpc":"2.0","id":1e999999999,"method":"ping"}',
    "a long fraction": b'{"jsonrpc":"2.0","id":0.' + b"1" * 1_000_000 + b',"method":"ping"}',
    "NaN": b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}',
    "Infinity": b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":-Infinity}}',
    "lone surrogates": b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}',
    "escapes": b'{"jsonrpc":"2.0","id":1,"method":"' + b"\\u0061" * 500_000 + b'"}',
    "NULs": b'{"jsonrpc":"2.0","id":1,"method":"pi\\u0000ng"}',
    "bytes that are not UTF-8": b'{"jsonrpc":"2.0","id":1,"method":"\xff\xfe"}',
    "overlong characters": b'{"jsonrpc":"2.0","id":1,"method":"\xc0\xae"}',
    "a byte order mark": b"\xef\xbb\xbf" + b'{"jsonrpc":"2.0","id":1,"method":"ping"}',
    "UTF-16": '{"jsonrpc":"2.0","id":1,"method":"ping"}'.encode("utf-16"),
    "nothing": b"",
    "blanks": b" " * 1_000_000,
    "two messages": b'{"jsonrpc":"2.0","id":1,"method":"ping"}{"jsonrpc":"2.0","id":2,"method":"ping"}',
    "comments": b'/* a */ {"jsonrpc":"2.0","id":1,"method":"ping"} // b',
    "a number": b"7",
    "null": b"null",
    "a text without an end": b'"' + b"a" * 1_000_000,
}  # fmt: skip

IDS = [
    "null", "true", "[1]", "{}", "1.5", "-0", "1e3", "99999999999999999999999999", '"' + "x" * 5_000 + '"', '""',
    '"\\u0000"',
]  # fmt: skip
METHODS = [
    "null", "1", "[]", "{}", '""', '"__proto__"', '"__class__"', '"../tools/list"', '"tools/list\\n"',
    '"' + "a" * 5_000 + '"',
]  # fmt: skip
PARAMS = [
    "null", "1", "[]", '"a"', "[1,2]", '{"name":null}', '{"name":[]}', '{"name":{}}', '{"name":"echo","arguments":[]}',
    '{"name":"echo","arguments":null}', '{"name":"echo","arguments":{"text":{}}}', '{"_meta":1}', '{"_meta":[]}',
    '{"_meta":{"progressToken":[]}}', '{"_meta":{"progressToken":{}}}', '{"__proto__":{"a":1}}', '{"cursor":[]}',
]  # fmt: skip
CALLED = ("tools/call", "tools/list", "initialize", "resources/read", "subscriptions/listen", "logging/setLevel")
VERSIONS = ("1.0", "null", '"1.0"', "[]", '"2.0 "')


def shapes() -> dict[str, bytes]:
    """Every member of a message with every odd value."""
    found = {f"id {id[:20]}": f'{{"jsonrpc":"2.0","id":{id},"method":"ping"}}' for id in IDS}
    found |= {f"method {name[:20]}": f'{{"jsonrpc":"2.0","id":1,"method":{name}}}' for name in METHODS}
    for method in (
        "tools/call",
        "tools/list",
        "initialize",
        "resources/read",
        "subscriptions/listen",
        "logging/setLevel",
    ):
        found |= {
            f"{method} {params[:30]}": f'{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}'
            for params in PARAMS
        }
    found |= {
        f"jsonrpc {v}": f'{{"jsonrpc":{v},"id":1,"method":"ping"}}' for v in ("1.0", "null", '"1.0"', "[]", '"2.0 "')
    }
    return {name: text.encode() for name, text in found.items()}


@FAMILY.attack("over HTTP", Control(fail_at_broken_messages, ": (500|no answer)", "deep lists"), growth=60)
def _(trial: Trial) -> None:
    served = trial.arena.serve(Kind(options=("--rest",)))
    inside = Caller(served.place).open()
    for name, body in trial.choose({**BODIES, **shapes()}):
        for how, caller, headers in (
            ("in a session", inside, {}),
            ("alone", Caller(served.place), {"Mcp-Protocol-Version": STATELESS, "Mcp-Method": "ping"}),
        ):
            began = time.monotonic()
            answer = caller.post(body, **headers)
            spent = time.monotonic() - began
            trial.expect(answer is not None and answer.status < 600, f"{name}, {how}: no answer")
            trial.expect(answer is None or answer.status != 500, f"{name}, {how}: 500 {answer and answer.text[:100]}")
            trial.expect(spent < SECONDS, f"{name}, {how}: {spent:.1f} s")
    for name, body in trial.choose(BODIES):
        answer = Caller(served.place).send("POST", body, path="/tools/echo")
        trial.expect(answer is not None and answer.status < 500, f"REST, {name}: {answer and answer.status}")
    trial.expect(not (said := works(Caller(served.place))), f"an honest caller afterwards: {said}")
    trial.expect("Traceback" not in served.new_log, f"the log has a traceback: {served.new_log[-300:]}")


BATCHES: dict[str, bytes] = {
    "calls": b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo","arguments":{"text":"a"}}}',
    "pings": b'{"jsonrpc":"2.0","id":%d,"method":"ping"}',
    "unknown methods": b'{"jsonrpc":"2.0","id":%d,"method":"a"}',
    "cancellations": b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}',
    "answers": b'{"jsonrpc":"2.0","id":%d,"result":{}}',
    "numbers": b"%d",
}


@FAMILY.attack("large batches", Control(take_batches_of_any_number, "pings: 200", "pings"), growth=60)
def _(trial: Trial) -> None:
    """In the version that has batches, one request of very many messages is refused as a whole: each message costs time
    in which nobody else is served."""
    served = trial.arena.serve(Kind())
    for name, member in trial.choose(BATCHES):
        inside = Caller(served.place).open(version="2025-03-26")
        number = 1_000_000 // (len(member) + 6)
        answer = inside.post(b"[" + b",".join(member % at for at in range(number)) + b"]", patience=60)
        trial.expect(answer is not None and answer.status == 400, f"{name}: {answer and answer.status}")
    trial.expect(not (said := works(Caller(served.place))), f"an honest caller afterwards: {said}")


@FAMILY.attack("over WebSocket", Control(fail_at_broken_messages, "neither an answer", "deep lists"), growth=60)
def _(trial: Trial) -> None:
    """Whatever it is, the next message is answered on the same socket; or the socket is closed with a reason."""
    served = trial.arena.serve(Kind())
    for name, body in trial.choose({**BODIES, **shapes()}):
        with WebSocket(served.place) as socket:
            socket.say(opening())
            socket.hear()
            socket.send(frame(TEXT, body))
            socket.say({"jsonrpc": "2.0", "id": "after", "method": "ping"})
            heard = socket.hear(8)
            while heard is not None and not (isinstance(heard, dict) and heard.get("id") == "after"):
                heard = socket.hear(8)
            good = heard is not None or socket.close_code in (1002, 1003, 1007, 1008, 1009)
            trial.expect(good, f"{name}: neither an answer afterwards nor a reason (close {socket.close_code})")
    trial.expect(not (said := works(Caller(served.place))), f"an honest caller afterwards: {said}")
    trial.expect("Traceback" not in served.new_log, f"the log has a traceback: {served.new_log[-300:]}")


@FAMILY.attack("mutations", Control(fail_at_broken_messages, ": (500|None)$"))
def _(trial: Trial) -> None:
    """Good messages with bytes changed at random."""
    served = trial.arena.serve(Kind())
    inside = Caller(served.place).open()
    good = [json.dumps(opening()).encode()]
    good += [text for name, text in shapes().items() if name.startswith("tools/call")]
    for _ in range(1_500):
        body = bytearray(trial.random.choice(good))
        for _ in range(trial.random.randrange(1, 6)):
            at = trial.random.randrange(len(body))
            kind = trial.random.randrange(3)
            if kind == 0:
                body[at] = trial.random.randrange(256)
            elif kind == 1:
                del body[at : at + trial.random.randrange(1, 8)]
            else:
                body[at:at] = trial.random.choice([b"{", b"]", b'"', b"\\", b"\x00", b"null", b"1e9", b",", b"\xff"])
            if not body:
                body = bytearray(b"x")
        answer = inside.post(bytes(body))
        held = answer is not None and answer.status < 500
        trial.expect(held, f"{bytes(body)[:200]!r}: {answer and answer.status}")
    trial.expect(not (said := works(Caller(served.place))), f"an honest caller afterwards: {said}")
    trial.expect("Traceback" not in served.new_log, f"the log has a traceback: {served.new_log[-300:]}")
