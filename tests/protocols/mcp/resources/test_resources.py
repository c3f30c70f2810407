from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from defserve import Context, Embedded, Image, Limits, Link, Server, Text, UsageError
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
    ({"\udce9": ["\udce9"]}, None, [{"uri": "a://b", "mimeType": "application/json", "text": '{"\ufffd":["\ufffd"]}'}]),
    ([float("nan")], None, [{"uri": "a://b", "mimeType": "application/json", "text": "[null]"}]),
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


# What a generator yields, and the contents read, without their URI.
YIELDED: list[tuple[list[Any], list[dict[str, Any]]]] = [
    (["one\n", "two\n"], [{"mimeType": "text/plain", "text": "one\ntwo\n"}]),
    ([b"\0", b"\1"], [{"mimeType": "application/octet-stream", "blob": "AAE="}]),
    (
        ["a", "b", Image(PNG), "c", Text("d")],
        [
            {"mimeType": "text/plain", "text": "ab"},
            {"mimeType": "image/png", "blob": "iVBORw0KGgo="},
            {"mimeType": "text/plain", "text": "c"},
            {"mimeType": "text/plain", "text": "d"},
        ],
    ),
    ([{"k": 1}, "x"], [{"mimeType": "application/json", "text": '[{"k":1},"x"]'}]),
    ([], [{"mimeType": "application/json", "text": "[]"}]),
]


@for_each_row(("values", "contents"), YIELDED)
async def test_what_a_generator_yields_is_joined(values: list[Any], contents: list[dict[str, Any]]):
    server = Server("s", "1")

    @server.resource("a://sync")
    def blocking() -> Iterator[Any]:
        yield from values

    @server.resource("a://async")
    async def waiting() -> AsyncIterator[Any]:
        for value in values:
            yield value

    async with server.connect() as client:
        for uri in ("a://sync", "a://async"):
            assert await client.read(uri) == [{"uri": uri, **each} for each in contents]


async def test_a_generator_that_yields_no_text_is_an_empty_text():
    server = Server("s", "1")

    @server.resource("a://b")
    def lines() -> Iterator[str]:
        yield from ()

    @server.resource("a://c")
    async def chunks() -> AsyncIterator[bytes]:
        for chunk in ():
            yield chunk

    async with server.connect() as client:
        assert (await client.read("a://b"))[0]["text"] == ""
        assert (await client.read("a://c"))[0]["blob"] == ""


async def test_what_a_resource_yields_is_no_part_of_the_tool_that_reads_it():
    server = Server("s", "1")

    @server.resource("a://b")
    def lines() -> Iterator[str]:
        yield "of the resource"

    @server.tool
    async def read(ctx: Context) -> str:
        ctx.emit("emitted ")
        contents = await server.mcp.resources.read_contents_for_call(ctx.call, "a://b")
        return contents[0]["text"].removeprefix("of ")

    async with server.connect() as client:
        assert [part["text"] for part in (await client.call_raw("read"))["content"]] == ["emitted ", "the resource"]


@for_each_row("piece", ["x" * 400, b"x" * 400], ids=["text", "bytes"])
async def test_a_generator_that_yields_too_much_is_stopped(piece: Any):
    server = Server("s", "1", limits=Limits(response=1000))
    yielded = 0

    @server.resource("a://b")
    def endless() -> Iterator[Any]:
        nonlocal yielded
        while True:
            yielded += 1
            yield piece

    async with server.connect() as client:
        with pytest.raises(PeerError, match="larger than 1000 bytes"):
            await client.read("a://b")
    assert yielded == 3


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


@for_each_row(
    ("options", "problem"),
    [
        ({"ttl": -1}, "ttl and size cannot be negative"),
        ({"size": -1}, "ttl and size cannot be negative"),
        ({"ttl": float("inf")}, "ttl=inf is no number of seconds"),
        ({"ttl": float("nan")}, "ttl=nan is no number of seconds"),
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
