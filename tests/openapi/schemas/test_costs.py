"""Documents of strangers: a few lines must not make listing or checking slow, nor what is published long."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx2
import pytest

from defserve import Server
from defserve.errors import BadArguments
from defserve.protocols.mcp.tools import Tool
from tests.effort import calls_of
from tests.openapi.apis import Json, RecordingApi, document, operation
from tests.openapi.rules import of_tool
from tests.openapi.written import answers, ref
from tests.rows import for_each_row

LEVELS = 20
MOST_CALLS = 5_000_000
STRING = {"type": "string"}
LEAF = {"type": "object", "properties": {"x": STRING}}


def tool_of(body: Json, **schemas: Any) -> Tool:
    """The tool of an operation with this body."""
    content = {"application/json": {"schema": body}}
    paths = {"/a": {"post": operation(operationId="a", body=content)}}
    tool = Server.from_openapi(document(paths, components={"schemas": schemas})).mcp.tools.registry.get("a")
    assert tool is not None
    return tool


def levels(make: Callable[[Json], Json], last: Json, count: int = LEVELS) -> Json:
    """A0 … An, each made of the one below it."""
    return {**{f"A{n}": make(ref(f"A{n + 1}")) for n in range(count)}, f"A{count}": last}


def deep(inner: Any, count: int) -> Any:
    for _ in range(count):
        inner = {"type": "object", "properties": {"x": inner}}
    return inner


def both(each: Json) -> Json:
    more = {"allOf": [each, {"minProperties": 1}]}
    return {"allOf": [{"type": "object", "properties": {"l": more, "r": more}}]}


def inside_all_of(count: int) -> Json:
    made: Json = STRING
    for _ in range(count):
        made = {"allOf": [made, {"type": "integer"}]}
    return made


@for_each_row(
    "body schemas",
    [
        (ref("A0"), levels(lambda a: {"oneOf": [a, a]}, STRING)),
        (ref("A0"), levels(lambda a: {"anyOf": [a, a]}, STRING)),
        (ref("A0"), levels(lambda a: {"allOf": [a, a]}, LEAF)),
        (ref("A0"), levels(lambda a: {"allOf": [a, {"not": a}]}, LEAF)),
        (ref("A0"), levels(both, STRING)),
        (inside_all_of(60), {}),
        (ref("A0"), levels(lambda a: deep(a, 22), STRING, 40)),
        (ref("A0"), levels(lambda a: {"type": "object", "properties": {"x": a}}, STRING, 400)),
    ],
)
def test_a_short_document_makes_neither_listing_nor_checking_slow(body: Json, schemas: Json) -> None:
    tool = tool_of(body, **schemas)

    def use() -> None:
        names = tool.function.arguments.schema["properties"]
        with suppress(BadArguments):
            tool.function.arguments.validate(dict.fromkeys(names, 3))

    assert calls_of(use) < MOST_CALLS
    assert [*of_tool(tool)] == []


def test_a_schema_that_refers_to_itself_twice_is_checked_in_a_number_of_steps() -> None:
    form = {"type": "object", "properties": {"x": ref("A")}}
    tool = tool_of(ref("A"), A={"anyOf": [form, {**form, "required": ["x"]}]})
    value: Any = 3
    for _ in range(30):
        value = {"x": value}
    validate = tool.function.arguments.validate
    assert calls_of(lambda: validate({"body": value})) < MOST_CALLS
    with pytest.raises(BadArguments, match="body"):
        validate({"body": {"x": 3}})
    with pytest.raises(BadArguments, match="unknown argument"):
        validate({"body": value, "other": 1})


@pytest.mark.anyio
async def test_an_answer_is_compared_with_its_schema_in_a_number_of_steps() -> None:
    api = RecordingApi(lambda request: httpx2.Response(200, json={"x": json.loads('{"x":' * 30 + "3" + "}" * 30)}))
    form = {"type": "object", "properties": {"x": ref("A")}}
    schemas = {"A": {"anyOf": [form, {**form, "minProperties": 1}]}}
    responses = answers({"type": "object", "properties": {"x": ref("A")}})
    paths = {"/a": {"get": operation(operationId="a", responses=responses)}}
    async with api.server(paths, components={"schemas": schemas}).connect() as client:
        assert "outputSchema" in (await client.tools())[0]
        assert "isError" not in await client.call_raw("a")
        assert "outputSchema" not in (await client.tools())[0]


def test_a_union_of_definitions_that_are_cut_takes_what_fits_one_of_them() -> None:
    kinds = {
        f"K{n}": {
            "type": "object",
            "properties": {"kind": {"const": n}, **{f"field_{n}_{i}": STRING for i in range(200)}},
            "required": ["kind"],
        }
        for n in range(5)
    }
    tool = tool_of({"oneOf": [ref(name) for name in kinds]}, **kinds)
    for n in range(5):
        tool.function.arguments.validate({"body": {"kind": n}})


def test_many_long_parameters_are_cut_to_their_type() -> None:
    long: Json = {
        "type": "object",
        "properties": {f"name_{n}": {"type": "object", "properties": {}} for n in range(400)},
    }
    body: Json = {"type": "object", "properties": {f"p{n}": long for n in range(20)}}
    tool = tool_of(body)
    properties = tool.function.arguments.schema["properties"]
    assert [*of_tool(tool)] == [] and list(properties) == list(body["properties"])
    tool.function.arguments.validate({"p19": {"name_0": {}}})
