"""KnownHeads that are known: one that is not the same, byte for byte, is none of them."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from defserve.serve.http1.request import (
    MAX_KNOWN_HEAD_BYTES,
    MAX_KNOWN_HEAD_FIELDS,
    MAX_KNOWN_HEADS_BYTES,
    NO_KNOWN_HEAD,
    CachedRequestHead,
    RequestHeadCache,
)
from tests.rows import for_each_row

BODY = b'{"jsonrpc":"2.0"}'


def a_request(*lines: str, body: bytes = BODY, length: object = None, verb: str = "POST / HTTP/1.1") -> bytes:
    said = len(body) if length is None else length
    return "\r\n".join([verb, "Host: a", f"Content-Length: {said}", *lines, "", ""]).encode() + body


def scope_of(data: bytes, http_version: str = "1.1") -> dict[str, Any]:
    lines = data.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    own = {"client": ("::1", 5), "server": ("::1", 80), "scheme": "http", "state": {"a": "connection"}}
    method, path, _ = data.decode().split(" ", 2)
    return {"type": "http", "http_version": http_version, "method": method, "path": path, "headers": headers, **own}


def taught(*requests: bytes) -> tuple[RequestHeadCache, list[CachedRequestHead | None]]:
    heads = RequestHeadCache()
    return heads, [heads.add_head(data, scope_of(data)) for data in requests]


def test_a_head_that_was_learnt_is_found_with_the_body_of_the_new_request():
    heads, (learnt,) = taught(a_request("Accept: x"))
    assert learnt is not None
    body = b"another one, much longer"
    assert heads.find(a_request("Accept: x", body=body)) == (learnt, b"24", body)


def test_what_is_known_of_a_head_is_nothing_of_its_connection():
    _, (learnt,) = taught(a_request())
    assert learnt is not None
    assert {*learnt.scope} == {"type", "http_version", "method", "path"}


def test_the_headers_say_how_long_the_body_is_this_time_and_are_each_requests_own():
    _, (learnt,) = taught(a_request("Accept: x"))
    assert learnt is not None
    headers = learnt.make_scope(b"5")["headers"]
    assert headers == [(b"host", b"a"), (b"content-length", b"5"), (b"accept", b"x")]
    headers.clear()
    assert learnt.make_scope(b"17")["headers"] == [(b"host", b"a"), (b"content-length", b"17"), (b"accept", b"x")]


def test_nothing_is_known_at_first():
    assert RequestHeadCache().find(a_request()) == (None, b"%d" % len(BODY), BODY)


@for_each_row(
    "other",
    [
        a_request("Accept: y"),
        a_request("accept: x"),
        a_request("Accept: x", "Accept: x"),
        a_request("Accept: x", verb="GET / HTTP/1.1"),
        a_request("Accept: x", verb="POST / HTTP/1.0"),
        a_request("Accept: x").replace(b"Host: a", b"Host: b"),
        b"\r\n" + a_request("Accept: x"),
        a_request("Accept: x").replace(b"\r\n", b"\n"),
    ],
)
def test_any_other_byte_makes_another_head(other: bytes):
    heads, _ = taught(a_request("Accept: x"))
    assert heads.find(other)[0] is None


@for_each_row("length", [0, 1, 16, 18, 170, "017", "+17", "17 ", "0x11", "17, 17", "-17", "1_7", "¹⁷", ""])
def test_a_number_that_is_not_that_of_the_bytes_there_is_left_to_the_parser(length: object):
    heads, _ = taught(a_request())
    assert heads.find(a_request(length=length)) == NO_KNOWN_HEAD


def test_what_is_more_or_less_than_one_request_is_left_to_the_parser():
    heads, (learnt,) = taught(a_request())
    whole = a_request()
    assert heads.find(whole)[0] is learnt
    assert all(heads.find(whole[:cut])[0] is None for cut in range(len(whole)))
    assert heads.find(whole + b"x")[0] is None
    assert heads.find(whole + whole)[0] is None


@for_each_row(
    "data",
    [
        a_request("Transfer-Encoding: chunked"),
        a_request("Upgrade: h2c"),
        a_request("Expect: 100-continue"),
        a_request("Content-Length: 17"),
        a_request("Accept: " + MAX_KNOWN_HEAD_BYTES * "x"),
        a_request().replace(b"Content-Length", b"X-Length: 17\r\nContent-Length"),
        a_request().replace(b"Content-Length: ", b"Content-Length:"),
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        a_request(verb="HEAD / HTTP/1.1", body=b""),
        a_request(verb="GET / HTTP/1.1"),
        a_request(verb="POST http://a/ HTTP/1.1"),
    ],
)
def test_a_head_that_does_not_say_all_or_says_it_otherwise_is_not_learnt(data: bytes):
    heads, learnt = taught(data)
    assert learnt == [None]
    assert heads.find(data)[0] is None


def test_the_old_version_of_http_is_not_learnt():
    assert RequestHeadCache().add_head(a_request(), scope_of(a_request(), "1.0")) is None


def test_too_many_are_forgotten_and_learnt_anew():
    heads = RequestHeadCache()
    for number in range(MAX_KNOWN_HEADS_BYTES // 2000):
        heads.add_head(data := a_request(f"X: {number}"), scope_of(data))
        assert heads.find(data)[0] is not None
    assert heads.find(a_request("X: 0"))[0] is None


@pytest.mark.parametrize("fields", [1, 20, MAX_KNOWN_HEAD_FIELDS - 5])
def test_known_heads_take_little_memory_however_large_they_are(fields: int):
    heads, size = RequestHeadCache(), 3_500 // fields - 10
    tracemalloc.start()
    try:
        for number in range(1_500):
            data = a_request(f"X: {number}", *(f"X-{field}: {size * 'x'}" for field in range(fields)))
            assert heads.add_head(data, scope_of(data)) is not None
        assert tracemalloc.get_traced_memory()[1] < 1.2 * MAX_KNOWN_HEADS_BYTES
    finally:
        tracemalloc.stop()


def test_a_head_of_very_many_fields_is_not_learnt():
    data = a_request(*(f"X{number}:" for number in range(MAX_KNOWN_HEAD_FIELDS)))
    assert RequestHeadCache().add_head(data, scope_of(data)) is None


@given(st.data(), st.binary(max_size=40))
@example(None, b"")
def test_whatever_is_found_has_the_bytes_of_what_was_learnt(data: Any, body: bytes):
    known = a_request("Accept: x")
    heads, (learnt,) = taught(known)
    sent = a_request("Accept: x", body=body)
    if data is not None:
        start = data.draw(st.integers(0, len(sent)))
        end = data.draw(st.integers(start, min(len(sent), start + 12)))
        sent = sent[:start] + data.draw(st.binary(max_size=12)) + sent[end:]
    head, _, found = heads.find(sent)
    assert learnt is not None and learnt.match(sent) == (NO_KNOWN_HEAD if head is None else heads.find(sent))
    if head is not None:
        assert head is learnt
        before, _, after = known.partition(b"17")
        assert sent == before + b"%d" % len(found) + after.removesuffix(BODY) + found
