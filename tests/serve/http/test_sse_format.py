from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from defserve.serve.http.exchange import HEADERS, SSE_KEEP_ALIVE_COMMENT, format_sse_event
from tests.rows import for_each_row


def parsed(stream: bytes) -> list[dict[str, bytes]]:
    """A reader written after the rules of the WHATWG, of streams that are bytes rather than text."""
    events: list[dict[str, bytes]] = []
    fields: dict[str, bytes] = {}
    for line in re.split(rb"\r\n|\n|\r", stream):
        if not line:
            if "data" in fields:
                events.append({**fields, "data": fields["data"].removesuffix(b"\n")})
            fields = {}
        elif not line.startswith(b":"):
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            fields[name.decode()] = fields.get("data", b"") + value + b"\n" if name == b"data" else value
    return events


def test_a_message_is_one_line_of_data():
    assert format_sse_event(b'{"a":1}') == b'data: {"a":1}\n\n'


def test_the_other_fields_come_before_the_data():
    assert (
        format_sse_event(b"{}", id="7", retry=500, name="endpoint")
        == b"id: 7\nretry: 500\nevent: endpoint\ndata: {}\n\n"
    )


def test_a_priming_event_has_an_id_and_empty_data():
    assert parsed(format_sse_event(b"", id="1-0", retry=0)) == [{"id": b"1-0", "retry": b"0", "data": b""}]


@given(st.binary())
@example(b"a\nb\rc\r\nd\n")
@example(b"\n\ndata: forged\n\n")
@example(b"\r\revent: forged\r\r")
@example(b": no comment")
@example(b"  two blanks")
def test_any_bytes_arrive_as_one_event_with_lf_for_every_line_end(data: bytes):
    assert parsed(format_sse_event(data, id="1") + format_sse_event(b"next", id="2")) == [
        {"id": b"1", "data": re.sub(rb"\r\n|\r", b"\n", data)},
        {"id": b"2", "data": b"next"},
    ]


@for_each_row("text", ["a\nb", "a\rb", "a\0b", "\n"])
def test_an_id_or_a_name_that_would_end_its_line_is_refused(text: str):
    with pytest.raises(ValueError, match="one line"):
        format_sse_event(b"{}", id=text)
    with pytest.raises(ValueError, match="one line"):
        format_sse_event(b"{}", name=text)


def test_a_comment_is_skipped_by_readers_whatever_it_says():
    assert SSE_KEEP_ALIVE_COMMENT == b": keep-alive\n\n"
    assert parsed(SSE_KEEP_ALIVE_COMMENT + format_sse_event(b"{}") + SSE_KEEP_ALIVE_COMMENT) == [{"data": b"{}"}]


def test_proxies_are_told_to_pass_everything_on_at_once():
    headers = dict(HEADERS)
    assert headers[b"content-type"] == b"text/event-stream"
    assert headers[b"cache-control"] == b"no-cache, no-transform"
    assert headers[b"x-accel-buffering"] == b"no"
