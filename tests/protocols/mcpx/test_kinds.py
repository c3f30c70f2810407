"""The grammar of kinds: every kind of the spec, and any text at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.protocols.mcpx.envelope import (
    MessageKind,
    is_gateway_only_kind,
    make_message_kind,
    parse_kind,
    qualify_kind,
)
from tests.rows import for_each_row

pytestmark = pytest.mark.req("MCPX-3.0k")

part = st.text(st.characters(exclude_characters=":"), min_size=1)
context = st.text(min_size=1)


@for_each_row(
    ("text", "kind"),
    [
        ("chat", MessageKind("chat")),
        ("system/welcome", MessageKind("system/welcome")),
        ("mcp/request:tools/call", MessageKind("mcp/request", "tools/call")),
        ("mcp/proposal:tools/call:rm", MessageKind("mcp/proposal", "tools/call", "rm")),
        ("mcp/request:resources/read:file:///a:b", MessageKind("mcp/request", "resources/read", "file:///a:b")),
    ],
)
def test_a_kind_has_up_to_three_parts_and_only_the_last_may_hold_colons(text: str, kind: MessageKind):
    assert parse_kind(text) == kind and str(kind) == text


@for_each_row("text", ["", ":", "mcp/request:", ":tools/call", "mcp/request::x", "mcp/request:tools/call:"])
def test_a_kind_with_an_empty_part_is_none(text: str):
    assert parse_kind(text) is None


@given(base=part, method=part, context=context)
def test_parts_survive_being_written_and_read(base: str, method: str, context: str):
    for kind in (MessageKind(base), MessageKind(base, method), MessageKind(base, method, context)):
        assert parse_kind(str(kind)) == kind


@given(st.text())
def test_any_text_is_read_and_written_back_as_it_was(text: str):
    kind = parse_kind(text)
    assert kind is None or str(kind) == text


@for_each_row(
    ("method", "params", "kind"),
    [
        ("tools/call", {"name": "add"}, "mcp/request:tools/call:add"),
        ("resources/read", {"uri": "a://b:c"}, "mcp/request:resources/read:a://b:c"),
        ("prompts/get", {"name": "p"}, "mcp/request:prompts/get:p"),
        ("tools/list", {"name": "not a context"}, "mcp/request:tools/list"),
        ("tools/call", {"name": 3}, "mcp/request:tools/call"),
    ],
)
def test_the_context_of_a_request_comes_from_its_params(method: str, params: dict[str, object], kind: str):
    assert make_message_kind("mcp/request", method, params) == kind


@pytest.mark.req("MCPX-4.1s")
@for_each_row("kind", ["system/welcome", "system/anything", "system/", "system", "presence", "system:x"])
def test_what_only_a_gateway_may_say_is_reserved(kind: str):
    assert is_gateway_only_kind(kind)


@for_each_row("kind", ["chat", "systemic", "mcp/request:system/x", "presence2"])
def test_other_kinds_are_not_reserved(kind: str):
    assert not is_gateway_only_kind(kind)


def test_bare_kinds_of_the_gateway_get_the_name_of_what_they_hold():
    assert qualify_kind("presence", {"event": "join"}) == "system/presence"
    assert qualify_kind("system", {"you": {}}) == "system/welcome"
    assert qualify_kind("system", {"error": "x"}) == "system/error"
    assert qualify_kind("chat", {"error": "x"}) == "chat"


def test_a_context_too_long_for_a_kind_is_left_out():
    assert make_message_kind("mcp/request", "resources/read", {"uri": "a" * 3_000}) == "mcp/request:resources/read"
