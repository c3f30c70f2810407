"""Byte streams to send: whole requests, odd ones, several in a row, cut anywhere. Made by lot from a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

HOST = b"Host: h\r\n"
END = b"\r\n"


class Stream(NamedTuple):
    """What is sent over one connection, and of which kind it is."""

    kind: str
    data: bytes


def make_streams(count: int, seed: int) -> Iterator[Stream]:
    """`count` streams, each kind about as often as another."""
    lot = Random(seed)
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        data = kind.make(lot)
        if kind.name in CUT_KINDS and lot.random() < 0.5:
            data = data[: lot.randrange(1, len(data))]
        yield Stream(kind.name, data)


class Kind(NamedTuple):
    name: str
    make: Callable[[Random], bytes]


def _get(lot: Random) -> bytes:
    target = b"/" + b"".join(lot.choice((b"a", b"b/", b"%41", b"?q=1", b"~")) for _ in range(lot.randrange(5)))
    names = (b"Accept: */*\r\n", b"X-Note: one two\r\n", b"x-empty:\r\n", b"X-Tab:\ta\t\r\n", b"User-Agent: t/1\r\n")
    head = b"".join(lot.sample(names, lot.randrange(len(names) + 1)))
    return b"GET %b HTTP/1.1\r\n%b%b%b" % (target, HOST, head, END)


def _body(lot: Random) -> bytes:
    return bytes(lot.choice(b"abc{}\r\n 01") for _ in range(lot.randrange(40)))


def _post(lot: Random) -> bytes:
    body = _body(lot)
    return b"POST /p HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (HOST, len(body), body)


def _chunks(lot: Random, end: bytes = b"0\r\n\r\n") -> bytes:
    parts = [part for _ in range(lot.randrange(4)) if (part := _body(lot))]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + end


def _chunked(lot: Random) -> bytes:
    return b"POST /c HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n%b" % (HOST, _chunks(lot))


def _valid(lot: Random) -> bytes:
    return lot.choice((_get, _post, _chunked))(lot)


def _pipelined(lot: Random) -> bytes:
    return b"".join(_valid(lot) for _ in range(lot.randrange(2, 6)))


def _header(*lines: bytes, body: bytes = b"") -> Callable[[Random], bytes]:
    """A POST with one of these header lines, and a good request behind it."""

    def make(lot: Random) -> bytes:
        return b"POST /h HTTP/1.1\r\n%b%b\r\n%b%b" % (HOST, lot.choice(lines), body or b"abcde", _get(lot))

    return make


def _request_line(*lines: bytes) -> Callable[[Random], bytes]:
    def make(lot: Random) -> bytes:
        return lot.choice(lines) + HOST + END + _get(lot)

    return make


def _chunk_form(*forms: bytes) -> Callable[[Random], bytes]:
    def make(lot: Random) -> bytes:
        return b"POST /f HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n%b%b" % (HOST, lot.choice(forms), _get(lot))

    return make


def _noise(lot: Random) -> bytes:
    """A good stream in which a few bytes are changed, dropped or doubled."""
    data = bytearray(_pipelined(lot))
    for _ in range(lot.randrange(1, 4)):
        at = lot.randrange(len(data))
        match lot.randrange(3):
            case 0:
                data[at] = lot.choice(b"\r\n\0 \t:;,x0\x7f\xff")
            case 1:
                del data[at]
            case _:
                data.insert(at, data[at])
    return bytes(data)


def _hosts(lot: Random) -> bytes:
    forms = (b"", HOST + HOST, HOST + b"Host: other\r\n", b"Host: \r\n", b"Host: a b\r\n", b"Host: h/x\r\n")
    return b"GET /o HTTP/1.1\r\n%b\r\n%b" % (lot.choice(forms), _get(lot))


def _preface(lot: Random) -> bytes:
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _get(lot)


_CL = b"Content-Length: "
_TE = b"Transfer-Encoding: "
KINDS = (
    Kind("one request", _valid),
    Kind("several in a row", _pipelined),
    Kind(
        "two lengths",
        _header(_CL + b"5\r\n" + _CL + b"5\r\n", _CL + b"5\r\n" + _CL + b"0\r\n", _CL + b"5, 5\r\n", _CL + b"5,0\r\n"),
    ),
    Kind(
        "odd lengths",
        _header(*(_CL + form + END for form in (b"+5", b"-5", b"5 5", b"0x5", b"05", b"5.0", b"", b"5;", b"five"))),
    ),
    Kind(
        "length and chunks",
        _header(
            _CL + b"5\r\n" + _TE + b"chunked\r\n",
            _TE + b"chunked\r\n" + _CL + b"5\r\n",
            body=b"5\r\nabcde\r\n0\r\n\r\n",
        ),
    ),
    Kind(
        "other codings",
        _header(
            *(
                _TE + form + END
                for form in (b"gzip", b"gzip, chunked", b"chunked, chunked", b"xchunked", b"chunked;q=1", b"identity")
            ),
            _TE + b"chunked\r\n" + _TE + b"identity\r\n",
            b"Transfer-Encoding : chunked\r\n",
            b"Transfer_Encoding: chunked\r\n",
            _TE + b"\x0bchunked\r\n",
            body=b"5\r\nabcde\r\n0\r\n\r\n",
        ),
    ),
    Kind(
        "odd chunk sizes",
        _chunk_form(
            *(
                size + b"\r\nabcde\r\n0\r\n\r\n"
                for size in (b"+5", b"-5", b" 5", b"5 ", b"0x5", b"05", b"5;a=b", b'5;a="b"', b"5\t", b"", b"g", b"5_0")
            ),
            b"5\r\nabcdeX\r\n0\r\n\r\n",
            b"5\r\nabcde0\r\n\r\n",
            b"fffffffffffffffff\r\nabcde\r\n0\r\n\r\n",
        ),
    ),
    Kind(
        "bare line ends in chunks",
        _chunk_form(
            b"5\nabcde\r\n0\r\n\r\n", b"5\r\nabcde\n0\r\n\r\n", b"5\r\nabcde\r\n0\n\r\n", b"5\r\nabcde\r\n0\r\n\n"
        ),
    ),
    Kind(
        "trailers",
        _chunk_form(
            b"5\r\nabcde\r\n0\r\nX-Sum: 1\r\n\r\n",
            b"5\r\nabcde\r\n0\r\nContent-Length: 9\r\n\r\n",
            b"5\r\nabcde\r\n0\r\nbad line\r\n\r\n",
            b"5\r\nabcde\r\n0\r\n folded\r\n\r\n",
        ),
    ),
    Kind(
        "bare line ends in heads",
        _request_line(
            b"GET /l HTTP/1.1\n", b"GET /l HTTP/1.1\r", b"GET /l HTTP/1.1\r\nX-A: 1\n", b"GET /l HTTP/1.1\r\nX-A: 1\r"
        ),
    ),
    Kind(
        "names and values",
        _header(
            b"X A: 1\r\n",
            b" X: 1\r\n",
            b"X: 1\r\n folded\r\n",
            b"X\0: 1\r\n",
            b"X: a\0b\r\n",
            b": 1\r\n",
            b"X\r\n",
            b"X\xff: 1\r\n",
            b"X: \xff\r\n",
            b"X(: 1\r\n",
            b"X: a\rb\r\n",
            b"X : 1\r\n",
        ),
    ),
    Kind(
        "request lines",
        _request_line(
            b"GET  /s HTTP/1.1\r\n",
            b"GET /s  HTTP/1.1\r\n",
            b"get /s HTTP/1.1\r\n",
            b"GET /s HTTP/1.2\r\n",
            b"GET /s HTTP/2.0\r\n",
            b"GET /s\r\n",
            b"GET /s HTTP/1.1 x\r\n",
            b"G@T /s HTTP/1.1\r\n",
            b"GET s HTTP/1.1\r\n",
            b"GET http://h/s HTTP/1.1\r\n",
            b"GET /s#f HTTP/1.1\r\n",
            b"GET /\xff HTTP/1.1\r\n",
            b"GET /s\tHTTP/1.1\r\n",
            b"GET * HTTP/1.1\r\n",
            b"\r\nGET /s HTTP/1.1\r\n",
            b"\r\n\r\nGET /s HTTP/1.1\r\n",
            b"GET /s HTTP/1.0\r\n",
            b"GET /s HTTP/1.10\r\n",
            b"GET /s http/1.1\r\n",
            b"CONNECT h:1 HTTP/1.1\r\n",
        ),
    ),
    Kind("hosts", _hosts),
    Kind(
        "upgrades",
        _header(
            b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAAA\r\nContent-Length: 5\r\n",
            b"Upgrade: foo\r\nConnection: upgrade\r\nContent-Length: 5\r\n",
        ),
    ),
    Kind(
        "connection options",
        _header(
            b"Connection: close\r\nContent-Length: 5\r\n",
            b"Connection: keep-alive\r\nContent-Length: 5\r\n",
            b"Connection: close, content-length\r\nContent-Length: 5\r\n",
            b"Expect: 100-continue\r\nContent-Length: 5\r\n",
            b"Expect: other\r\nContent-Length: 5\r\n",
        ),
    ),
    Kind("HTTP/2 preface", _preface),
    Kind("changed bytes", _noise),
)
CUT_KINDS = frozenset(("one request", "several in a row", "changed bytes"))
