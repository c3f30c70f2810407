from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.base.http_connection import (
    MAX_LINE_LENGTH,
    MAX_RESPONSE_HEAD_BYTES,
    BrokenHttpConnection,
    ResponseFraming,
)
from tests.rows import for_each_row


def cut(data: bytes, *, ends: bool = False, places: list[int] | None = None) -> tuple[bytes, ResponseFraming]:
    """The body of a response that comes in pieces."""
    framing, body, at = ResponseFraming(), b"", 0
    for place in (*sorted(places or ()), len(data)):
        if not framing.over and place > at:
            body += framing.feed(data[at:place])
        at = max(at, place)
    if ends:
        framing.end()
    return body, framing


def chunked(*parts: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part) + end


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


@given(st.lists(st.binary(max_size=40), max_size=4), st.sampled_from(("length", "chunked", "end")), st.data())
def test_a_body_is_the_same_in_whatever_pieces_it_comes(parts: list[bytes], way: str, data: st.DataObject):
    body = b"".join(parts)
    whole = {
        "length": HEAD + b"content-length: %d\r\n\r\n" % len(body) + body,
        "chunked": HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(*parts),
        "end": HEAD + b"\r\n" + body,
    }[way]
    whole = data.draw(st.sampled_from((b"", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"))) + whole
    places = data.draw(st.lists(st.integers(0, len(whole)), max_size=8))
    found, framing = cut(whole, ends=way == "end", places=places)
    assert (found, framing.over, framing.reusable) == (body, True, way != "end")
    assert framing.head is not None
    assert framing.head.headers["content-type"] == "application/json"


@given(
    st.binary(max_size=200), st.sampled_from((b"", HEAD, HEAD + b"\r\n", HEAD + b"transfer-encoding: chunked\r\n\r\n"))
)
def test_whatever_comes_is_read_or_refused(noise: bytes, before: bytes):
    try:
        cut(before + noise, ends=True, places=[len(before)])
    except BrokenHttpConnection:
        pass


@for_each_row(
    "response",
    [
        b"HTTP/1.1 200 OK\ncontent-length: 2\n\nok",
        b"HTTP/1.1 200\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length:2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2;name=value\r\nok\r\n00\r\ntrailer: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\nok\n0\n\n",
    ],
)
def test_what_servers_write_is_read(response: bytes):
    for places in ([], list(range(len(response)))):
        body, framing = cut(response, places=places)
        assert (body, framing.over, framing.reusable) == (b"ok", True, True)


@for_each_row(
    "response",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: line\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nname : x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nname: x\x00y\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nname: x\ry: z\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2, 3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: \xb2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-2\r\nok\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0x2\r\nok\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\r\nok\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nokay\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffffff\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 5_000,
    ],
)
def test_what_is_not_http_is_refused(response: bytes):
    with pytest.raises(BrokenHttpConnection):
        cut(response)


@for_each_row(("size", "count"), [(1, 4_000), (20, 20_000)])
def test_many_chunks_are_a_body_as_any_other(size: int, count: int):
    head = HEAD + b"transfer-encoding: chunked\r\n\r\n"
    assert cut(head + chunked(*[b"x" * size] * count))[0] == b"x" * size * count


@for_each_row(
    ("endless", "again"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"),
        (b"HTTP/1.1 200 OK\r\nx: ", b"y"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n2", b"0"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n2;", b"x"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\nx: ", b"y"),
    ],
)
def test_what_brings_no_body_is_bounded(endless: bytes, again: bytes):
    times = 2 * MAX_RESPONSE_HEAD_BYTES // len(again)
    for data, places in (
        (endless + again * times, []),
        (endless + again * times, list(range(0, MAX_RESPONSE_HEAD_BYTES * 2, 1000))),
    ):
        with pytest.raises(BrokenHttpConnection):
            cut(data, places=places)
    assert MAX_LINE_LENGTH < MAX_RESPONSE_HEAD_BYTES


@for_each_row("status", [204, 304])
def test_a_status_that_has_no_body_has_none_whatever_its_headers_say(status: int):
    for header in (b"content-length: 5", b"transfer-encoding: chunked", b"x: y"):
        body, framing = cut(b"HTTP/1.1 %d X\r\n%b\r\n\r\n" % (status, header))
        assert (body, framing.over) == (b"", True)


@for_each_row(
    "response",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nConnection: Keep-Alive, Close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n",
        HEAD + b"transfer-encoding: chunked\r\ncontent-length: 50\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ],
)
def test_a_connection_whose_next_bytes_are_not_clear_is_not_used_again(response: bytes):
    body, framing = cut(response)
    assert (body, framing.over, framing.reusable) == (b"ok", True, False)


@for_each_row(
    "response",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        HEAD + b"content-length: 5\r\n\r\nok",
        HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n",
    ],
)
def test_a_response_that_is_cut_off_is_not_taken_for_whole(response: bytes):
    with pytest.raises(BrokenHttpConnection, match="closed the connection"):
        cut(response, ends=True)
