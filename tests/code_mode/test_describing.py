"""What a model is told of the tools that its code can call."""

from __future__ import annotations

import json
from enum import Enum
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from defserve import Server, ToolError, UsageError
from defserve.auth import StaticTokens
from defserve.auth.principals import Principal
from defserve.code_mode import CodeMode
from defserve.code_mode.extension import (
    MAX_SIGNATURE_LENGTH,
    _match_query,  # pyright: ignore[reportPrivateUsage]
    is_callable_by_name,
    signature,
)
from defserve.protocols.mcp.tools import Tool, ToolOptions
from defserve.proxying.items import RemoteTool
from defserve.sandbox import monty
from defserve.search.ranking import MAX_QUERY_LENGTH
from defserve.server import AccessPolicy, Entry
from tests.code_mode.peers import run, value
from tests.effort import cpu_within
from tests.hostile_schemas import SCHEMAS
from tests.protocols.mgp.callers import ALICE, speaking
from tests.raw import ERAS, STATELESS, VERSIONS, Json, Raw, raw, text_of
from tests.rows import for_each_row

pytestmark = pytest.mark.skipif(
    not monty.is_installed(), reason="pydantic-monty is not installed in the tested version"
)


DIALECT = Server("s", "1").mcp.lifecycle.dialects[STATELESS]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Line(BaseModel):
    article: str
    count: int = 1


class Order(BaseModel):
    lines: list[Line]
    note: str | None = None


def order(
    order: Order, colour: Colour, speed: Literal["slow", "fast"] = "slow", tags: list[str] | None = None
) -> Order:
    """Send an order.

    It is paid for later.
    """
    return order


def plain(n: float, flag: bool = False, more: dict[str, int] = {}) -> bool:  # noqa: B006
    return flag


def nothing() -> None:
    """Do nothing."""


SIGNATURES = {
    order: (
        "def order(order: {'lines': list[{'article': str, 'count'?: int}], 'note'?: str | None}, "
        "colour: Literal['red', 'blue'], speed: Literal['slow', 'fast'] = 'slow', tags: list[str] | None = None) "
        "-> {'lines': list[{'article': str, 'count'?: int}], 'note'?: str | None}: Send an order. It is paid for later."
    ),
    plain: "def plain(n: float, flag: bool = False, more: dict[str, int] = {}) -> bool",
    nothing: "def nothing() -> None: Do nothing.",
}


@for_each_row("function", SIGNATURES, ids=lambda function: function.__name__)
def test_a_tool_is_described_as_a_python_function(function: Any):
    assert signature(Tool.of(function), DIALECT) == SIGNATURES[function]


@for_each_row("name", ["files.read", "read-file", "list", "class", "print", "3d"])
def test_a_name_that_no_function_can_have_is_called_by_call_tool(name: str):
    assert not is_callable_by_name(name)
    described = signature(Tool.of(nothing, ToolOptions(name=name)), DIALECT)
    assert described == f"await call_tool({name!r}, {{}}) -> None: Do nothing."


def odd(**given: Any) -> None: ...


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "properties",
                    "items",
                    "anyOf",
                    "oneOf",
                    "enum",
                    "const",
                    "$ref",
                    "required",
                    "additionalProperties",
                ]
            ),
            inner | st.sampled_from(["object", "array", "string", "#/$defs/a", "#/properties"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4), JSON)
def test_any_schema_can_be_described(properties: Json, definition: Any):
    schema = {"type": "object", "properties": properties, "$defs": {"a": definition}}
    try:
        tool = Tool.of(odd, ToolOptions(schema=schema))
        text = signature(tool, DIALECT)
    except Exception as error:
        # What an author may not declare is refused when it is declared.
        assert type(error).__name__ == "UsageError", error
        return
    assert text.startswith("def odd(")


def remote(schema: Json) -> RemoteTool:
    backend: Any = SimpleNamespace(id="far", prefix=SimpleNamespace(text=""), timeout=None)
    return RemoteTool(backend, "far_tool", {"name": "tool", "inputSchema": schema, "outputSchema": schema})


@for_each_row("name", list(SCHEMAS))
def test_any_schema_of_another_server_is_described_in_little_time(name: str):
    tool = remote(SCHEMAS[name])
    assert len(signature(tool, DIALECT)) <= MAX_SIGNATURE_LENGTH
    assert cpu_within(0.25, lambda: signature(tool, DIALECT))


@for_each_row("name", ["a\ndef b(", "a\u2028b", "a) -> int: Adds.", "", "a b", "class-name", "n" * 500])
def test_a_parameter_of_another_server_begins_no_line_of_its_own(name: str):
    text = signature(remote({"type": "object", "properties": {name: {"type": "integer"}}}), DIALECT)
    assert len(text.splitlines()) == 1
    assert repr(name[:64]) in text


def number() -> int:
    return 1


def library(count: int = 3, **more: Any) -> Server:
    options: dict[str, Any] = {"code_mode": True, **more}
    server = Server("library", "1", **options)
    for n in range(count):
        about = f"Book number {n}." + (" It is about whales." if n == 1 else "")
        server.add_tool(number, name=f"book_{n}", description=about)

    @server.tool(scopes=["admin"])
    def secret() -> str:
        """A secret."""
        return ""

    return server


async def described(peer: Raw, **arguments: Any) -> list[str]:
    return text_of(await peer.call("describe_tools", arguments)).splitlines()


@pytest.mark.anyio
async def test_all_tools_are_described_but_those_of_code_mode():
    async with raw(library()) as peer:
        lines = await described(peer)
        assert [line.split("(")[0] for line in lines] == ["def book_0", "def book_1", "def book_2", "def secret"]
        assert await described(peer, names=["book_1", "nothing"]) == [lines[1], "# there is no tool nothing"]
        assert await described(peer, query="whales") == [lines[1]]
        assert await described(peer, query="submarines") == ["# no tool fits"]


@pytest.mark.anyio
async def test_many_tools_are_described_briefly_and_not_all():
    async with raw(library(300)) as peer:
        lines = await described(peer)
    assert len(lines) == 201
    assert lines[-1] == "# and 101 more: give a query"
    assert max(map(len, lines)) < 200


@pytest.mark.anyio
async def test_a_query_longer_than_a_few_sentences_is_refused():
    async with raw(library()) as peer:
        assert (await described(peer, query="whales " * 100))[0].startswith("def book_1(")
        (told,) = await described(peer, query="q " * MAX_QUERY_LENGTH)
    assert told == f"the query has more than {MAX_QUERY_LENGTH} characters; say it in a few words"


def test_a_query_is_looked_for_once_in_each_tool_however_often_it_says_a_word():
    tools = {f"book_{n}": Tool.of(number, ToolOptions(name=f"book_{n}", description="a " * 4_000)) for n in range(200)}
    assert cpu_within(0.5, lambda: _match_query(tools, " ".join(f"w{n}" for n in range(MAX_QUERY_LENGTH))))
    assert _match_query(tools, "book_7 book_7 BOOK_7 zebra")[0] == "book_7"


@pytest.mark.anyio
async def test_a_caller_is_told_only_of_what_it_may_use():
    tokens = StaticTokens({"a-token-of-some-length": "bob"})
    policy = AccessPolicy("opt-out", [Entry("tool_grant", "alice", "book_1", "deny")])
    async with speaking(library(auth=tokens), STATELESS, who=Principal("bob")) as peer:
        assert "secret" not in str(await described(peer))
        assert await described(peer, names=["secret"]) == ["# there is no tool secret"]
        assert await described(peer, query="secret") == ["# no tool fits"]
    async with speaking(library(access=policy), STATELESS, who=ALICE) as peer:
        assert "book_1" not in str(await described(peer))
        assert await described(peer, query="whales") == ["# no tool fits"]
        assert "book_1" not in value(await run(peer, "describe_tools()"))


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("version", ERAS)
async def test_with_search_a_query_is_ranked_and_code_mode_stays_listed(version: str):
    async with raw(library(50, search="always"), version) as peer:
        names = [tool["name"] for tool in (await peer.ask("tools/list"))["result"]["tools"]]
        assert {"run_code", "describe_tools"} <= set(names) and "book_1" not in names
        assert (await described(peer, query="whales"))[0].startswith("def book_1(")
        assert value(await run(peer, "book_1()")) == 1
        after = [tool["name"] for tool in (await peer.ask("tools/list"))["result"]["tools"]]
        assert after == names  # what code calls is not loaded into the model's list


@pytest.mark.anyio
@pytest.mark.parametrize("version", VERSIONS)
async def test_other_tools_can_be_left_out_of_the_list_and_still_be_called(version: str):
    async with raw(library(code_mode=CodeMode(list_tools=False)), version) as peer:
        listed = (await peer.ask("tools/list"))["result"]["tools"]
        assert [tool["name"] for tool in listed] == ["run_code", "describe_tools"]
        assert len(json.dumps(listed)) < 4_000
        assert (await peer.call("book_1"))["content"][0]["text"] == "1"
        assert '"result": 1' in json.dumps(await peer.call("run_code", {"code": "book_1()"})) or version < "2025-06-18"
        assert len(await described(peer)) == 4


@pytest.mark.anyio
async def test_the_tools_of_a_view_are_listed_for_its_host_and_not_for_code():
    server = library(1)
    server.add_tool(number, name="press", description="Press the button.", visible_to="app")
    async with server.connect(apps=True) as client:
        assert "press" in [tool["name"] for tool in await client.tools()]
        assert "press" not in await client.call("describe_tools")
        assert "no tool press" in await client.call("describe_tools", names=["press"])
        with pytest.raises(ToolError, match="no tool is called 'press'"):
            await client.call("run_code", code="await call_tool('press', {})")
        assert await client.call("press") == 1
    async with server.connect() as plain:
        assert "press" not in [tool["name"] for tool in await plain.tools()]


@for_each_row("given", ["yes", 1, {"calls": 3}])
def test_options_of_another_kind_are_refused(given: Any) -> None:
    with pytest.raises(UsageError, match=r"use True, or CodeMode\(…\)"):
        Server("s", code_mode=given)
