"""How parameters are written: the table of the standard, and what is not in it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from defserve.openapi.operations import OperationParameter
from defserve.openapi.request_building import cookie_pairs, in_header, in_path, query_pairs
from tests.rows import for_each_row

COLOURS = ["blue", "black", "brown"]
RGB = {"R": 100, "G": 200, "B": 150}


def parameter(place: str, style: str, explode: bool, **more: Any) -> OperationParameter:
    return OperationParameter(
        "color", place, {}, True, "", style, explode, more.get("reserved", False), more.get("media")
    )


@for_each_row(
    "style explode value written",
    [
        ("form", False, "blue", "color=blue"),
        ("form", False, COLOURS, "color=blue,black,brown"),
        ("form", False, RGB, "color=R,100,G,200,B,150"),
        ("form", True, COLOURS, "color=blue&color=black&color=brown"),
        ("form", True, RGB, "R=100&G=200&B=150"),
        ("form", True, "", "color="),
        ("form", True, [], ""),
        ("spaceDelimited", False, COLOURS, "color=blue%20black%20brown"),
        ("pipeDelimited", False, COLOURS, "color=blue%7Cblack%7Cbrown"),
        ("deepObject", True, RGB, "color[R]=100&color[G]=200&color[B]=150"),
        ("deepObject", True, {"a": {"b": 1}, "c": [2, 3]}, "color[a][b]=1&color[c][]=2&color[c][]=3"),
        ("form", True, "a&b=c#d e+", "color=a%26b%3Dc%23d%20e%2B"),
        ("form", True, True, "color=true"),
        ("form", True, 1.5, "color=1.5"),
        ("form", True, 3.0, "color=3"),
        ("form", False, [3.0, -0.0], "color=3,0"),
        ("form", True, 1e300, "color=1e%2B300"),
        ("form", True, "é\ud800", "color=%C3%A9%3F"),
    ],
)
def test_in_a_query(style: str, explode: bool, value: Any, written: str) -> None:
    assert "&".join(query_pairs(parameter("query", style, explode), value)) == written


def test_reserved_characters_and_json_in_a_query() -> None:
    assert [*query_pairs(parameter("query", "form", True, reserved=True), "a/b?c&d#e")] == ["color=a/b?c%26d%23e"]
    assert [*query_pairs(parameter("query", "form", True, media="application/json"), RGB)] == [
        "color=%7B%22R%22%3A%20100%2C%20%22G%22%3A%20200%2C%20%22B%22%3A%20150%7D"
    ]


@for_each_row(
    "media written",
    [("application/json", '"é"'), ("application/x+json; a=b", '"é"'), ("*/*", '"é"'), ("text/plain", "é")],
)
def test_a_parameter_with_a_media_type_is_json_only_if_that_says_so(media: str, written: str) -> None:
    coded = quote(written, safe="")
    assert [*query_pairs(parameter("query", "form", True, media=media), "é")] == [f"color={coded}"]
    assert [*cookie_pairs(parameter("cookie", "form", True, media=media), "é")] == [f"color={coded}"]
    assert in_path(parameter("path", "simple", False, media=media), "é", "color", slashes=False) == coded
    header = in_header(parameter("header", "simple", False, media=media), "e", "color")
    assert header == written.replace("é", "e")


def test_the_keys_of_json_in_a_cookie_are_no_cookies() -> None:
    assert [*cookie_pairs(parameter("cookie", "form", True, media="application/json"), {"sid": "x"})] == [
        "color=%7B%22sid%22%3A%20%22x%22%7D"
    ]


@for_each_row(
    "style explode value written",
    [
        ("simple", False, "blue", "blue"),
        ("simple", False, COLOURS, "blue,black,brown"),
        ("simple", False, RGB, "R,100,G,200,B,150"),
        ("simple", True, RGB, "R=100,G=200,B=150"),
        ("matrix", False, "blue", ";color=blue"),
        ("matrix", False, COLOURS, ";color=blue,black,brown"),
        ("matrix", True, COLOURS, ";color=blue;color=black;color=brown"),
        ("matrix", False, RGB, ";color=R,100,G,200,B,150"),
        ("matrix", True, RGB, ";R=100;G=200;B=150"),
        ("label", False, "blue", ".blue"),
        ("label", False, COLOURS, ".blue,black,brown"),
        ("label", True, COLOURS, ".blue.black.brown"),
        ("label", True, RGB, ".R=100.G=200.B=150"),
        ("simple", False, "a b;c?d#e@f:g", "a%20b%3Bc%3Fd%23e%40f%3Ag"),
    ],
)
def test_in_a_path(style: str, explode: bool, value: Any, written: str) -> None:
    assert in_path(parameter("path", style, explode), value, "color", slashes=False) == written


def test_in_headers_and_cookies() -> None:
    assert in_header(parameter("header", "simple", False), COLOURS, "color") == "blue,black,brown"
    assert in_header(parameter("header", "simple", True), RGB, "color") == "R=100,G=200,B=150"
    assert [*cookie_pairs(parameter("cookie", "form", False), "a;b=c, d")] == ["color=a%3Bb%3Dc%2C%20d"]
    assert [*cookie_pairs(parameter("cookie", "form", True), ["a", "b"])] == ["color=a", "color=b"]
