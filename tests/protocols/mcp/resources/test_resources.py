from __future__ import annotations

from typing import Any

import pytest

from defserve import Embedded, Image, Link, Server, Text, UsageError
from defserve.errors import PeerError
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n"

# What a function returns, and the contents read: `a://b` is its URI, text/x-own its MIME type where it says one.
CONTENTS: list[tuple[Any, str | None, list[dict[str, Any]]]] = [
    ("text", None, [{"uri": "a://b", "mimeType": "text/plain", "text": "text"}]),
    ("text", "text/x-own", [{"uri": "a://b", "mimeType": "text/x-own", "text": "text"}]),
    (b"\0", None, [{"uri": "a://b", "mimeType": "application/octet-stream", "blob": "AA=="}]),
    (Image(PNG), None, [{"uri": "a://b", "mimeType": "image/png", "blob": "iVBORw0KGgo="}]),
    ({"k": 1}, None, [{"uri": "a://b", "mimeType": "application/json", "text": '{"k":1}'}]),
    ([1, 2], None, [{"uri": "a://b", "mimeType": "application/json", "text": "[1,2]"}]),
    (
        Text("t", meta={"x.org/k": 1}), None,
        [{"uri": "a://b", "mimeType": "text/plain", "text": "t", "_meta": {"x.org/k": 1}}],
    ),
    (
        [Embedded("a://b/1", text="one", meta={"x.org/k": 1}), Embedded("a://b/2", data=b"\0", mime_type="image/png")],
        "text/x-own",
        [
            {"uri": "a://b/1", "mimeType": "text/x-own", "text": "one", "_meta": {"x.org/k": 1}},
            {"uri": "a://b/2", "mimeType": "image/png", "blob": "AA=="},
        ],
    ),
]  # fmt: skip


@pytest.mark.req("MCP-5.2l")
@for_each_row(("value", "mime_type", "contents"), CONTENTS)
async def test_what_a_function_returns_becomes_contents(value: Any, mime_type: str | None, contents: list[Any]):
    server = Server("s", "1")
    options: Any = {"mime_type": mime_type} if mime_type else {}

    @server.resource("a://b", **options)
    def thing() -> Any:
        return value

    async with server.connect() as client:
        assert await client.read("a://b") == contents


async def test_a_resource_of_no_bytes_says_so():
    server = Server("s", "1")

    @server.resource("a://empty", size=0)
    def empty() -> str:
        return ""

    async with server.connect() as client:
        assert (await client.resources())[0]["size"] == 0


@pytest.mark.req("MCP-5.2t")
async def test_a_concrete_resource_comes_before_a_template_and_variables_become_arguments():
    server = Server("s", "1")

    @server.resource("user://{id}/posts{?page}")
    def posts(id: int, page: int = 1) -> str:
        return f"user {id}, page {page}"

    @server.resource("file://{+path}")
    def file(path: str) -> str:
        return path

    @server.resource("user://0/posts")
    def nobody() -> str:
        return "nobody"

    async with server.connect() as client:
        assert await client.read_text("user://7/posts?page=2") == "user 7, page 2"
        assert await client.read_text("user://7/posts") == "user 7, page 1"
        assert await client.read_text("user://0/posts") == "nobody"
        assert await client.read_text("file://a/b%20c.txt") == "a/b c.txt"
        with pytest.raises(PeerError, match="id: expected integer"):
            await client.read("user://x/posts")


async def test_a_link_is_no_contents_and_the_reason_stays_with_the_server():
    server = Server("s", "1")

    @server.resource("a://b")
    def thing() -> Any:
        return Link("a://c")

    async with server.connect() as client:
        with pytest.raises(PeerError, match="^internal error"):
            await client.read("a://b")


@pytest.mark.req("MCP-5.2s")
async def test_only_what_can_be_read_can_be_subscribed_to():
    server = Server("s", "1")

    @server.resource("note://{name}")
    def note(name: str) -> str:
        return name

    async with server.connect(version="2025-11-25") as client:
        await client.subscribe("note://a")
        await client.subscribe("note://a")
        with pytest.raises(PeerError) as refused:
            await client.subscribe("text://a")
        assert refused.value.code == -32002


@for_each_row("uri", ["plain", "two words:x", "1st://x", ":x", "a:", "//x", "a://b c", "{name}"])
def test_what_is_no_uri_is_refused_at_registration(uri: str):
    with pytest.raises(UsageError, match="is not a URI"):
        Server("s", "1").resource(uri)(anything)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"ttl": -1}, "ttl and size cannot be negative"),
        ({"size": -1}, "ttl and size cannot be negative"),
        ({"annotations": {"audience": "user"}}, "audience"),
        ({"annotations": {"audience": ["model"]}}, "audience"),
        ({"annotations": {"priority": 2}}, "priority"),
    ],
)
def test_options_that_would_be_invalid_on_the_wire_are_refused_at_registration(options: Any, problem: str):
    with pytest.raises(UsageError, match=problem):
        Server("s", "1").resource("a://b", **options)(anything)


def anything() -> str:
    return ""
