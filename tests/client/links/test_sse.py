from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.client.links.event_streams import SseEvent, SseParser
from defserve.errors import PeerError
from tests.rows import for_each_row


def events(*chunks: bytes, limit: int = 1_000) -> list[tuple[str, bytes]]:
    stream = SseParser(limit)
    return [(event.kind, event.data) for chunk in chunks for event in stream.feed(chunk)]


def test_an_event_ends_with_an_empty_line():
    assert events(b"data: a\n", b"\n", b"data: b\n") == [("message", b"a")]


def test_lines_of_data_are_joined():
    assert events(b"data: {\ndata:  1\ndata\ndata:}\n\n") == [("message", b"{\n 1\n\n}")]


def test_an_event_has_a_kind_of_its_own_and_the_next_has_not():
    assert events(b"event: ping\ndata: 1\n\ndata: 2\n\n") == [("ping", b"1"), ("message", b"2")]


def test_comments_unknown_fields_and_events_without_data_are_skipped():
    assert events(b": hello\n\nfoo: bar\nevent: x\n\n:\ndata: 1\n: again\n\n") == [("message", b"1")]


@for_each_row("end", [b"\n", b"\r\n", b"\r"])
def test_every_end_of_line_is_known(end: bytes):
    assert events(end.join([b"data: 1", b"data: 2", b"", b"data: 3", b"", b""])) == [
        ("message", b"1\n2"),
        ("message", b"3"),
    ]


def test_a_line_separator_inside_the_data_is_no_end_of_line():
    text = "a\u2028b\u0085c\x0bd\x0ce".encode()
    assert events(b"data: " + text + b"\n\n") == [("message", text)]


def test_a_byte_order_mark_is_dropped_at_the_start_alone():
    assert events(b"\xef\xbb\xbfdata: 1\n\ndata: \xef\xbb\xbf2\n\n") == [
        ("message", b"1"),
        ("message", b"\xef\xbb\xbf2"),
    ]


def test_one_blank_after_the_colon_is_no_data():
    assert events(b"data:1\n\ndata: 2\n\ndata:  3\n\n") == [("message", b"1"), ("message", b"2"), ("message", b" 3")]


def test_the_last_id_is_that_of_the_last_whole_event():
    stream = SseParser(1_000)
    stream.feed(b"id: 1\ndata: a\n\n")
    assert stream.last_id == "1"
    stream.feed(b"id: 2\ndata: b\n")
    assert stream.last_id == "1"
    stream.feed(b"\ndata: c\n\n")
    assert stream.last_id == "2"


def test_an_event_without_data_has_an_id_too():
    stream = SseParser(1_000)
    assert stream.feed(b"id: 1\ndata:\n\n") == []
    assert stream.last_id == "1"


def test_an_id_with_a_null_is_ignored_and_an_empty_one_resets():
    stream = SseParser(1_000)
    stream.feed(b"id: 1\n\nid: 2\x00\n\n")
    assert stream.last_id == "1"
    stream.feed(b"id\n\n")
    assert stream.last_id == ""


@for_each_row("id", ["\xe9".encode(), b"\xff", b"a\x07b", b"a" * 5_000])
def test_an_id_that_no_header_can_carry_is_none(id: bytes):
    stream = SseParser(10_000)
    assert stream.feed(b"id: 1\n\nid: " + id + b"\ndata: x\n\n") == [SseEvent("message", b"x")]
    assert stream.last_id == ""


def test_retry_is_in_milliseconds_and_nonsense_is_ignored():
    stream = SseParser(1_000)
    for line in (b"retry: 1500", b"retry: soon", b"retry: -1", b"retry: 1_0", b"retry: 99999999999999999999"):
        stream.feed(line + b"\n\n")
    assert stream.retry == 1.5


def test_half_an_event_is_forgotten_on_a_new_connection():
    stream = SseParser(1_000)
    stream.feed(b"retry: 10\nid: 1\ndata: a\n\nid: 2\nevent: x\ndata: {cut")
    stream.restart()
    assert [(event.kind, event.data) for event in stream.feed(b"data: b\n\n")] == [("message", b"b")]
    assert (stream.last_id, stream.retry) == ("1", 0.01)


@for_each_row("endless", [b"data: " + b"x" * 99, b"data: x\n", b"x", b": x"])
def test_an_event_that_does_not_end_is_given_up(endless: bytes):
    stream = SseParser(100)
    with pytest.raises(PeerError, match="more than 100 bytes"):
        for _ in range(1_000):
            stream.feed(endless)


@for_each_row("line", [b"data:xy\n", b"data\n", b"data:" + b"x" * 100 + b"\n"])
def test_an_event_of_many_lines_takes_no_more_than_its_bytes(line: bytes):
    parser = SseParser(1_000_000)
    tracemalloc.start()
    with pytest.raises(PeerError, match="more than 1000000 bytes"):
        for _ in range(1_000_000 // len(line)):
            parser.feed(line * 10)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_500_000


def test_many_short_events_and_comments_are_no_long_event():
    assert len(events(*[b"data: 0123456789\n\n"] * 100, *[b": alive\n"] * 100, limit=100)) == 100


LINES = st.sampled_from(
    [b"data: 1", b"data", b"id: 7", b"event: e", b": c", b"retry: 5", b"", b"x", b"\xef\xbb\xbfdata: 2"]
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])


@given(st.lists(st.tuples(LINES, ENDS), max_size=30), st.data())
def test_where_the_chunks_are_cut_makes_no_difference(lines: list[tuple[bytes, bytes]], data: st.DataObject):
    text = b"".join(line + end for line, end in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    chunks = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert events(*chunks) == events(text)
    assert events(*(bytes([byte]) for byte in text)) == events(text)


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_any_bytes_are_events_or_none(chunks: list[bytes]):
    assert all(data for _, data in events(*chunks, limit=10_000))
