from __future__ import annotations

from typing import Any, Literal

import pytest

from defserve import Assistant, Embedded, Image, Message, Server, Text, UsageError, User
from defserve.errors import PeerError
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
