"""MGP §4.5: guards are found in types of parameters, however deep, also in types that hold themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import pytest
from pydantic import BaseModel
from pydantic_core import CoreSchema, core_schema
from typing_extensions import TypedDict

from defserve import Server, ShellCommand, UsageError, dangerous
from defserve.protocols.mcp.tools.tools import Tool, ToolOptions
from defserve.protocols.mgp.security.guarded_types import guards_of
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
    assert guards_of(taking(kind)) == {}


@pytest.mark.parametrize("kind", [Node, Link, Entry])
def test_a_dangerous_tool_may_take_a_type_that_holds_itself(kind: Any):
    server = Server("t")

    @server.tool
    @dangerous
    def wipe(given: kind) -> str:
        return ""

    assert "wipe" in server.mcp.tools.registry


@for_each_row("kind", [Step, Step | None, Nested])
def test_a_guard_is_found_in_a_type_that_holds_itself(kind: Any):
    assert [type(guard).__name__ for guard in guards_of(taking(kind))["given"]] == ["Shell"]


@for_each_row("kind", [OpenStep, Step | OpenStep, tuple[ShellCommand, ShellCommand | str], Step | dict[str, Any]])
def test_a_plain_form_beside_a_guard_is_refused_though_the_guard_was_met_before(kind: Any):
    with pytest.raises(UsageError, match="which accepts what the guard refuses"):
        guards_of(taking(kind))
