"""The page's HTML: whatever an author, a mounted server or a Host says is text in it, and it stays below its limit."""

from __future__ import annotations

import json
import shlex
import tomllib
from base64 import b64decode
from itertools import product
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.protocols.mgp.terms import SECURITY_META_KEY
from defserve.server.page import (
    MAX_PAGE_BYTES,
    SHAPES,
    About,
    client_steps,
    describe_type,
    install_links,
    mark_of,
    render_page,
)
from tests.asgi import Web, living
from tests.rows import for_each_row

from .reading import BROWSER, Page, greenhouse

ADDRESS = "http://127.0.0.1:8000/mcp"

HOSTILE = [
    "<script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "<!--",
    "]]><![CDATA[<script>",
    "javascript:alert(1)",
    "</pre></main></body><iframe src=//evil.example>",
    "\x00<\x00script>",
    "\u202e<script>\u2066",
    "{name} {url} %s {0}",
    "\ud800 lone",
]


def html(name: str = "greenhouse", address: str = ADDRESS, **about: Any) -> Page:
    return Page(render_page(About(name, **about), address, everywhere=False).decode())


def named(tool: str, description: str = "", mark: Any = "safe") -> dict[str, Any]:
    """A tool that says the same of itself and of its parameter."""
    schema = {"type": "object", "properties": {tool: {"type": "string", "description": description}}}
    about = {"name": tool, "description": description, "inputSchema": schema}
    return {**about, "_meta": {SECURITY_META_KEY: {"risk_level": mark}}}


PLAIN = html(title="T", version="1", description="D", tools=[named("a", "b")])


def is_harmless(found: Page) -> bool:
    """Whether it is built of the same elements and attributes as a page of plain words."""
    marks = {"class", "aria-label", "href"}
    return found.tags == PLAIN.tags and {a for a in found.attributes if a[1] not in marks} == {
        a for a in PLAIN.attributes if a[1] not in marks
    }


def test_the_marks_that_are_shown_are_explained():
    tools = [named("a", mark="safe"), named("b", mark="odd")]
    text = render_page(About("x", tools=tools), ADDRESS, everywhere=False).decode()
    assert [mark for mark in SHAPES if f"</svg> {mark}</span>" in text] == ["safe", "unmarked"]


@for_each_row("text", HOSTILE)
def test_what_others_wrote_is_text_wherever_it_stands(text: str):
    found = html(text, title=text, version=text, description=text, tools=[named(text, text), named("b", text, text)])
    assert is_harmless(found)
    assert found.html.count("<script") == found.html.count("</script") == 1


@pytest.mark.slow
@given(st.text(), st.text(), st.lists(st.tuples(st.text(), st.text(), st.text()), max_size=5))
def test_no_text_can_change_what_the_page_is_made_of(name: str, about: str, tools: list[tuple[str, str, str]]):
    listed = [named(*tool) for tool in [*tools, ("last", "one", "safe")]]
    found = html(name, title=name, version="1" + about, description=about, tools=listed)
    assert is_harmless(found)
    assert len(found.html.encode()) <= MAX_PAGE_BYTES


@pytest.mark.anyio
async def test_hostile_words_of_a_served_server_are_text():
    server = greenhouse(title=HOSTILE[1], description=HOSTILE[3])

    @server.tool(name="x", title=HOSTILE[2], description=HOSTILE[0])
    def hostile() -> str:
        return ""

    async with living(server.asgi()) as app:
        response = await Web(app).begin("GET", b"", {"accept": BROWSER}).ended()
    found = Page(response.body.decode())
    assert found.tags <= PLAIN.tags
    assert ("unmarked", "x", HOSTILE[0]) in found.tools
    assert found.texts["title"] == [f"{HOSTILE[1]}, an MCP server"]


def test_characters_that_hide_or_reorder_others_are_left_out():
    (tool,) = html(tools=[named("delete\u202eelif", "one\u200b\x07\ntwo")]).tools
    assert tool == ("safe", "deleteelif", "one two")


def test_a_description_is_its_first_paragraph_and_is_cut():
    tools = [named("a", "First\nline.\n\nSecond paragraph."), named("b", "x" * 500)]
    (_, _, first), (_, _, cut) = html(tools=tools).tools
    assert first == "First line."
    assert (len(cut), cut[-1]) == (160, "…")


@for_each_row(("many", "text"), product((0, 1, 20, 1_000), ("x", "x" * 10_000, "\U0001f331" * 200, "<" * 300)))
def test_it_stays_below_its_limit_and_says_how_many_tools_are_shown(many: int, text: str):
    tools = [named(f"{place}{text}", text) for place in range(many)]
    longest = f"https://{'a' * 253}:65535/mcp"
    for address in (ADDRESS, longest):
        found = html(text, address, title=text, version=text, description=text, tools=tools)
        assert len(found.html.encode()) <= MAX_PAGE_BYTES
        shown = len(found.tools)
        assert (f"{shown} of {many} are shown." in found.notes) is (shown < many)
    assert "There are none." in found.notes or many


def test_a_tool_opens_to_its_parameters():
    schema = {
        "properties": {"bed": {"type": "string", "description": "Which bed."}, "unit": {"enum": ["C", "F"]}},
        "required": ["bed"],
    }
    found = html(tools=[{"name": "set_target", "inputSchema": schema}, {"name": "list_sensors"}])
    assert [text for text in found.texts["dt"] + found.texts["dd"] if text] == ["Which bed."]
    assert "<code>bed</code><span>string, required</span>" in found.html
    assert "<code>unit</code><span>&quot;C&quot; | &quot;F&quot;</span>" in found.html
    assert found.html.count("<summary class=tool>") == 1 and found.html.count("<div class=tool>") == 1


@for_each_row(
    ("schema", "words"),
    [
        ({"type": "array", "items": {"enum": ["C", "F"], "type": "string"}}, 'list of "C" | "F"'),
        ({"type": "array", "items": {"type": ["integer", "null"]}}, "list of integer | null"),
        ({"type": "array", "items": {"$ref": "#/$defs/Bed"}}, "list of Bed"),
        ({"oneOf": [{"const": "C", "title": "Celsius"}, {"const": "F"}]}, '"C" | "F"'),
        ({"type": "array", "items": {}}, "array"),
    ],
)
def test_a_type_is_named_with_the_values_it_may_have(schema: Any, words: str):
    assert describe_type(schema) == words


@for_each_row("schema", [None, 3, {"properties": 4}, {"properties": {"a": 1, "b": True}}, {"required": "x"}])
def test_a_schema_that_is_none_does_no_harm(schema: Any):
    assert html(tools=[{"name": "a", "inputSchema": schema}]).names == ["a"]


def test_parameters_give_way_to_tools():
    wide = {"properties": {f"p{place}": {"type": "string", "description": "x" * 160} for place in range(12)}}
    tools = [{**named(f"tool{place}", "Does it."), "inputSchema": wide} for place in range(10)]
    found = html(tools=tools)
    assert len(found.tools) == 10 and 0 < found.html.count("<summary class=tool>") < 10


def test_what_else_it_has_is_counted():
    found = html(others=(("resource", 1), ("prompt", 1_200)))
    assert "It also has 1 resource and 1,200 prompts." in found.notes


def test_a_list_with_more_pages_says_so():
    assert "1 of 1 or more are shown." in html(tools=[named("a")], is_complete=False).notes


def test_twenty_tools_of_the_usual_kind_are_all_shown():
    tools = [named(f"tool_of_number_{place}", "Does what its name says, and then a little.") for place in range(20)]
    assert len(html(tools=tools, description="About." * 10).tools) == 20


@for_each_row(
    "tool",
    [
        {},
        {"_meta": None},
        {"_meta": []},
        {"_meta": {SECURITY_META_KEY: "safe"}},
        {"_meta": {SECURITY_META_KEY: {"risk_level": ["safe"]}}},
        {"_meta": {SECURITY_META_KEY: {"risk_level": "harmless"}}},
        {"annotations": {"readOnlyHint": True}},
    ],
)
def test_a_tool_without_a_mark_is_unmarked(tool: dict[str, Any]):
    assert mark_of(tool) == "unmarked"


# How to connect.


@for_each_row(
    ("name", "address"),
    product(
        ("greenhouse", "My Server!", "__proto__", "con", *HOSTILE),
        (ADDRESS, "http://[::1]:8000/mcp", "https://tools.example.com/my%20tools/"),
    ),
)
def test_every_block_means_the_address_whatever_the_server_is_called(name: str, address: str):
    for title, _, text in client_steps(name, address):
        if text.startswith("{"):
            ((servers,),) = [list(json.loads(text).values())]
            (entry,) = servers.values()
        elif text.startswith("["):
            ((entry,),) = [list(tomllib.loads(text)["mcp_servers"].values())]
        elif text:
            words = shlex.split(text)
            assert words[-1] == address
            assert len(words) == (7 if title == "Claude Code" else 3)
            continue
        else:
            assert title == "Claude Desktop"
            continue
        assert address in entry.values()


@for_each_row("name", ["greenhouse", *HOSTILE])
def test_links_open_editors_with_the_address_filled_in(name: str):
    (_, cursor), (_, vscode) = install_links(name, ADDRESS)
    asked = dict(parse_qsl(urlsplit(cursor).query))
    assert cursor.startswith("cursor://anysphere.cursor-deeplink/mcp/install?")
    assert json.loads(b64decode(asked["config"])) == {"url": ADDRESS}
    entry = json.loads(unquote(vscode.removeprefix("vscode:mcp/install?")))
    assert entry == {"name": asked["name"], "type": "http", "url": ADDRESS}


def test_the_page_names_no_folder_of_the_server(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/secret-user")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/home/secret-user/config")
    monkeypatch.setenv("CODEX_HOME", "/home/secret-user/codex")
    assert "secret-user" not in html().html
