"""What a view may reach: origins and nothing else, whoever wrote them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve import UsageError
from defserve.protocols.mcp.app_policy import (
    MAX_ORIGINS,
    build_content_security_policy,
    encode_app_permissions,
    encode_csp,
    is_origin,
    list_allowed_browser_features,
)
from tests.effort import cpu_within
from tests.rows import for_each_row

NOTHING = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self'; media-src 'self' data:; connect-src 'none'; frame-src 'none'; base-uri 'self'; "
    "object-src 'none'; form-action 'none'"
)
GOOD = ["https://a.example.com", "https://*.example.com", "wss://a.example:8443", "http://127.0.0.1:80", "HTTPS://A.b"]
BAD = [
    "*", "https:", "https://", "https://*", "https://*.com", "https://a.com/path", "https://a.com/", "a.com", "data:",
    "https://a.com; script-src *", "https://a.com\n", "https://a.com https://b.com", "'unsafe-eval'", "'self'", "blob:",
    "https://a.com,https://b.com", "https://a..com", "https://-a.com", "https://a.com:*", "https://bücher.example",
    "https://a.com:123456", "javascript://a.com", "https://user@a.com", "https://\u212a.com", "", None, 7, ["https://a.com"],
]  # fmt: skip


@for_each_row("origin", GOOD)
def test_an_origin_is_a_scheme_and_a_host(origin: str):
    assert is_origin(origin)
    assert encode_csp({"connect": [origin]}, "app", "a.py:1") == {"connectDomains": [origin]}


@for_each_row("origin", BAD)
def test_what_is_not_an_origin_is_refused_from_authors_and_left_out_for_hosts(origin: object):
    assert not is_origin(origin)
    with pytest.raises(UsageError, match="not an origin"):
        encode_csp({"resource": [origin]}, "app", "a.py:1")
    assert (
        build_content_security_policy(
            {"connectDomains": [origin], "resourceDomains": [origin], "frameDomains": [origin]}
        )
        == NOTHING
    )


def test_a_long_text_is_judged_at_once():
    assert not is_origin("https://" + "a-" * 1_000_000) and not is_origin("https://" + "a-" * 140)
    assert cpu_within(2, lambda: is_origin("https://" + "a-" * 1_000_000))
    assert cpu_within(2, lambda: is_origin("https://" + "a-" * 140))


@for_each_row("csp", [None, {}, [], "connectDomains", {"connectDomains": "https://a.com"}, {"connectDomains": {}}])
def test_a_view_that_names_nothing_has_no_network(csp: object):
    assert build_content_security_policy(csp) == NOTHING


def test_each_list_becomes_its_directives():
    named = {
        f"{kind}Domains": [f"https://{kind.lower()}.example"] for kind in ("connect", "resource", "frame", "baseUri")
    }
    assert build_content_security_policy(named) == (
        "default-src 'none'; script-src 'self' 'unsafe-inline' https://resource.example; "
        "style-src 'self' 'unsafe-inline' https://resource.example; img-src 'self' data: https://resource.example; "
        "font-src 'self' https://resource.example; media-src 'self' data: https://resource.example; "
        "connect-src https://connect.example; frame-src https://frame.example; base-uri https://baseuri.example; "
        "object-src 'none'; form-action 'none'"
    )


@given(st.dictionaries(st.sampled_from(["connectDomains", "resourceDomains", "frameDomains", "baseUriDomains"]),
                       st.lists(st.one_of(st.text(), st.sampled_from(GOOD), st.none()))))  # fmt: skip
def test_a_server_cannot_write_directives(csp: dict[str, list[str | None]]):
    plain = {part.split(" ")[0] for part in NOTHING.split("; ")}
    parts = build_content_security_policy(csp).split("; ")
    assert [part.split(" ")[0] for part in parts] == [part.split(" ")[0] for part in NOTHING.split("; ")]
    words = {word for part in parts for word in part.split(" ")[1:]}
    assert all(is_origin(word) or word in NOTHING for word in words) and plain


def test_a_policy_is_bounded():
    assert (
        build_content_security_policy({"connectDomains": ["https://a.example"] * 10_000}).count("a.example")
        == MAX_ORIGINS
    )
    with pytest.raises(UsageError, match="more than"):
        encode_csp({"connect": ["https://a.example"] * (MAX_ORIGINS + 1)}, "app", "a.py:1")


@for_each_row("csp", [{"connects": ["https://a.com"]}, {"connect": "https://a.com"}, {"connect": None}])
def test_a_policy_of_another_shape_is_refused(csp: dict[str, object]):
    with pytest.raises(UsageError, match=r"connect, resource|connect.: \["):
        encode_csp(csp, "app", "a.py:1")


def test_permissions_are_wishes_by_name():
    assert encode_app_permissions(["camera", "clipboard_write"], "app", "") == {"camera": {}, "clipboardWrite": {}}
    assert list_allowed_browser_features({"clipboardWrite": {}, "usb": {}, "camera": {}}) == [
        "camera",
        "clipboard-write",
    ]
    assert list_allowed_browser_features(["camera"]) == []
    for wrong in (["usb"], "camera"):
        with pytest.raises(UsageError, match="permissions"):
            encode_app_permissions(wrong, "app", "")
