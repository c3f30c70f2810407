"""What the options of tools, resources and prompts may be: everything else is refused at the decorator."""

from __future__ import annotations

from typing import Any

import pytest

from defserve import Icon, Server, UsageError, dangerous
from tests.rows import for_each_row


def f() -> dict[str, int]:
    return {}


WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    ("tool", {"name": 3}, "f: tool(name=3) is not possible", 'write name="3"'),
    ("tool", {"title": 3}, "f: tool(title=3) is not possible", 'write title="3"'),
    ("prompt", {"description": 3}, "f: prompt(description=3) is not possible", 'write description="3"'),
    ("tool", {"structured": "bar"}, "f: tool(structured='bar') is not possible", "use one of True, False, 'bare'"),
    ("tool", {"inline": "no"}, "f: tool(inline='no') is not possible", "use one of True, False"),
    ("tool", {"tags": "billing"}, "f: tool(tags='billing') is not possible", "write tags=['billing']"),
    ("tool", {"keywords": "money"}, "f: tool(keywords='money') is not possible", "write keywords=['money']"),
    ("tool", {"scopes": "admin"}, "f: tool(scopes='admin') is not possible", "write scopes=['admin']"),
    ("tool", {"icons": "x.png"}, "f: tool(icons='x.png') is not possible", "write icons=['x.png']"),
    ("tool", {"meta": "x"}, "f: tool(meta='x') is not possible", 'write meta={"…": …}'),
    ("tool", {"annotations": "readOnlyHint"}, "f: tool(annotations='readOnlyHint')", 'write annotations={"…": …}'),
    (
        "tool",
        {"annotations": {"readonlyHint": True}},
        "f: tool(annotations={'readonlyHint': …}) is not possible",
        "did you mean 'readOnlyHint'?",
    ),
    (
        "tool",
        {"annotations": {"readOnlyHint": "no"}},
        "f: tool(annotations={'readOnlyHint': 'no'}) is not possible",
        "use True or False",
    ),
    ("tool", {"tags": ["billing", 3]}, "f: tool(tags=['billing', 3]) is not possible", 'write tags=["…"]'),
    ("tool", {"icons": [3]}, "f: tool(icons=[3]) is not possible", "write icons=[Icon(…)], or a URI"),
    ("tool", {"icons": [{"url": "x.png"}]}, "f: tool(icons=[{'url': 'x.png'}])", "write icons=[Icon(…)], or a URI"),
    ("resource", {"mime_type": 3}, "f: resource(mime_type=3) is not possible", 'write mime_type="3"'),
    ("resource", {"listed": "no"}, "f: resource(listed='no') is not possible", "use one of True, False"),
    (
        "resource",
        {"annotations": {"audiences": ["user"]}},
        "f: resource(annotations={'audiences': …}) is not possible",
        "did you mean 'audience'?",
    ),
    (
        "resource",
        {"annotations": {"priority": "high"}},
        "f: resource(annotations={'priority': 'high'}) is not possible",
        "give a number",
    ),
]


def declare(kind: str, options: dict[str, Any]) -> None:
    server, given = Server("t"), ("x://y",) if kind == "resource" else ()
    getattr(server, kind)(*given, **options)(f)


@for_each_row("kind, options, problem, fix", WRONG)
def test_a_value_that_is_not_possible_is_refused(kind: str, options: dict[str, Any], problem: str, fix: str):
    with pytest.raises(UsageError) as refused:
        declare(kind, options)
    assert refused.value.problem.startswith(problem)
    assert refused.value.fix == fix
    assert refused.value.where.startswith("tests/protocols/mcp/test_item_values.py:")


@for_each_row(
    "kind, options",
    [
        ("tool", {"annotations": {"readOnlyHint": True, "title": "T", "com.example/cost": 3, "team": "x"}}),
        ("tool", {"structured": "bare", "tags": ("a",), "scopes": {"s"}, "meta": {}, "title": None}),
        ("resource", {"annotations": {"audience": ["user"], "priority": 0.5, "last_modified": "2026-01-01"}}),
    ],
)
def test_values_of_the_right_kind_and_annotations_of_others_pass(kind: str, options: dict[str, Any]):
    declare(kind, options)


def test_the_theme_of_an_icon_is_light_or_dark():
    with pytest.raises(UsageError, match="use one of 'light', 'dark'"):
        Icon("https://x/i.png", theme="drak")


@for_each_row("kind, option", [("tool", "meta"), ("tool", "annotations"), ("prompt", "meta"), ("resource", "meta")])
def test_a_value_without_json_form_is_refused_before_it_breaks_the_list_of_all(kind: str, option: str):
    with pytest.raises(UsageError, match=f"f: {kind}\\({option}=.* is not possible\n  fix: give values that JSON has"):
        declare(kind, {option: {"example.com/x": object()}})


def test_the_sizes_of_an_icon_are_a_list():
    with pytest.raises(UsageError, match=r"write sizes=\['48x48', '96x96'\]"):
        Icon("https://x/i.png", sizes="48x48 96x96")


def test_an_icon_without_a_text_for_its_address_is_refused():
    with pytest.raises(UsageError, match=r"Icon\(3\) is not possible"):
        Icon(3)  # pyright: ignore[reportArgumentType]


@for_each_row("uri", ["x://y\n", "x://y z"])
def test_the_uri_of_a_resource_has_no_blank_in_it(uri: str):
    with pytest.raises(UsageError, match="is not a URI"):
        Server("t").resource(uri)(f)


def test_the_size_of_a_resource_is_a_number():
    with pytest.raises(UsageError, match="size='3' is no number of bytes"):
        Server("t").resource("x://y", size="3")(f)  # pyright: ignore[reportArgumentType]


@for_each_row("option", ["confirm", "reversible"])
def test_a_mark_says_yes_or_no(option: str):
    with pytest.raises(UsageError, match=f"{option}='never' is not possible\n  fix: use True or False"):

        @dangerous(**{option: "never"})
        def wipe() -> None: ...
