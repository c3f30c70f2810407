from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from defserve import Assistant, Embedded, Image, Message, Server, Text, ToolError, UsageError, User
from defserve.errors import PeerError
from tests.raw import raw
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n"
HELLO = {"type": "text", "text": "hello"}
PICTURE = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}
NOTE = {"type": "resource", "resource": {"uri": "a://b", "text": "note"}}

# What a prompt function returns, and the messages it means.
MESSAGES: list[tuple[Any, list[tuple[str, Any]]]] = [
    ("hello", [("user", HELLO)]),
    (Text("hello"), [("user", HELLO)]),
    (Assistant("hello"), [("assistant", HELLO)]),
    (Image(PNG), [("user", PICTURE)]),
    (Embedded("a://b", text="note"), [("user", NOTE)]),
    ({"role": "assistant", "content": "hello"}, [("assistant", HELLO)]),
    (("hello", Assistant(Image(PNG))), [("user", HELLO), ("assistant", PICTURE)]),
    ([User("hello"), [Message("assistant", "hello")]], [("user", HELLO), ("assistant", HELLO)]),
]


@pytest.mark.req("MCP-5.3")
@for_each_row(("value", "messages"), MESSAGES)
async def test_what_a_function_returns_becomes_messages(value: Any, messages: list[tuple[str, Any]]):
    server = Server("s", "1")

    @server.prompt
    def write() -> Any:
        return value

    async with server.connect() as client:
        written = (await client.prompt("write"))["messages"]
        assert [(message["role"], message["content"]) for message in written] == messages


async def test_an_optional_argument_that_was_left_blank_is_left_out():
    server = Server("s", "1")

    @server.prompt
    def write(
        count: int | None = None, loud: bool = False, tone: Literal["a", "b"] | None = None, note: str = "none",
        names: list[str] | None = None, size: Annotated[int, Field(alias="how_many")] = 7,
    ) -> str:  # fmt: skip
        return repr((count, loud, tone, note, names, size))

    @server.prompt
    def need(count: int, loud: bool = False) -> str:
        return "needed"

    async with server.connect() as client:
        blank = dict.fromkeys(["count", "loud", "tone", "note", "names", "how_many"], "")
        written = (await client.prompt("write", **blank))["messages"]
        assert written[0]["content"]["text"] == "(None, False, None, '', None, 7)"
        for arguments in ({"count": "", "loud": ""}, {"count": "1", "loud": "maybe"}, {"loud": ""}):
            with pytest.raises(PeerError, match="count|loud"):
                await client.prompt("need", **arguments)


async def test_what_a_generator_yields_becomes_messages():
    server = Server("s", "1")

    @server.prompt
    def blocking() -> Iterator[Message | str]:
        yield "hello"
        yield Assistant("hello")

    @server.prompt
    async def waiting() -> AsyncIterator[Message]:
        yield User("hello")
        yield Assistant("hello")

    async with server.connect() as client:
        for name in ("blocking", "waiting"):
            written = (await client.prompt(name))["messages"]
            assert [(message["role"], message["content"]) for message in written] == [
                ("user", HELLO), ("assistant", HELLO),
            ]  # fmt: skip


@pytest.mark.req("MCP-5.3")
async def test_texts_on_the_wire_become_typed_arguments_or_a_broken_request():
    server = Server("s", "1")

    @server.prompt
    def write(count: int, names: list[str] | None = None, loud: bool = False, tone: Literal["a", "b"] = "a") -> str:
        return repr((count, names, loud, tone))

    async with server.connect() as client:

        async def text(**arguments: str) -> str:
            return (await client.prompt("write", **arguments))["messages"][0]["content"]["text"]

        assert await text(count="3") == "(3, None, False, 'a')"
        assert await text(count="3", names='["x"]', loud="true", tone="b") == "(3, ['x'], True, 'b')"
        for arguments in ({}, {"count": "x"}, {"count": "3", "tone": "c"}, {"count": "3", "size": "1"}):
            with pytest.raises(PeerError) as refused:
                await text(**arguments)
            assert refused.value.code == -32602


def test_a_prompt_that_returns_nothing_is_refused_at_registration():
    def silence() -> None: ...

    with pytest.raises(UsageError, match="prompt 'silence' returns nothing"):
        Server("s", "1").prompt(silence)


async def test_a_tool_error_is_the_author_s_answer_to_a_prompt_and_a_resource():
    server = Server("s", "1")

    @server.prompt
    def review(title: str) -> str:
        raise ToolError(f"There is no {title}.", data={"titles": ["emma"]})

    @server.resource("library://{title}")
    def book(title: str) -> str:
        raise ToolError(f"There is no {title}.")

    async with raw(server) as peer:
        asked = await peer.ask("prompts/get", {"name": "review", "arguments": {"title": "it"}})
        read = await peer.ask("resources/read", {"uri": "library://it"})
    assert [reply["error"]["code"] for reply in (asked, read)] == [-32602, -32602]
    assert [reply["error"]["message"] for reply in (asked, read)] == ["There is no it."] * 2
    assert asked["error"]["data"]["error_type"] == "tool_error" and asked["error"]["data"]["titles"] == ["emma"]
