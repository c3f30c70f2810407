from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.serve.http.request_heads import (
    RequestHeaders,
    accepts_media_type,
    decode_value,
    find_param_mismatch,
    find_routing_mismatch,
    is_json_content_type,
    prefers_event_stream,
    wants_html_page,
)
from tests.rows import for_each_row


def mismatch(
    headers: RequestHeaders,
    method: str,
    params: Mapping[str, Any],
    version: str,
    param_headers: Mapping[tuple[str, ...], str],
) -> str | None:
    return find_routing_mismatch(headers, method, params, version) or find_param_mismatch(
        headers, params, param_headers
    )


VERSION = "2026-07-28"
REGION = {("region",): "Mcp-Param-Region"}


def of(*pairs: tuple[str, str]) -> RequestHeaders:
    return RequestHeaders([(name.encode(), value.encode("latin-1")) for name, value in pairs])


def call(name: str = "add", *more: tuple[str, str]) -> RequestHeaders:
    return of(("mcp-protocol-version", VERSION), ("mcp-method", "tools/call"), ("mcp-name", name), *more)


def region(*values: str) -> RequestHeaders:
    return call("add", *(("mcp-param-region", value) for value in values))


def test_a_name_is_found_in_any_case():
    assert of(("Mcp-Name", "add")).get("mCP-nAME") == "add"


def test_a_header_that_did_not_come_is_none():
    assert of().get("host") is None
    assert of().all("host") == []


def test_blanks_around_a_value_are_taken_off_and_others_stay():
    assert of(("x", " \tone  two \t ")).get("x") == "one  two"
    assert of(("x", "\xa0one\x0b")).get("x") == "\xa0one\x0b"


def test_an_empty_value_is_not_a_missing_one():
    assert of(("x", "")).get("x") == ""
    assert of(("x", "")).all("x") == [""]


def test_a_header_that_came_twice_is_joined_by_a_comma():
    headers = of(("accept", "application/json "), ("host", "here"), ("Accept", " text/event-stream"))
    assert headers.get("accept") == "application/json, text/event-stream"
    assert headers.all("Accept") == ["application/json", "text/event-stream"]
    assert headers.all("host") == ["here"]


@for_each_row(
    ("accept", "media", "accepted"),
    [
        (None, "application/json", True),
        ("*/*", "application/json", True),
        ("application/*", "application/json", True),
        ("application/*", "text/event-stream", False),
        ("text/*", "text/event-stream", True),
        ("application/json, text/event-stream", "text/event-stream", True),
        ("Application/JSON", "application/json", True),
        ("application/json;charset=utf-8", "application/json", True),
        ("application/json ; q=0.5 , text/html", "application/json", True),
        ("application/json;q=0", "application/json", False),
        ("application/json;q=0.000", "application/json", False),
        ("application/json; Q=0", "application/json", False),
        ("*/*, application/json;q=0", "application/json", False),
        ("application/json;q=0, */*", "application/json", False),
        ("*/*;q=0, application/json", "application/json", True),
        ("application/*;q=0, */*", "text/event-stream", True),
        ("text/html", "application/json", False),
        ("application/jsonp", "application/json", False),
        ("*", "application/json", False),
        ("", "application/json", False),
    ],
)
def test_the_most_specific_range_of_an_accept_decides(accept: str | None, media: str, accepted: bool):
    assert accepts_media_type(accept, media) is accepted


@for_each_row(
    ("content_type", "json"),
    [
        ("application/json", True),
        ("Application/Json", True),
        ("application/json; charset=utf-8", True),
        ('application/json;charset="UTF-8"', True),
        ("application/json;", True),
        ("application/json; profile=x; charset=utf-8", True),
        ("application/json; charset=latin-1", False),
        ("application/json; charset=utf-8; charset=utf-16", False),
        ("application/json; nonsense", False),
        ("application/json; =x", False),
        ("application/json, text/plain", False),
        ("application/json; x=1, text/plain", False),
        ("text/plain; application/json", False),
        ("text/plain; x=application/json", False),
        ("application/json-patch+json", False),
        ("application/vnd.api+json", False),
        ("application/json\xa0", False),
        ("text/json", False),
        ("", False),
        (None, False),
    ],
)
def test_only_application_json_is_json(content_type: str | None, json: bool):
    assert is_json_content_type(content_type) is json


@for_each_row(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("=?base64?SGVsbG8=?=", "Hello"),
        ("=?base64?w6k=?=", "é"),
        ("=?base64??=", ""),
        ("SGVsbG8=?=", "SGVsbG8=?="),
        ("=?base64?SGVsbG8=", "=?base64?SGVsbG8="),
        ("=?BASE64?SGVsbG8=?=", "=?BASE64?SGVsbG8=?="),
        ("=?base64?=", "=?base64?="),
    ],
)
def test_a_value_is_decoded_only_when_it_is_wrapped_whole(value: str, text: str):
    assert decode_value(value) == text


@for_each_row(
    "payload",
    ["SGVsbG8", "SGVs!!!bG8=", "SGVsbG9=", "SGVs bG8=", "SGVsbG8==", "=", "A", "_-8=", "/w==", "SGVsbG8=SGVsbG8=", "é"],
    ids=["unpadded", "alphabet", "trailing bits", "blank", "too padded", "=", "A", "url-safe", "not utf-8", "two", "é"],
)
def test_what_is_wrapped_must_be_canonical_base64_of_utf8(payload: str):
    with pytest.raises(ValueError):
        decode_value(f"=?base64?{payload}?=")


@given(st.text())
def test_every_text_survives_its_wrapping(text: str):
    try:
        wrapped = base64.b64encode(text.encode()).decode()
    except UnicodeEncodeError:
        return
    assert decode_value(f"=?base64?{wrapped}?=") == text


def test_headers_that_repeat_the_body_are_in_order():
    assert mismatch(call(), "tools/call", {"name": "add"}, VERSION, {}) is None


@for_each_row(
    ("method", "params"),
    [
        ("prompts/get", {"name": "x:1"}),
        ("resources/read", {"uri": "x:1"}),
        ("tasks/get", {"taskId": "x:1"}),
        ("tasks/update", {"taskId": "x:1"}),
        ("tasks/cancel", {"taskId": "x:1"}),
    ],
)
def test_the_name_is_the_parameter_that_names_the_target(method: str, params: dict[str, Any]):
    def named(name: str) -> RequestHeaders:
        return of(("mcp-protocol-version", VERSION), ("mcp-method", method), ("mcp-name", name))

    assert mismatch(named("x:1"), method, params, VERSION, {}) is None
    assert (
        mismatch(named("x:2"), method, params, VERSION, {})
        == f"Mcp-Name header does not match params.{next(iter(params))}"
    )


@for_each_row(
    ("headers", "text"),
    [
        (of(("mcp-method", "tools/call"), ("mcp-name", "add")), "MCP-Protocol-Version header is missing"),
        (of(("mcp-protocol-version", VERSION), ("mcp-name", "add")), "Mcp-Method header is missing"),
        (of(("mcp-protocol-version", VERSION), ("mcp-method", "tools/call")), "Mcp-Name header is missing"),
        (call("sub"), "Mcp-Name header does not match params.name"),
        (call("ADD"), "Mcp-Name header does not match params.name"),
        (call("=?base64?YWRk?"), "Mcp-Name header does not match params.name"),
        (call("=?base64?YWR?="), "Mcp-Name header is not valid Base64 of UTF-8"),
        (call("add", ("mcp-name", "add")), "Mcp-Name header came more than once"),
        (call("add", ("mcp-method", "tools/call")), "Mcp-Method header came more than once"),
        (call("add", ("mcp-protocol-version", VERSION)), "MCP-Protocol-Version header came more than once"),
        (
            of(("mcp-protocol-version", VERSION), ("mcp-method", "TOOLS/call"), ("mcp-name", "add")),
            "Mcp-Method header does not match the method",
        ),
        (
            of(("mcp-protocol-version", "2025-11-25"), ("mcp-method", "tools/call"), ("mcp-name", "add")),
            "MCP-Protocol-Version header does not match the version in params._meta",
        ),
    ],
)
def test_headers_that_disagree_with_the_body_are_refused_by_name(headers: RequestHeaders, text: str):
    assert mismatch(headers, "tools/call", {"name": "add"}, VERSION, {}) == text


def test_a_wrapped_name_and_blanks_behind_it_are_read():
    assert mismatch(call("=?base64?YWRk?=  "), "tools/call", {"name": "add"}, VERSION, {}) is None


def test_two_headers_do_not_add_up_to_a_name_with_a_comma():
    headers = call("a", ("mcp-name", "b"))
    assert mismatch(headers, "tools/call", {"name": "a, b"}, VERSION, {}) == "Mcp-Name header came more than once"


def test_a_method_without_a_target_needs_no_name():
    headers = of(("mcp-protocol-version", VERSION), ("mcp-method", "tools/list"))
    assert find_routing_mismatch(headers, "tools/list", {}, VERSION) is None


def test_a_call_that_names_nothing_at_all_is_left_to_the_check_of_its_parameters():
    headers = of(("mcp-protocol-version", VERSION), ("mcp-method", "tools/call"))
    assert find_routing_mismatch(headers, "tools/call", {}, VERSION) is None
    assert find_routing_mismatch(call("add"), "tools/call", {}, VERSION) == (
        "Mcp-Name header has no counterpart, since params.name has no such value"
    )


@for_each_row(
    ("value", "header"),
    [
        ("eu", "eu"),
        ("Hello", "=?base64?SGVsbG8=?="),
        ("=?base64?SGVsbG8=?=", "=?base64?PT9iYXNlNjQ/U0dWc2JHOD0/PQ==?="),
        ("", ""),
        ("42", "42"),
        (True, "true"),
        (False, "false"),
        (42, "42"),
        (42, "42.0"),
        (42.0, "42"),
        (-7, "-7.00"),
        (0, "-0"),
        (2**53 - 1, "9007199254740991"),
    ],
)
def test_an_argument_and_its_header_agree(value: Any, header: str):
    assert find_param_mismatch(region(header), {"arguments": {"region": value}}, REGION) is None


@for_each_row(
    ("value", "header"),
    [
        ("eu", "us"),
        ("eu", "EU"),
        ("42", "42.0"),
        (True, "True"),
        (True, "1"),
        (False, ""),
        (1, "true"),
        (42, "43"),
        (42, "42.5"),
        (42, "4.2e1"),
        (42, "+42"),
        (42, "٤٢"),
        (42, "42."),
        (42, ""),
        (42, "4" * 5000),
        (1.5, "1"),
    ],
)
def test_an_argument_and_its_header_disagree(value: Any, header: str):
    wrapped = base64.b64encode(header.encode()).decode()
    found = find_param_mismatch(region(f"=?base64?{wrapped}?="), {"arguments": {"region": value}}, REGION)
    assert found == "Mcp-Param-Region header does not match params.arguments.region"


@for_each_row("value", ["eu", "", 0, False])
def test_an_argument_without_its_header_is_refused(value: Any):
    assert find_param_mismatch(call(), {"arguments": {"region": value}}, REGION) == "Mcp-Param-Region header is missing"


@for_each_row("params", [{}, {"arguments": None}, {"arguments": {}}, {"arguments": {"region": None}}])
def test_a_header_without_its_argument_is_refused_and_neither_is_in_order(params: dict[str, Any]):
    text = "Mcp-Param-Region header has no counterpart, since params.arguments.region has no such value"
    assert find_param_mismatch(region("eu"), params, REGION) == text
    assert find_param_mismatch(call(), params, REGION) is None


def test_an_integer_that_a_double_cannot_hold_is_refused_with_and_without_its_header():
    text = "Mcp-Param-Region header cannot carry params.arguments.region: it is beyond ±(2^53-1)"
    for headers in (call(), region(str(2**53))):
        assert find_param_mismatch(headers, {"arguments": {"region": 2**53}}, REGION) == text


def test_a_parameter_header_that_came_twice_is_refused_even_when_both_agree():
    found = find_param_mismatch(region("eu", "eu"), {"arguments": {"region": "eu"}}, REGION)
    assert found == "Mcp-Param-Region header came more than once"


def test_an_argument_inside_an_object_is_reached_by_its_path():
    headers: Mapping[tuple[str, ...], str] = {("where", "region"): "Mcp-Param-Region"}
    assert find_param_mismatch(region("eu"), {"arguments": {"where": {"region": "eu"}}}, headers) is None
    assert find_param_mismatch(region("eu"), {"arguments": {"where": ["region"]}}, headers) is not None


def test_a_parameter_header_nobody_declared_is_ignored():
    assert mismatch(region("eu"), "tools/call", {"name": "add", "arguments": {"region": "us"}}, VERSION, {}) is None


@for_each_row(
    ("accept", "events"),
    [
        ("application/json, text/event-stream", False),
        ("text/event-stream, application/json", True),
        ("TEXT/EVENT-STREAM;q=0.9 ,application/json", True),
        ("text/event-stream", False),
        ("*/*", False),
        (None, False),
    ],
)
def test_a_client_that_names_events_first_prefers_them(accept: str | None, events: bool):
    assert prefers_event_stream(accept) is events


@for_each_row(
    ("accept", "page"),
    [
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", True),
        ("text/html", True),
        (" TEXT/HTML ; q=0.1 , */*", True),
        ("application/json;q=0.5, text/html;q=0.5", True),
        ("text/html, text/event-stream;q=0", True),
        ("text/html;level=1;q=.3, application/json;q=0.2", True),
        ("text/html;q=nonsense", True),
        ("text/html;q=0", False),
        ("text/html;q=0.000, */*", False),
        ("text/html, text/event-stream", False),
        ("text/html, text/event-stream;q=0.001", False),
        ("application/json, text/html;q=0.9", False),
        ("text/htmlx", False),
        ("x-text/html", False),
        ("application/json;x=text/html", False),
        ("text/*", False),
        ("*/*", False),
        ("", False),
        (None, False),
    ],
)
def test_a_browser_asks_for_html_by_name_and_for_nothing_that_clients_ask_for(accept: str | None, page: bool):
    assert wants_html_page(accept) is page


@given(st.text())
def test_who_takes_events_gets_no_page_whatever_else_it_says(more: str):
    assert not wants_html_page(f"text/html, text/event-stream, {more}")
    assert wants_html_page(more) <= ("text/html" in more.lower())
