"""MGP §4.5: guards are found in types of parameters, however deep, also in types that hold themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass
from types import ModuleType
from typing import Any, Generic, Optional, TypeVar

import pytest
from pydantic import BaseModel, ConfigDict, Json
from pydantic_core import CoreSchema, core_schema
from typing_extensions import NamedTuple, TypeAliasType, TypedDict

from defserve import PublicUrl, Server, ShellCommand, UsageError, dangerous
from defserve.protocols.mcp.tools import Tool, ToolOptions
from defserve.protocols.mgp.guarded_types import find_tool_guards
from defserve.protocols.mgp.security import ToolSecurity
from tests.rows import for_each_row


class Node(BaseModel):
    parent: Optional["Node"] = None  # noqa: UP037, UP045
    other: Node | int | None = None


@dataclass
class Link:
    next: Link | None = None


class Entry(TypedDict):
    below: dict[str, Entry] | None


class Step(BaseModel):
    command: ShellCommand
    after: Step | None = None


class OpenStep(BaseModel):
    command: ShellCommand | str
    after: OpenStep | None = None


class Nested:
    """As `type Nested = list[Nested] | ShellCommand | None` is, from Python 3.12 on."""

    __value__: Any

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        return core_schema.any_schema()


Nested.__value__ = list[Nested] | ShellCommand | None


def taking(annotation: Any) -> Tool:
    def f(given: Any) -> str:
        return ""

    f.__annotations__["given"] = annotation
    return Tool.of(f, ToolOptions(), find_provider=lambda _: None, owner=None)


@for_each_row("kind", [Node, Link, Entry, list[Node | None]])
def test_a_type_that_holds_itself_in_a_union_is_searched_once(kind: Any):
    assert find_tool_guards(taking(kind)) == {}


@for_each_row("kind", [Node, Link, Entry])
def test_a_dangerous_tool_may_take_a_type_that_holds_itself(kind: Any):
    server = Server("t")

    @server.tool
    @dangerous
    def wipe(given: kind) -> str:
        return ""

    assert "wipe" in server.mcp.tools.registry


@for_each_row("kind", [Step, Step | None, Nested])
def test_a_guard_is_found_in_a_type_that_holds_itself(kind: Any):
    assert [type(guard).__name__ for guard in find_tool_guards(taking(kind))["given"]] == ["Shell"]


@for_each_row("kind", [OpenStep, Step | OpenStep, tuple[ShellCommand, ShellCommand | str], Step | dict[str, Any]])
def test_a_plain_form_beside_a_guard_is_refused_though_the_guard_was_met_before(kind: Any):
    with pytest.raises(UsageError, match="which accepts what the guard refuses"):
        find_tool_guards(taking(kind))


T = TypeVar("T")


@dataclass
class Page(Generic[T]):
    url: PublicUrl
    payload: T


@dataclass
class OpenPage(Generic[T]):
    url: PublicUrl | str
    payload: T


class NamedPage(TypedDict, Generic[T]):
    url: PublicUrl
    payload: T


class OpenNamedPage(TypedDict, Generic[T]):
    url: PublicUrl | str
    payload: T


class TuplePage(NamedTuple, Generic[T]):
    url: PublicUrl
    payload: T


class OpenTuplePage(NamedTuple, Generic[T]):
    url: PublicUrl | str
    payload: T


class ModelPage(BaseModel, Generic[T]):
    url: PublicUrl
    payload: T


@dataclass
class Initial:
    url: InitVar[PublicUrl]


@dataclass
class OpenInitial:
    url: InitVar[PublicUrl | str]


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, PublicUrl]  # pyright: ignore[reportIncompatibleVariableOverride]


class OpenExtra(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, PublicUrl | str]  # pyright: ignore[reportIncompatibleVariableOverride]


Listed = TypeAliasType("Listed", list[T], type_params=(T,))
OrText = TypeAliasType("OrText", T | str, type_params=(T,))
Limited = TypeVar("Limited", bound=PublicUrl)
Either = TypeVar("Either", PublicUrl, str)

# Every way that pydantic knows to have a type inside another. The second of each pair also takes any text.
_HOLDERS: dict[str, tuple[Any, Any]] = {
    "a generic dataclass": (Page[int], OpenPage[int]),
    "a generic TypedDict": (NamedPage[int], OpenNamedPage[int]),
    "a generic NamedTuple": (TuplePage[int], OpenTuplePage[int]),
    "a generic model": (ModelPage[int], ModelPage[PublicUrl | str]),
    "an argument of a generic": (Page[PublicUrl], Page[PublicUrl | str]),
    "a generic alias": (Listed[PublicUrl], OrText[PublicUrl]),
    "a TypeVar": (Limited, Either),
    "an InitVar": (Initial, OpenInitial),
    "extra fields": (Extra, OpenExtra),
    "JSON in a text": (Json[list[PublicUrl]], Json[list[PublicUrl | str]]),
    "keys": (dict[PublicUrl, int], dict[PublicUrl | str, int]),
    "items": (list[PublicUrl], tuple[PublicUrl | str, ...]),
}


@for_each_row("name", _HOLDERS)
def test_a_guard_is_found_wherever_pydantic_can_have_a_type(name: str):
    guarded, bypassed = _HOLDERS[name]
    assert [type(guard).__name__ for guard in find_tool_guards(taking(guarded))["given"]] == ["Url"]
    found = ToolSecurity.from_tool(taking(guarded))
    assert found is not None and found.notes_urls
    with pytest.raises(UsageError, match="which accepts what the guard refuses"):
        find_tool_guards(taking(bypassed))


@for_each_row("declare", ["prompt", "resource", "completion"])
def test_a_union_that_bypasses_a_guard_is_refused_in_every_declaration(declare: str):
    server = Server("s")

    def read(value: OpenPage[int] | None = None) -> str:
        return ""

    def suggest(value: str, other: OpenPage[int]) -> list[str]:
        return []

    declared: dict[str, Callable[[], object]] = {
        "prompt": lambda: server.prompt(read),
        "resource": lambda: server.resource("a://b")(read),
        "completion": lambda: server.completion("read", "value")(suggest),
    }
    with pytest.raises(UsageError, match="which accepts what the guard refuses"):
        declared[declare]()


def test_a_type_without_a_json_form_may_stand_beside_a_schema_of_ones_own():
    def f(given: Any) -> str:
        return ""

    f.__annotations__["given"] = ModuleType
    schema: dict[str, Any] = {"type": "object", "properties": {"given": {}}, "required": ["given"]}
    assert find_tool_guards(Tool.of(f, ToolOptions(schema=schema), find_provider=lambda _: None, owner=None)) == {}


@pytest.mark.anyio
async def test_a_guard_alone_makes_no_hint_of_what_its_tool_does():
    server = Server("files", "1")

    @server.tool
    def fetch(url: PublicUrl) -> str:
        """Fetch a page, and do anything with it."""
        return url

    async with server.connect() as client:
        (tool,) = await client.tools()
    assert "annotations" not in tool
