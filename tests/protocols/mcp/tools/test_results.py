"""What a tool returns, as each version of the protocol carries it."""

from __future__ import annotations

import enum
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal, TypedDict

import pytest
from pydantic import BaseModel

from defserve import Audio, Embedded, File, Image, Limits, Link, Server, Text, ToolError, ToolResult
from defserve.protocols.mcp import items
from defserve.protocols.mcp.tools import MAX_RESULT_DEPTH
from tests.raw import STATELESS, VERSIONS, Json, raw, text_of
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

NONE: Any = object()
WAV = b64encode(b"wav").decode()


class Model(BaseModel):
    n: int = 1


class Tree(BaseModel):
    below: list[Tree] = []


@dataclass
class Data:
    n: int = 1


class Typed(TypedDict):
    n: int


class Colour(enum.Enum):
    RED = "red"


class Row:
    """A function, the texts of its content, its structured content, and options."""

    def __init__(self, function: Callable[[], Any], texts: list[str], carries: Any = NONE, /, **options: Any) -> None:
        self.function, self.texts, self.structured, self.options = function, texts, carries, options


def returns(annotation: Any, value: Any) -> Callable[[], Any]:
    def give() -> Any:
        return value

    give.__annotations__["return"] = annotation
    return give


N = '{"n":1}'
ROWS: dict[str, Row] = {
    "str": Row(returns(str, "hello"), ["hello"]),
    "an empty str": Row(returns(str, ""), [""]),
    "None": Row(returns(None, None), []),
    "a model": Row(returns(Model, Model()), [N], {"n": 1}),
    "a dataclass": Row(returns(Data, Data()), [N], {"n": 1}),
    "a TypedDict": Row(returns(Typed, {"n": 1}), [N], {"n": 1}),
    "a dict": Row(returns(dict[str, int], {"n": 1}), [N], {"n": 1}),
    "a list": Row(returns(list[int], [1, 2]), ["[1,2]"], {"result": [1, 2]}),
    "a list of models": Row(returns(list[Model], [Model()]), [f"[{N}]"], {"result": [{"n": 1}]}),
    "a model or None": Row(returns(Model | None, Model()), [N], {"result": {"n": 1}}),
    "a model that is None": Row(returns(Model | None, None), ["null"], {"result": None}),
    "one of two models": Row(returns(Model | Data, Model()), [N], {"result": {"n": 1}}),
    "a model that holds itself": Row(returns(Tree, Tree()), ['{"below":[]}'], {"below": []}),
    "a bare list": Row(returns(list[int], [1, 2]), ["[1,2]"], [1, 2], structured="bare"),
    "int": Row(returns(int, 3), ["3"]),
    "float": Row(returns(float, 0.5), ["0.5"]),
    "bool": Row(returns(bool, True), ["true"]),
    "a date": Row(returns(date, date(2026, 1, 2)), ["2026-01-02"]),
    "an enum": Row(returns(Colour, Colour.RED), ["red"]),
    "a literal": Row(returns(Literal["a"], "a"), ["a"]),
    "a structured scalar": Row(returns(int, 3), ["3"], {"result": 3}, structured=True),
    "a structured str": Row(returns(str, "x"), ["x"], {"result": "x"}, structured=True),
    "a bare scalar": Row(returns(int, 3), ["3"], 3, structured="bare"),
    "an unstructured model": Row(returns(Model, Model()), [N], structured=False),
    "not annotated": Row(returns(Any, {"n": 1}), [N], {"n": 1}),
    "a list, not annotated": Row(returns(Any, [1]), ["[1]"]),
    "parts": Row(returns(list[str | Text], ["a", Text("b")]), ["a", "b"]),
}


def serving(row: Row) -> Server:
    server = Server("s", "1")
    server.add_tool(row.function, **row.options)
    return server


@pytest.mark.slow
@pytest.mark.req("MCP-5.1o", "GGEN-M1")
@for_each_row("version", VERSIONS)
@for_each_row("case", ROWS)
async def test_a_result_is_text_and_where_the_version_has_it_structured_content(version: str, case: str):
    row = ROWS[case]
    async with raw(serving(row), version) as peer:
        (tool,) = (await peer.ask("tools/list"))["result"]["tools"]
        result = await peer.call("give")
        assert result.get("isError", False) is False
        assert [(block["type"], block["text"]) for block in result["content"]] == [("text", text) for text in row.texts]
        carried = row.structured is not NONE and version >= (
            "2025-06-18" if isinstance(row.structured, dict) else STATELESS
        )
        assert result.get("structuredContent", NONE) == (row.structured if carried else NONE)
        if "outputSchema" in tool:
            import jsonschema

            jsonschema.validate(result["structuredContent"], tool["outputSchema"])
            assert tool["outputSchema"]["type"] == "object" or row.options.get("structured") == "bare"
        assert ("outputSchema" in tool) is (carried and case != "not annotated")


@pytest.mark.slow
@for_each_row("version", VERSIONS)
@for_each_row("case", ROWS)
async def test_our_client_gives_the_value_without_its_wrapping(version: str, case: str):
    row = ROWS[case]
    async with serving(row).connect(version=version) as client:
        value = await client.call("give")
        assert not (isinstance(value, dict) and "result" in value)


CONTENT: dict[str, tuple[Any, Json, tuple[str, Json] | None]] = {
    "an image": (Image(b"wav", format="png"), {"type": "image", "data": WAV, "mimeType": "image/png"}, None),
    "audio": (
        Audio(b"wav", format="wav"),
        {"type": "audio", "data": WAV, "mimeType": "audio/wav"},
        ("2025-03-26", {"type": "text", "text": "[audio, audio/wav, 3 bytes]"}),
    ),
    "a link": (
        Link("x://r", "r", mime_type="text/plain", size=3),
        {"type": "resource_link", "uri": "x://r", "name": "r", "mimeType": "text/plain", "size": 3},
        ("2025-06-18", {"type": "text", "text": "[resource] r: x://r"}),
    ),
    "an embedded text": (
        Embedded("x://r", text="t", mime_type="text/plain"),
        {"type": "resource", "resource": {"uri": "x://r", "mimeType": "text/plain", "text": "t"}},
        None,
    ),
    "a file": (
        File(data=b"wav", name="a.bin", mime_type="application/octet-stream"),
        {"type": "resource", "resource": {"uri": "file:///a.bin", "mimeType": "application/octet-stream", "blob": WAV}},
        None,
    ),
}  # fmt: skip


@pytest.mark.req("MCP-5.1c")
@for_each_row("version", VERSIONS)
@for_each_row("case", CONTENT)
@for_each_row("alone", [True, False])
async def test_content_travels_as_blocks_the_version_knows(version: str, case: str, alone: bool):
    part, block, older = CONTENT[case]
    expected = older[1] if older is not None and version < older[0] else block
    kind = type(part)
    row = Row(returns(kind, part), []) if alone else Row(returns(list[str | kind], ["a", part]), [])  # type: ignore[valid-type]
    async with raw(serving(row), version) as peer:
        result = await peer.call("give")
        assert result["content"] == [*([] if alone else [{"type": "text", "text": "a"}]), expected]
        assert "structuredContent" not in result


def failing(error: Exception) -> Callable[[], Any]:
    def give(n: int = 1) -> str:
        raise error

    return give


@pytest.mark.req("MCP-5.1e", "MCP-9.4")
@for_each_row("version", VERSIONS)
async def test_a_failing_tool_is_a_result_the_model_reads_and_a_broken_request_is_an_error(version: str):
    for error, text in (
        (ToolError("try a smaller n"), "try a smaller n"),
        (ValueError("secret"), "internal error (id "),
    ):
        async with raw(serving(Row(failing(error), [])), version) as peer:
            result = await peer.call("give")
            assert result["isError"] is True
            assert text_of(result).startswith(text) and "secret" not in str(result)
            wrong = await peer.call("give", {"n": "x", "m": 1})
            assert wrong["isError"] is True
            assert sorted(text_of(wrong).splitlines()) == [
                'n: expected integer, got "x"',
                'unknown argument "m"; known: n',
            ]
            for params in ({"name": "none"}, {"name": 1}, {}, {"name": "give", "arguments": [1]}):
                assert (await peer.ask("tools/call", params))["error"]["code"] == -32602


async def test_a_value_that_breaks_its_own_promise_is_masked():
    async with raw(serving(Row(returns(int, "three"), []))) as peer:
        result = await peer.call("give")
        assert result["isError"] and text_of(result).startswith("internal error (id ")


@pytest.mark.parametrize(
    "parts",
    [
        [Text("x" * 1001)],
        [Image(b"x" * 751, format="png")],
        [Embedded("x://y", data=b"x" * 751)],
        [Embedded("x://y", text="x" * 1001)],
        [Text("x" * 501), Image(b"x" * 380, format="png")],
    ],
    ids=["text", "image", "blob", "embedded text", "together"],
)
async def test_a_result_past_the_limit_is_refused_before_it_is_encoded(
    parts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server("s", "1", limits=Limits(response=1000))

    @server.tool
    def many() -> Any:
        return parts

    monkeypatch.setattr(items, "encode_content_block", lambda part, dialect: pytest.fail("encoded"))
    async with raw(server, STATELESS) as peer:
        result = await peer.call("many")
    assert result["isError"] is True and text_of(result) == "the result is larger than 1000 bytes"


@for_each_row("version", VERSIONS)
async def test_audio_that_a_version_does_not_carry_counts_for_nothing(version: str) -> None:
    server = Server("s", "1", limits=Limits(response=1000))

    @server.tool
    def song() -> Audio:
        return Audio(b"x" * 2000, format="wav")

    async with raw(server, version) as peer:
        text = text_of(await peer.call("song"))
    refused = "the result is larger than 1000 bytes"
    assert text == ("[audio, audio/wav, 2000 bytes]" if version == "2024-11-05" else refused)


@for_each_row("era", ["handshake", "stateless"])
async def test_a_result_that_our_own_client_would_refuse_as_too_deep_is_an_error_that_names_the_limit(era: str) -> None:
    server = Server("s", "1")

    def nested(levels: int) -> Any:
        value: dict[str, Any] = {}
        for _ in range(levels - 1):
            value = {"a": value}
        return value

    @server.tool
    def plain(levels: int) -> dict[str, Any]:
        return nested(levels)

    @server.tool
    def untyped(levels: int):  # type: ignore[no-untyped-def]
        return nested(levels)

    @server.tool
    def wrapped(levels: int) -> list[dict[str, Any]]:
        return [nested(levels - 2)]

    @server.tool
    def beside(levels: int) -> ToolResult:
        return ToolResult("deep", data=nested(levels))

    async with server.connect(era) as client:
        for tool in ("plain", "untyped", "wrapped", "beside"):
            result = await client.call_raw(tool, {"levels": MAX_RESULT_DEPTH})
            assert not result.get("isError") and "structuredContent" in result, tool
            result = await client.call_raw(tool, {"levels": MAX_RESULT_DEPTH + 1})
            assert result["isError"] is True
            assert text_of(result) == f"the result is nested deeper than {MAX_RESULT_DEPTH} levels"
