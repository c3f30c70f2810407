"""A head that two readers could read in two ways is refused, and its connection is closed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve import Limits, Server
from defserve.serve.http1.framing import BadRequest, ChunkedBody, find_head_end, read_head
from tests.listening import listening
from tests.rows import for_each_row

HIDDEN = b"GET /hidden HTTP/1.1\r\nhost: localhost\r\n\r\n"
CHUNKS = b"0\r\n\r\n"

LINES = ("host: localhost",)


def head(*lines: str, start: str = "POST /nothing HTTP/1.1", host: bool = True) -> bytes:
    return "\r\n".join([start, *(LINES if host else ()), *lines, "", ""]).encode("latin-1")


# What is ambiguous → the bytes, and the status of the refusal. Behind each of them a second request hides.
REFUSED: dict[str, tuple[bytes, int]] = {
    "a length and chunks": (head("content-length: 5", "transfer-encoding: chunked") + CHUNKS, 400),
    "chunks and a length": (head("transfer-encoding: chunked", "content-length: 5") + CHUNKS, 400),
    "chunks twice": (head("transfer-encoding: chunked", "transfer-encoding: chunked") + CHUNKS, 400),
    "another coding": (head("transfer-encoding: gzip, chunked") + CHUNKS, 400),
    "another coding in a line of its own": (head("transfer-encoding: gzip", "transfer-encoding: chunked"), 400),
    "identity": (head("transfer-encoding: identity"), 400),
    "an empty coding": (head("transfer-encoding:"), 400),
    "chunks with a quoted name": (head('transfer-encoding: "chunked"') + CHUNKS, 400),
    "a control character in the coding": (head("transfer-encoding: \x0bchunked") + CHUNKS, 400),
    "chunks in HTTP/1.0": (head("transfer-encoding: chunked", start="POST /nothing HTTP/1.0") + CHUNKS, 400),
    "two lengths": (head("content-length: 5", "content-length: 6"), 400),
    "the same length twice": (head("content-length: 0", "content-length: 0"), 400),
    "a list of lengths": (head("content-length: 0, 0"), 400),
    "a length with a sign": (head("content-length: +0"), 400),
    "a negative length": (head("content-length: -1"), 400),
    "a hexadecimal length": (head("content-length: 0x10"), 400),
    "a length with an underscore": (head("content-length: 1_0"), 400),
    "a length of other digits": (head("content-length: \xb2"), 400),
    "an empty length": (head("content-length:"), 400),
    "a length past any": (head("content-length: " + "9" * 30), 400),
    "a folded header": (head("x-a: b\r\n content-length: 40"), 400),
    "a header folded with a tab": (head("x-a: b\r\n\tc"), 400),
    "a folded coding": (head("transfer-encoding:\r\n chunked") + CHUNKS, 400),
    "a space before the colon": (head("content-length : 5"), 400),
    "a header without a name": (head(": x"), 400),
    "a header without a colon": (head("content-length 5"), 400),
    "a space in a name": (head("content length: 5"), 400),
    "a letter beyond ASCII in a name": (head("content-l\xebngth: 5"), 400),
    "a bare LF behind a header": (b"POST /nothing HTTP/1.1\r\nhost: localhost\nx: y\r\n\r\n", 400),
    "bare LFs alone": (b"POST /nothing HTTP/1.1\nhost: localhost\n\n", 400),
    "a bare CR in a header": (head("x: a\rb"), 400),
    "a bare CR behind a header": (b"POST /nothing HTTP/1.1\r\nhost: localhost\rx: y\r\n\r\n", 400),
    "a zero byte in a header": (head("x: a\0b"), 400),
    "a zero byte in the target": (head(start="POST /no\0thing HTTP/1.1"), 400),
    "two spaces behind the method": (head(start="POST  /nothing HTTP/1.1"), 400),
    "a tab behind the method": (head(start="POST\t/nothing HTTP/1.1"), 400),
    "a space behind the version": (head(start="POST /nothing HTTP/1.1 "), 400),
    "a space in the target": (head(start="POST /no thing HTTP/1.1"), 400),
    "a fragment in the target": (head(start="POST /nothing#x HTTP/1.1"), 400),
    "a target beyond ASCII": (head(start="POST /n\xf6 HTTP/1.1"), 400),
    "no target": (head(start="POST HTTP/1.1"), 400),
    "a target that is no path": (head(start="POST nothing HTTP/1.1"), 400),
    "a target of another scheme": (head(start="POST ftp://localhost/ HTTP/1.1"), 400),
    "a star with more behind it": (head(start="OPTIONS *nothing HTTP/1.1"), 400),
    "a tunnel": (head(start="CONNECT localhost:80 HTTP/1.1"), 400),
    "no version": (head(start="POST /nothing"), 400),
    "a method with a bracket": (head(start="PO(ST /nothing HTTP/1.1"), 400),
    "lower-case http": (head(start="POST /nothing http/1.1"), 400),
    "a version of two digits": (head(start="POST /nothing HTTP/1.10"), 400),
    "HTTP/2.0": (head(start="POST /nothing HTTP/2.0"), 505),
    "HTTP/0.9": (head(start="POST /nothing HTTP/0.9"), 505),
    "HTTP/1.2": (head(start="POST /nothing HTTP/1.2"), 505),
    "HTTP/3.0": (head(start="POST /nothing HTTP/3.0"), 505),
    "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "no host": (head(host=False), 400),
    "two hosts": (head("host: elsewhere"), 400),
    "an expectation that nobody meets": (head("expect: 200-ok"), 417),
    "the hello of TLS": (b"\x16\x03\x01\x02\x00\x01\x00", 400),
    "a space before the method": (b" POST /nothing HTTP/1.1\r\nhost: localhost\r\n\r\n", 400),
}

# Chunks that two readers could read in two ways.
BAD_CHUNKS: dict[str, bytes] = {
    "a size with a prefix": b"0x1\r\na\r\n0\r\n\r\n",
    "a size with a sign": b"+1\r\na\r\n0\r\n\r\n",
    "a size with a space before it": b" 1\r\na\r\n0\r\n\r\n",
    "a size with a space behind it": b"1 \r\na\r\n0\r\n\r\n",
    "a size with an underscore": b"1_0\r\na\r\n0\r\n\r\n",
    "a size past any": b"f" * 17 + b"\r\na\r\n0\r\n\r\n",
    "no size": b"\r\na\r\n0\r\n\r\n",
    "a size that is no number": b"g\r\na\r\n0\r\n\r\n",
    "a size that ends with LF": b"1\na\r\n0\r\n\r\n",
    "an extension that ends with LF": b"1;x\na\r\n0\r\n\r\n",
    "a bare CR in an extension": b"1;\ra\r\na\r\n0\r\n\r\n",
    "a chunk that is longer than its size": b"1\r\nab\r\n0\r\n\r\n",
    "a chunk that ends with LF": b"1\r\na\n0\r\n\r\n",
    "a chunk that ends with CR": b"1\r\na\r0\r\n\r\n",
    "a trailer that is no header": b"1\r\na\r\n0\r\nx y\r\n\r\n",
    "a folded trailer": b"1\r\na\r\n0\r\nx: y\r\n z\r\n\r\n",
    "a length in the trailers": b"1\r\na\r\n0\r\nContent-Length: 9\r\n\r\n",
    "a coding in the trailers": b"1\r\na\r\n0\r\nx: y\r\ntransfer-encoding: chunked\r\n\r\n",
    "a trailer that ends with LF": b"1\r\na\r\n0\r\nx: y\n\r\n\r\n",
}


@for_each_row("name", [*REFUSED, *BAD_CHUNKS])
@pytest.mark.anyio
async def test_what_two_readers_could_read_in_two_ways_is_refused(name: str):
    sent, status = REFUSED.get(name) or (head("transfer-encoding: chunked") + BAD_CHUNKS[name], 400)
    async with listening(Server("any", "1")) as where:
        reader, writer = await where.connect()
        writer.write(sent + HIDDEN)
        said = await reader.read()
        writer.close()
    assert len(re.findall(rb"^HTTP/1.1 \d", said, re.MULTILINE)) == 1, said
    assert b"connection: close" in said.lower()
    # A request whose chunks are bad may have been answered before they came.
    assert said.startswith(b"HTTP/1.1 %d " % status) or name in BAD_CHUNKS, said


# A request for HEAD that is refused, and the status. A field that is too long is 40,000 bytes of one.
REFUSED_HEADS: dict[str, tuple[bytes, int]] = {
    "a header without a colon": (head("content-length 5", start="HEAD / HTTP/1.1"), 400),
    "a length that is no number": (head("content-length: x", start="HEAD / HTTP/1.1"), 400),
    "behind a blank line": (b"\r\n" + head("content-length: x", start="HEAD / HTTP/1.1"), 400),
    "a version that is not served": (head(start="HEAD / HTTP/2.0"), 505),
    "an expectation that nobody meets": (head("expect: 200-ok", start="HEAD / HTTP/1.1"), 417),
    "a head that is too long": (head("x: " + 40_000 * "x", start="HEAD / HTTP/1.1"), 431),
    "a WebSocket": (head("connection: upgrade", "upgrade: websocket", start="HEAD / HTTP/1.1"), 400),
    "chunks that are bad": (head("transfer-encoding: chunked", start="HEAD / HTTP/1.1") + b"x\r\n", 400),
    "half a head that is never whole": (b"HEAD / HTTP/1.1\r\n", 408),
}


@for_each_row("name", REFUSED_HEADS)
@pytest.mark.anyio
async def test_the_refusal_of_a_head_request_has_no_body(name: str):
    sent, status = REFUSED_HEADS[name]
    async with listening(Server("any", "1", limits=Limits(header=0.2))) as where:
        reader, writer = await where.connect()
        writer.write(sent)
        said = await reader.read()
        writer.close()
    assert said.startswith(b"HTTP/1.1 %d " % status)
    assert said.endswith(b"\r\n\r\n") and said.count(b"\r\n\r\n") == 1, said


@pytest.mark.anyio
async def test_a_request_whose_rest_is_bad_gets_no_second_response():
    async with listening(Server("any", "1")) as where:
        reader, writer = await where.connect()
        writer.write(head("transfer-encoding: chunked"))
        said = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"no chunk\r\n")
        said += await reader.read()
        writer.close()
    assert said.startswith(b"HTTP/1.1 404 ") and said.count(b"HTTP/1.1") == 1, said


@pytest.mark.anyio
async def test_chunks_and_lengths_are_served_in_either_version():
    async with listening(Server("any", "1")) as where:
        for version, line, body in (
            ("1.1", "Transfer-Encoding: Chunked", CHUNKS),
            ("1.1", "content-length: 2", b"{}"),
            ("1.0", "content-length: 2", b"{}"),
        ):
            reader, writer = await where.connect()
            head = f"POST /nothing HTTP/{version}\r\nhost: localhost\r\nconnection: close\r\n{line}\r\n\r\n"
            writer.write(head.encode() + body)
            assert (await reader.read()).startswith(b"HTTP/1.1 404 ")
            writer.close()


TOKENS = st.text("abcXYZ019-_!", min_size=1, max_size=8)
VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20)
HEADERS = st.lists(st.tuples(TOKENS, VALUES), max_size=6)


@given(TOKENS, VALUES.filter(lambda value: "#" not in value), HEADERS)
def test_a_head_says_what_was_written(method: str, path: str, headers: list[tuple[str, str]]):
    target = "/" + path
    lines = [f"{name}:  {value} " for name, value in headers if name.lower() not in ("host", "expect")]
    read = read_head(head(*lines, start=f"{method} {target} HTTP/1.1"))
    assert (read.method, read.target.decode()) == (method, target)
    written = [(name.lower().encode(), value.encode()) for name, value in headers if name.lower() != "expect"]
    assert read.headers[1:] == written and read.headers[0] == (b"host", b"localhost")


@given(st.binary(max_size=80))
def test_any_bytes_are_a_head_or_refused(data: bytes):
    try:
        read = read_head(data + b"\r\n\r\n")
    except BadRequest as problem:
        assert problem.status in (400, 417, 431, 505)
    else:
        assert data.startswith(f"{read.method} ".encode() + read.target)


CODING = st.sampled_from(["transfer-encoding: chunked", "transfer-encoding: gzip", "content-length: 5", "x: y"])


@given(st.sampled_from(["1.0", "1.1"]), st.lists(CODING, max_size=4))
def test_what_passes_has_one_clear_end(version: str, lines: list[str]):
    try:
        read = read_head(head(*lines, start=f"POST / HTTP/{version}"))
    except BadRequest:
        return
    said = [line for line in lines if line != "x: y"]
    assert len(said) <= 1
    assert read.length == {"": 0, "content-length: 5": 5, "transfer-encoding: chunked": None}["".join(said)]


PARTS = st.lists(st.binary(min_size=1, max_size=30), max_size=6)
CUTS = st.lists(st.integers(1, 12), min_size=1, max_size=40)


@given(PARTS, st.sampled_from(["", ";a=b", ";"]), st.sampled_from([b"", b"x: y\r\n"]), CUTS)
def test_chunks_are_joined_wherever_they_are_cut(parts: list[bytes], extension: str, trailers: bytes, cuts: list[int]):
    data = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension.encode(), part) for part in parts)
    data += b"0\r\n" + trailers + b"\r\n" + HIDDEN
    body, joined, rest, at, turn = ChunkedBody(), b"", b"", 0, 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        piece, at, turn = data[at : at + size], at + size, turn + 1
        if body.is_complete:
            rest += piece
            continue
        part, left = body.feed(piece)
        joined, rest = joined + part, rest + left
    assert body.is_complete and joined == b"".join(parts) and rest == HIDDEN


@for_each_row("name", BAD_CHUNKS)
def test_bad_chunks_are_refused_wherever_they_are_cut(name: str):
    for size in range(1, len(BAD_CHUNKS[name])):
        body = ChunkedBody()
        with pytest.raises(BadRequest):
            for at in range(0, len(BAD_CHUNKS[name]), size):
                body.feed(BAD_CHUNKS[name][at : at + size])


def test_a_head_is_found_wherever_it_is_cut():
    whole = head("x: y") + b"body"
    for cut in range(1, len(whole)):
        seen = find_head_end(whole[:cut], 0)
        assert (seen or find_head_end(whole, cut)) == len(whole) - 4
