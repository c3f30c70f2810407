from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.binding.content import Audio, Embedded, File, Image, Link, Text
from defserve.errors import InvalidParams, UsageError
from defserve.protocols.mcpl.content import encode_mcpl_content, format_author_datetime, read_mcpl_content
from tests.protocols.mcpl.appendix_b import CONTENT_BLOCK, validate
from tests.rows import for_each_row

PNG = b"\x89PNG\r\n\x1a\n..."
pytestmark = pytest.mark.req("MCPL-10.3")

SENT: list[tuple[Any, dict[str, Any]]] = [
    ("hi", {"type": "text", "text": "hi"}),
    (Text("hi", annotations={"priority": 1}), {"type": "text", "text": "hi"}),
    (Image(PNG), {"type": "image", "data": "iVBORw0KGgouLi4=", "mimeType": "image/png"}),
    (Audio(b"..", format="mp3"), {"type": "audio", "data": "Li4=", "mimeType": "audio/mpeg"}),
    (Link("memory://facts/12345"), {"type": "resource", "uri": "memory://facts/12345"}),
    (Link("cat.png", mime_type="image/png"), {"type": "image", "uri": "cat.png"}),
    (Embedded("a://b", text="inside"), {"type": "text", "text": "inside"}),
    (File(data=PNG, name="cat.png"), {"type": "image", "data": "iVBORw0KGgouLi4=", "mimeType": "image/png"}),
    ({"type": "text", "text": "hi", "annotations": {}}, {"type": "text", "text": "hi"}),
    ({"type": "audio", "uri": "a://b", "mimeType": "audio/ogg"}, {"type": "audio", "uri": "a://b"}),
    (
        {"type": "image", "data": "Li4=", "mimeType": "image/png", "uri": "a://b"},
        {"type": "image", "data": "Li4=", "mimeType": "image/png"},
    ),
    ({"type": "resource", "uri": "a://b"}, {"type": "resource", "uri": "a://b"}),
]


@pytest.mark.req("MCPL-B")
@for_each_row(("given_value", "block"), SENT, ids=str)
def test_what_an_author_gives_becomes_one_of_four_kinds(given_value: Any, block: dict[str, Any]):
    assert encode_mcpl_content(given_value) == [block]
    validate(block, CONTENT_BLOCK)


def test_several_parts_keep_their_order():
    assert encode_mcpl_content(["a", Text("b"), {"type": "text", "text": "c"}]) == [
        {"type": "text", "text": t} for t in "abc"
    ]
    assert encode_mcpl_content([]) == []


@for_each_row(
    "wrong",
    [
        File(data=b"\x00%PDF", name="report.pdf"),
        {"type": "video", "uri": "a://b"},
        {"type": "text"},
        {"type": "image", "data": "Li4="},
        {},
        42,
        None,
    ],
    ids=str,
)
def test_what_no_block_can_hold_is_refused(wrong: Any):
    with pytest.raises(UsageError, match="fix: "):
        encode_mcpl_content(wrong)


def test_a_string_is_one_text():
    assert read_mcpl_content("hi") == [Text("hi")]


def test_what_a_host_sends_becomes_parts():
    sent = [
        {"type": "text", "text": "hi", "unknown": 1},
        {"type": "image", "data": "iVBORw0KGgouLi4=", "mimeType": "image/png"},
        {"type": "audio", "uri": "a://b"},
        {"type": "resource", "uri": "a://c"},
        {"type": "hologram"},
    ]
    assert read_mcpl_content(sent) == [
        Text("hi"),
        Image(PNG),
        Link("a://b", mime_type="audio/*"),
        Link("a://c"),
        Text("[content of type hologram]"),
    ]


@for_each_row(
    ("wrong", "words"),
    [
        (None, "must be a string or a list"),
        ({"type": "text", "text": "alone"}, "must be a string or a list"),
        (["hi"], "must be an object with a type"),
        ([{"text": "hi"}], "must be an object with a type"),
        ([{"type": "text", "text": 1}], "type text needs text"),
        ([{"type": "image", "data": "x"}], "type image needs data and mimeType or uri"),
        ([{"type": "image", "data": "?", "mimeType": "image/png"}], "image: "),
        ([{"type": "image", "data": "Li4=", "mimeType": "application/pdf"}], "cannot hold application/pdf"),
    ],
    ids=str,
)
def test_broken_blocks_are_named(wrong: Any, words: str):
    with pytest.raises(InvalidParams, match=words):
        read_mcpl_content(wrong)


@given(
    st.lists(
        st.one_of(
            st.text().map(Text),
            st.binary().map(lambda data: Image(data, format="png")),
            st.binary().map(lambda data: Audio(data, format="ogg")),
            st.text(min_size=1).map(Link),
            st.text(min_size=1).map(lambda uri: Link(uri, mime_type="image/*")),
        )
    )
)
def test_what_is_sent_is_read_back(parts: list[Any]):
    sent = encode_mcpl_content(parts)
    for block in sent:
        validate(block, CONTENT_BLOCK)
    assert read_mcpl_content(sent) == parts


def test_the_schema_itself_refuses_mcps_shapes():
    with pytest.raises(jsonschema.ValidationError):
        validate({"type": "resource", "resource": {"uri": "a://b", "text": "x"}}, CONTENT_BLOCK)


@for_each_row("when", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"])
def test_a_time_that_has_no_year_in_utc_is_refused(when: str):
    with pytest.raises(UsageError, match="in no year"):
        format_author_datetime(when)
