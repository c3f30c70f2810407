from __future__ import annotations

import string
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.protocols.mcp.uri_template import MAX_URI, UriTemplate
from tests.rows import for_each_row


def match(template: str, uri: str) -> dict[str, Any] | None:
    return UriTemplate.parse(template).match_uri(uri)


def test_names_are_the_variables_in_order() -> None:
    template = UriTemplate.parse("repo://{owner}/{name}{/path*}{?ref,page}{#line}")
    assert template.names == ("owner", "name", "path", "ref", "page", "line")
    assert template.text == "repo://{owner}/{name}{/path*}{?ref,page}{#line}"
    assert repr(UriTemplate.parse("a://{b}")) == "UriTemplate('a://{b}')"


@for_each_row(
    ("template", "uri", "expected"),
    [
        ("a://b", "a://b", {}),
        ("", "", {}),
        ("user://{id}", "user://7", {"id": "7"}),
        ("user://{id}/posts/{post}", "user://7/posts/8", {"id": "7", "post": "8"}),
        ("user://{id}/posts", "user://me@example.com/posts", {"id": "me@example.com"}),
        ("f://{name}.json", "f://a.json.json", {"name": "a.json"}),
        ("f://{a}-{b}", "f://x-y-z", {"a": "x", "b": "y-z"}),
        ("f://{a}--{b}.c", "f://--x--y.c", {"a": "--x", "b": "y"}),
        ("f://{name}{.ext}", "f://archive.tar.gz", {"name": "archive", "ext": "tar.gz"}),
        ("geo://{lat,long}", "geo://1.5,-2", {"lat": "1.5", "long": "-2"}),
        ("f:/{/a,b}", "f://x/y", {"a": "x", "b": "y"}),
        ("f://x{;a,b}", "f://x;a=1;b=2", {"a": "1", "b": "2"}),
        ("f://{+path}", "f://a/b/c.txt", {"path": "a/b/c.txt"}),
        ("file://{+path}", "file:///etc/hosts", {"path": "/etc/hosts"}),
        ("f://{a}/{+path}/raw/{b}", "f://x/raw/y/raw/z", {"a": "x", "path": "raw/y", "b": "z"}),
        ("f://{a}/{+path}/{b}.{c}", "f://1/2/3/4.5", {"a": "1", "path": "2/3", "b": "4", "c": "5"}),
        ("f://r{/path*}", "f://r/a/b", {"path": ["a", "b"]}),
        ("f://r{/path*}", "f://r", {"path": []}),
        ("f://{r}{/path*}/end", "f://r/a/end", {"r": "r", "path": ["a"]}),
        ("f://{r}{/path*}/end", "f://r/end", {"r": "r", "path": []}),
        ("f:/{/path*,last}", "f://a/b/c", {"path": ["a", "b"], "last": "c"}),
        ("f:/{/path*,last}", "f://c", {"path": [], "last": "c"}),
        ("f://{path*}", "f://a/b,c", {"path": ["a/b", "c"]}),
        ("f://{path*}", "f://", {"path": []}),
        ("f://x{;tag*}", "f://x;tag=a;tag=b", {"tag": ["a", "b"]}),
        ("f://x{.tag*}", "f://x.a.b", {"tag": ["a", "b"]}),
        ("f://{a}?q={q}&r={r}", "f://x?q=1/2&r=%2F", {"a": "x", "q": "1/2", "r": "/"}),
        ("café://{a}", "caf%c3%a9://b", {"a": "b"}),
        ("caf%C3%A9://{a}", "café://é", {"a": "é"}),
    ],
)
def test_a_uri_gives_back_its_values(template: str, uri: str, expected: dict[str, Any]) -> None:
    assert match(template, uri) == expected


@for_each_row(
    ("template", "uri"),
    [
        ("a://b", "a://bc"),
        ("user://{id}", "user://"),
        ("user://{id}", "user://a/b"),
        ("user://{id}", "user://a?b"),
        ("user://{id}", "user://a#b"),
        ("user://{id}", "prefix-user://a"),
        ("user://{id}/x", "user://a/xy"),
        ("user://{id}/x", "user:///x"),
        ("f://{a}-{b}", "f://x-"),
        ("f://{a}-{b}", "f://-x"),
        ("f://{+path}", "f://"),
        ("f://{+path}", "f://a?b"),
        ("f://{+path}", "f:///etc/hosts"),
        ("f://{+path}/{b}", "f://a/"),
        ("f://{+a}xx{b}", "f://xxx"),
        ("f://r{/path*}", "f://r/"),
        ("f://r{/path*}", "f://r/a//b"),
        ("f://x{;tag*}", "f://x;tag=a;other=b"),
        ("f://x{;a}", "f://x"),
        ("f://?q={q}", "f://?q=1&admin=yes"),
    ],
)
def test_a_uri_of_another_shape_does_not_match(template: str, uri: str) -> None:
    assert match(template, uri) is None


@for_each_row(
    ("uri", "expected"),
    [
        ("s://x", {}),
        ("s://x?", {}),
        ("s://x?q=1", {"q": "1"}),
        ("s://x?r=2&q=1", {"q": "1", "r": "2"}),
        ("s://x?q=a+b%20c%2Fd", {"q": "a+b c/d"}),
        ("s://x?q=", {"q": ""}),
        ("s://x?q", {"q": ""}),
        ("s://x?q=a=b", {"q": "a=b"}),
        ("s://x?other=%20&q=1&&", {"q": "1"}),
        ("s://x?tag=a&q=1&tag=b", {"q": "1", "tag": ["a", "b"]}),
        ("s://x?q=1&q=2", None),
        ("s://x?q=..", None),
        ("s://x?q=%00", None),
        ("s://x?other=%FF", None),
        ("s://x?q=1#part", None),
        ("s://x/?q=1", None),
    ],
)
def test_a_query_matches_in_any_order_and_in_part(uri: str, expected: dict[str, Any] | None) -> None:
    assert match("s://x{?q,r,tag*}", uri) == expected


@for_each_row(
    ("uri", "expected"),
    [
        ("s://a?kind=b", {"h": "a", "k": "b"}),
        ("s://a?kind=b&r=2&q=1", {"h": "a", "k": "b", "q": "1", "r": "2"}),
        ("s://a?q=1&kind=b", None),
        ("s://a", None),
        ("s://a?kind=bx&", {"h": "a", "k": "bx"}),
    ],
)
def test_a_query_goes_on_behind_the_pairs_that_are_spelt_out(uri: str, expected: dict[str, Any] | None) -> None:
    assert match("s://{h}?kind={k}{&q}{&r}", uri) == expected


@for_each_row(
    ("template", "uri", "expected"),
    [
        ("s://{a}{#part}", "s://x", {"a": "x"}),
        ("s://{a}{#part}", "s://x#", {"a": "x"}),
        ("s://{a}{#part}", "s://x#y/z?#%20", {"a": "x", "part": "y/z?# "}),
        ("s://{a}{#part*}", "s://x#y,z", {"a": "x", "part": ["y", "z"]}),
        ("s://{+a}{?q}{#part}", "s://x/y?q=1#z", {"a": "x/y", "q": "1", "part": "z"}),
        ("s://{a}{#part}", "s://x#a/../b", None),
        ("s://{a}#top", "s://x#top", {"a": "x"}),
    ],
)
def test_a_fragment_may_be_absent(template: str, uri: str, expected: dict[str, Any] | None) -> None:
    assert match(template, uri) == expected


@for_each_row("value", ["..", "%2e%2E", "a%2Fb", "%2F", "a%5Cb", "a\\b", "a%00", "a\0", "..%2f..%2fetc"])
def test_a_segment_that_would_traverse_does_not_match(value: str) -> None:
    assert match("f://{name}", f"f://{value}") is None
    assert match("f://{name}/x", f"f://{value}/x") is None
    assert match("f:/{/name*}", f"f://x/{value}") is None


@for_each_row("value", ["..", "a/../b", "a/..", "a%2f%2e.%2Fb", "..\\a", "a\\..", "/etc", "%2Fetc", "\\a", "a%00"])
def test_a_path_that_would_traverse_does_not_match(value: str) -> None:
    assert match("f://base/{+path}", f"f://base/{value}") is None
    assert match("f://base/{path*}", f"f://base/x,{value}") is None


def test_dots_that_do_not_traverse_match() -> None:
    assert match("f://{name}", "f://a..b") == {"name": "a..b"}
    assert match("f://{name}", "f://...") == {"name": "..."}
    assert match("f://{+path}", "f://./a..b/.c") == {"path": "./a..b/.c"}


def test_values_are_decoded_once() -> None:
    assert match("f://{name}", "f://%252e%252e%252F") == {"name": "%2e%2e%2F"}


@for_each_row("value", ["%", "%2", "%zz", "%FF", "%C3", "%ED%A0%80", "\ud800", "a%C3/b"])
def test_broken_escapes_and_broken_utf8_do_not_match(value: str) -> None:
    assert match("f://{+path}", f"f://{value}") is None


def test_an_escape_split_by_a_literal_does_not_match() -> None:
    assert match("f://%C3{a}", "f://%C3%A9") is None


def test_a_uri_longer_than_the_cap_does_not_match() -> None:
    template = UriTemplate.parse("f://{+path}")
    assert template.match_uri("f://" + "a" * (MAX_URI - 4)) is not None
    assert template.match_uri("f://" + "a" * (MAX_URI - 3)) is None


@for_each_row(
    ("template", "reason"),
    [
        ("f://{a}{b}", "'a' and 'b' stand side by side"),
        ("f://{a}{+b}", "'a' and 'b' stand side by side"),
        ("f://{+a}{b}", "'a' and 'b' stand side by side"),
        ("f:/{/a*}{b}", "'a' and 'b' stand side by side"),
        ("f://{+a}/{+b}", "'a' and 'b' may both take any number of segments"),
        ("f://{+a,b}", "'a' and 'b' may both take any number of segments"),
        ("f://{+a}{/b*}", "'a' and 'b' may both take any number of segments"),
        ("f://{a*}/x{/b*}", "'a' and 'b' may both take any number of segments"),
        ("f://{#a,b}", "'a' and 'b' may both take any number of segments"),
        ("f://{a}/{a}", "'a' is used twice"),
        ("f://{a}{?a}", "'a' is used twice"),
        ("f://{?a}/b", "nothing else may follow"),
        ("f://{?a}{b}", "nothing else may follow"),
        ("f://{?a}{?b}", "nothing else may follow"),
        ("f://{#a}{?b}", "nothing else may follow"),
        ("f://{#a}{#b}", "nothing else may follow"),
        ("f://x?y{?a}", "begins a query"),
        ("f://x{&a}", "begins a query"),
        ("f://x#y{#a}", "begins a fragment"),
        ("f://{a:3}", "cuts a value short"),
    ],
)
def test_a_template_that_leaves_a_guess_is_refused_with_its_reason(template: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason.replace("{", r"\{")):
        UriTemplate.parse(template)


TEMPLATES = [
    "a://b",
    "{x}",
    "a://{x}/b/{y}",
    "a://{x}-{y}.{z}",
    "a://{x,y}{.z}",
    "a:/{/x,y}{;z}",
    "a://{x}/{+path}/{y}",
    "a://{x}{/list*}/{y}{?q,tags*}{#part}",
    "a://{list*}/-/{x}",
    "a://x{;list*}",
    "a://{+list*}",
    "a://{x}?y={y}{&q,tags*}",
]

safe_text = st.text(string.ascii_letters + string.digits + "_~ é€😀%'+@:", min_size=1)
safe_lists = st.lists(safe_text, max_size=4)
safe_paths = st.lists(st.text(string.ascii_letters + " é€", min_size=1), min_size=1).map("/".join)


@pytest.mark.parametrize("text", TEMPLATES)
@given(data=st.data())
def test_what_is_expanded_is_matched(text: str, data: st.DataObject) -> None:
    template = UriTemplate.parse(text)
    strategies = {"list": safe_lists, "tags": st.lists(safe_text, min_size=1), "path": safe_paths, "part": safe_paths}
    if "+list" in text:
        strategies["list"] = st.lists(safe_paths, max_size=4)
    values = {name: data.draw(strategies.get(name, safe_text), name) for name in template.names}
    uri = template.expand(values)
    assert len(uri) > MAX_URI or template.match_uri(uri) == values


uri_like = st.text() | st.text("ab/.,;-?&#=%2Ff\0\\:xq\ud800é").map("a://".__add__)


@pytest.mark.parametrize("text", TEMPLATES)
@given(uri=uri_like)
def test_no_text_makes_matching_raise_or_give_unsafe_values(text: str, uri: str) -> None:
    found = UriTemplate.parse(text).match_uri(uri)
    for value in (found or {}).values():
        for item in [value] if isinstance(value, str) else value:
            assert "\0" not in item and ".." not in item.replace("\\", "/").split("/")


HOSTILE = [
    "-" * 30_000,
    "a-" * 15_000,
    "a.-" * 10_000,
    "/" * 30_000,
    "%2F" * 10_000,
    "a&" * 15_000,
    ";list=" * 5_000,
]


@pytest.mark.parametrize("filling", HOSTILE)
def test_hostile_uris_take_linear_time(filling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("defserve.protocols.mcp.uri_template.MAX_URI", 1_000_000)
    chain = "".join(f"{{v{index}}}-" for index in range(100))
    started = process_time()
    for text in [*TEMPLATES, f"a://{chain}", f"a://{{+path}}-{chain}!", "a://{+p}" + "-" * 500 + "{x}!"]:
        template = UriTemplate.parse(text)
        for uri in (f"a://{filling}", f"a://x?y={filling}", f"a://x{filling}!"):
            template.match_uri(uri)
    # A fifth of a second; a quadratic scan of 30 kB takes many seconds.
    assert process_time() - started < 3
