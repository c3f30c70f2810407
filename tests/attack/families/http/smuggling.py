"""A request hidden in another: framing that two readers could read in two ways is refused, and nothing hidden runs.

Every row hides a call that leaves a mark. A server that runs it has read the message as nobody meant it.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.attack.arena import Kind
from tests.attack.controls.http import (
    know_no_body_of_a_get,
    prefer_chunks_to_a_length,
    read_chunk_sizes_as_a_language_does,
    read_the_digits_of_a_length,
    read_the_first_of_two_lengths,
    skip_lines_that_are_no_headers,
    skip_unknown_codings,
)
from tests.attack.families.on_http import attack_http
from tests.attack.speaking.http import Wire, head
from tests.attack.speaking.mcp import STATELESS, Caller, message, stateless_params, tool_call, works
from tests.attack.speaking.sockets import Place
from tests.attack.trial import Control, Family, Trial

FAMILY = Family("smuggling")

Lines = list[str]


def marking(word: str) -> bytes:
    """The body of a call that leaves a mark."""
    return json.dumps(message("tools/call", stateless_params(tool_call("mark", {"word": word}), {}))).encode()


def lines(*more: str) -> Lines:
    usual = ["Content-Type: application/json", "Accept: application/json, text/event-stream"]
    routing = [f"Mcp-Protocol-Version: {STATELESS}", "Mcp-Method: tools/call", "Mcp-Name: mark"]
    return [*usual, *routing, *more]


def raw(place: Place, *more: str, end: str = "\r\n", first: str = "POST /mcp HTTP/1.1") -> bytes:
    return (end.join([first, f"Host: {place.authority}", *lines(*more)]) + end * 2).encode("latin-1")


def hidden(place: Place, word: str) -> bytes:
    """A whole second request, as a smuggler would hide it."""
    body = marking(word)
    return raw(place, f"Content-Length: {len(body)}") + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


END = b"0\r\n\r\n"
CHUNKED = "Transfer-Encoding: chunked"

Payload = Callable[[Place, bytes, bytes], bytes]
"""Place, body of the outer request, hidden request → the bytes."""


def _length_and_chunks(place: Place, body: bytes, inner: bytes, *more: str) -> bytes:
    """Content-Length covers everything; the chunks end before the hidden request."""
    framed = chunk(body) + END
    return raw(place, f"Content-Length: {len(framed) + len(inner)}", *more) + framed + inner


def _twice(place: Place, body: bytes, inner: bytes, *forms: str) -> bytes:
    """Lengths that disagree: with and without the hidden request."""
    numbers = {"short": len(body), "long": len(body) + len(inner)}
    return raw(place, *(form.format(**numbers) for form in forms)) + body + inner


def _chunks(place: Place, framed: bytes, inner: bytes, header: str = CHUNKED) -> bytes:
    return raw(place, header) + framed + inner


LENGTH = "Content-Length: "
# Name → payload. Each is ambiguous or forbidden by RFC 9112, so each is refused and its connection is closed.
REFUSED: dict[str, dict[str, Payload]] = {
    "length and chunks together": {
        "CL before TE": lambda p, b, i: _length_and_chunks(p, b, i, CHUNKED),
        "TE with a tab": lambda p, b, i: _length_and_chunks(p, b, i, "Transfer-Encoding:\tchunked"),
        "TE in capitals": lambda p, b, i: _length_and_chunks(p, b, i, "TRANSFER-ENCODING: CHUNKED"),
        "TE twice": lambda p, b, i: _length_and_chunks(p, b, i, CHUNKED, CHUNKED),
        "TE identity": lambda p, b, i: _length_and_chunks(p, b, i, "Transfer-Encoding: identity"),
        "TE after a space": lambda p, b, i: _length_and_chunks(p, b, i, "Transfer-Encoding : chunked"),
        "TE with a leading space": lambda p, b, i: _length_and_chunks(p, b, i, " Transfer-Encoding: chunked"),
        "TE folded": lambda p, b, i: _length_and_chunks(p, b, i, "Transfer-Encoding:\r\n chunked"),
        "TE xchunked": lambda p, b, i: _length_and_chunks(p, b, i, "Transfer-Encoding: xchunked"),
        "TE with a vertical tab": lambda p, b, i: _length_and_chunks(p, b, i, "Transfer-Encoding: \x0bchunked"),
        "TE quoted": lambda p, b, i: _length_and_chunks(p, b, i, 'Transfer-Encoding: "chunked"'),
        "TE with a NUL": lambda p, b, i: _length_and_chunks(p, b, i, "Transfer-Encoding: chunked\x00"),
    },
    "two lengths": {
        "short, long": lambda p, b, i: _twice(p, b, i, LENGTH + "{short}", LENGTH + "{long}"),
        "long, short": lambda p, b, i: _twice(p, b, i, LENGTH + "{long}", LENGTH + "{short}"),
        "a list": lambda p, b, i: _twice(p, b, i, LENGTH + "{short}, {long}"),
        "a list of the other order": lambda p, b, i: _twice(p, b, i, LENGTH + "{long}, {short}"),
        "another case": lambda p, b, i: _twice(p, b, i, "content-length: {short}", "CONTENT-LENGTH: {long}"),
    },
    "odd lengths": {
        "plus": lambda p, b, i: _twice(p, b, i, LENGTH + "+{short}"),
        "minus": lambda p, b, i: _twice(p, b, i, LENGTH + "-{short}"),
        "hexadecimal": lambda p, b, i: raw(p, f"{LENGTH}0x{len(b):x}") + b + i,
        "fraction": lambda p, b, i: _twice(p, b, i, LENGTH + "{short}.0"),
        "exponent": lambda p, b, i: _twice(p, b, i, LENGTH + "{short}e0"),
        "underscore": lambda p, b, i: _twice(p, b, i, LENGTH + "{short}_0"),
        "a space inside": lambda p, b, i: _twice(p, b, i, LENGTH + "{short} 0"),
        "a letter after": lambda p, b, i: _twice(p, b, i, LENGTH + "{short}a"),
        "a NUL after": lambda p, b, i: _twice(p, b, i, LENGTH + "{short}\x00"),
        "a space before the colon": lambda p, b, i: _twice(p, b, i, "Content-Length : {short}"),
        "empty": lambda p, b, i: raw(p, LENGTH) + b + i,
        "past 64 bits": lambda p, b, i: raw(p, f"{LENGTH}{2**64 + len(b)}") + b + i,
        "forty digits": lambda p, b, i: raw(p, LENGTH + "9" * 40) + b + i,
        "superscript": lambda p, b, i: raw(p, LENGTH + "\xb2") + b + i,
    },
    "chunk sizes": {
        "0x": lambda p, b, i: _chunks(p, b"0x%x\r\n%s\r\n" % (len(b), b) + END, i),
        "minus": lambda p, b, i: _chunks(p, b"-%x\r\n%s\r\n" % (len(b), b) + END, i),
        "plus": lambda p, b, i: _chunks(p, b"+%x\r\n%s\r\n" % (len(b), b) + END, i),
        "underscore": lambda p, b, i: _chunks(p, b"1_%x\r\n%s\r\n" % (len(b), b) + END, i),
        "a space before": lambda p, b, i: _chunks(p, b" %x\r\n%s\r\n" % (len(b), b) + END, i),
        "past 64 bits": lambda p, b, i: _chunks(p, b"1%016x\r\n%s\r\n" % (len(b), b) + END, i),
        "no digits": lambda p, b, i: _chunks(p, b"\r\n%s\r\n" % b + END, i),
        "letters": lambda p, b, i: _chunks(p, b"zz\r\n%s\r\n" % b + END, i),
        "a NUL": lambda p, b, i: _chunks(p, b"%x\x00\r\n%s\r\n" % (len(b), b) + END, i),
        "too short": lambda p, b, i: _chunks(p, b"%x\r\n%s\r\n" % (len(b) - 5, b) + END, i),
        "no line end after data": lambda p, b, i: _chunks(p, b"%x\r\n%s" % (len(b), b) + END, i),
        "two bytes for a line end": lambda p, b, i: _chunks(p, b"%x\r\n%sXX" % (len(b), b) + END, i),
        "bare LF after the size": lambda p, b, i: _chunks(p, b"%x\n%s\r\n" % (len(b), b) + END, i),
        "bare CR after the size": lambda p, b, i: _chunks(p, b"%x\r%s\r\n" % (len(b), b) + END, i),
        "bare LF in an extension": lambda p, b, i: _chunks(p, b"%x;a\nb\r\n%s\r\n" % (len(b), b) + END, i),
    },
    "codings": {
        "gzip, chunked": lambda p, b, i: _chunks(p, chunk(b) + END, i, "Transfer-Encoding: gzip, chunked"),
        "chunked, gzip": lambda p, b, i: _chunks(p, chunk(b) + END, i, "Transfer-Encoding: chunked, gzip"),
        "chunked, identity": lambda p, b, i: _chunks(p, chunk(b) + END, i, "Transfer-Encoding: chunked, identity"),
        "chunked, chunked": lambda p, b, i: _chunks(p, chunk(b) + END, i, "Transfer-Encoding: chunked, chunked"),
        "an unknown one": lambda p, b, i: _chunks(p, chunk(b) + END, i, "Transfer-Encoding: cow"),
        "chunked with a parameter": lambda p, b, i: _chunks(p, chunk(b) + END, i, "Transfer-Encoding: chunked;q=1"),
        "HTTP/1.0 with chunks and a length": lambda p, b, i: (
            raw(p, CHUNKED, f"{LENGTH}{len(b)}", first="POST /mcp HTTP/1.0") + b + i
        ),
    },
    "head syntax": {
        "folded header": lambda p, b, i: (
            raw(p, f"X-A: b\r\n Content-Length: {len(b) + len(i)}", f"{LENGTH}{len(b)}") + b + i
        ),
        "a line without a colon": lambda p, b, i: raw(p, "Nonsense", f"{LENGTH}{len(b)}") + b + i,
        "an empty name": lambda p, b, i: raw(p, ": x", f"{LENGTH}{len(b)}") + b + i,
        "a NUL in a value": lambda p, b, i: raw(p, "X-A: a\x00b", f"{LENGTH}{len(b)}") + b + i,
        "a NUL in a name": lambda p, b, i: raw(p, "X-\x00A: b", f"{LENGTH}{len(b)}") + b + i,
        "a bare CR in a value": lambda p, b, i: raw(p, f"X-A: a\rContent-Length: {len(b)}") + b + i,
        "a space in a name": lambda p, b, i: raw(p, "X A: b", f"{LENGTH}{len(b)}") + b + i,
        "a space before a colon": lambda p, b, i: raw(p, "X-A : b", f"{LENGTH}{len(b)}") + b + i,
        "a name that is not ASCII": lambda p, b, i: raw(p, "X-\xe4: b", f"{LENGTH}{len(b)}") + b + i,
        "two versions": lambda p, b, i: raw(p, f"{LENGTH}{len(b)}", first="POST /mcp HTTP/1.1 HTTP/1.1") + b + i,
        "a tab in the request line": lambda p, b, i: raw(p, f"{LENGTH}{len(b)}", first="POST\t/mcp\tHTTP/1.1") + b + i,
        "HTTP/2.0": lambda p, b, i: raw(p, f"{LENGTH}{len(b)}", first="POST /mcp HTTP/2.0") + b + i,
        "HTTP/1.9": lambda p, b, i: raw(p, f"{LENGTH}{len(b)}", first="POST /mcp HTTP/1.9x") + b + i,
        "an unknown method": lambda p, b, i: raw(p, f"{LENGTH}{len(b)}", first="P\x00ST /mcp HTTP/1.1") + b + i,
    },
}


def refuse(trial: Trial, kind: Kind, payloads: dict[str, Payload]) -> None:
    served = trial.arena.serve(kind)
    for name, payload in trial.choose(payloads):
        word = f"{trial.random.randrange(10**12)}"
        inner = hidden(served.place, f"inner-{word}")
        with Wire(served.place) as wire:
            wire.send(payload(served.place, marking(f"outer-{word}"), inner))
            first = wire.response(5)
            closed = wire.closes_within(4)
        trial.expect(not served.has_marked(f"inner-{word}"), f"{name}: the hidden request ran")
        status = first.status if first is not None else None
        trial.expect(status is None or status >= 400, f"{name}: answered {status}")
        trial.expect(closed, f"{name}: the connection stays open after {status}")
    trial.expect(not (said := works(Caller(served.place))), f"honest callers afterwards: {said}")


RAN = "the hidden request ran"
CONTROLS = {
    "length and chunks together": Control(prefer_chunks_to_a_length, RAN, "CL before TE"),
    "two lengths": Control(read_the_first_of_two_lengths, RAN, "short, long"),
    "odd lengths": Control(read_the_digits_of_a_length, RAN, "plus"),
    "chunk sizes": Control(read_chunk_sizes_as_a_language_does, RAN, "0x"),
    "codings": Control(skip_unknown_codings, RAN, "gzip, chunked"),
    "head syntax": Control(skip_lines_that_are_no_headers, RAN, "a line without a colon"),
}
for _name, _payloads in REFUSED.items():
    attack_http(
        FAMILY, _name, lambda trial, kind, payloads=_payloads: refuse(trial, kind, payloads), controls=[CONTROLS[_name]]
    )


# What one reader may accept and another not. It is answered or refused, but the hidden request never runs.
TOLERATED: dict[str, Payload] = {
    "bare LF ends the lines": lambda p, b, i: raw(p, f"{LENGTH}{len(b) + len(i)}", end="\n") + b + i,
    "equal lengths twice": lambda p, b, i: raw(p, *[f"{LENGTH}{len(b) + len(i)}"] * 2) + b + i,
    "leading zeros": lambda p, b, i: raw(p, f"{LENGTH}000{len(b) + len(i)}") + b + i,
    "a GET with a body": lambda p, b, i: raw(p, f"{LENGTH}{len(i)}", first="GET /mcp HTTP/1.1") + i,
    "a HEAD with a body": lambda p, b, i: raw(p, f"{LENGTH}{len(i)}", first="HEAD /mcp HTTP/1.1") + i,
    "a body for a path that is not there": lambda p, b, i: raw(p, f"{LENGTH}{len(i)}", first="POST /no HTTP/1.1") + i,
    "a body of the wrong type": lambda p, b, i: (
        head("POST", "/mcp", p, [("Content-Type", "text/plain"), ("Content-Length", str(len(i)))]) + i
    ),
    "a body after an Expect": lambda p, b, i: raw(p, "Expect: 100-continue", f"{LENGTH}{len(i)}") + i,
    "an unknown Expect": lambda p, b, i: raw(p, "Expect: 200-ok", f"{LENGTH}{len(i)}") + i,
    "an upgrade that is not one": lambda p, b, i: (
        raw(p, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk", f"{LENGTH}{len(i)}")
        + i
    ),
    "a body in chunk extensions": lambda p, b, i: _chunks(
        p, b"%x;%s\r\n%s\r\n" % (len(b), i.replace(b"\r\n", b" "), b) + END, b""
    ),
    "a request in trailers": lambda p, b, i: (
        raw(p, CHUNKED) + chunk(b) + b"0\r\n" + i.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    ),
    "HTTP/1.0 closes after its answer": lambda p, b, i: raw(p, f"{LENGTH}{len(b)}", first="POST /mcp HTTP/1.0") + b + i,
    "HTTP/1.1 that asked to close": lambda p, b, i: raw(p, f"{LENGTH}{len(b)}", "Connection: close") + b + i,
    "an HTTP/0.9 request": lambda p, b, i: b"GET /mcp\r\n" + i,
    "an HTTP/2 preface": lambda p, b, i: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + i,
}


def tolerate(trial: Trial, kind: Kind) -> None:
    served = trial.arena.serve(kind)
    for name, payload in trial.choose(TOLERATED):
        word = f"{trial.random.randrange(10**12)}"
        with Wire(served.place) as wire:
            wire.send(payload(served.place, marking(f"outer-{word}"), hidden(served.place, f"inner-{word}")))
            wire.response(2)
            wire.closes_within(0.3)
        trial.expect(not served.has_marked(f"inner-{word}"), f"{name}: the hidden request ran")
    trial.expect(not (said := works(Caller(served.place))), f"honest callers afterwards: {said}")


NO_BODY = Control(know_no_body_of_a_get, RAN, "a GET with a body")
attack_http(FAMILY, "bodies that look like requests", tolerate, controls=[NO_BODY])
