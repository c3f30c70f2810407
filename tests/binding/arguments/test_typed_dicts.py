"""`typing.TypedDict`: which keys are required, also where annotations are texts, as they are in this file."""

from __future__ import annotations

import typing
from typing import Annotated, Any, NotRequired, Required, TypedDict

import typing_extensions

from defserve import Server
from tests.rows import for_each_row


class Plain(TypedDict):
    a: int
    b: NotRequired[str]


class Open(TypedDict, total=False):
    a: Required[int]
    b: str


class Below(Plain):
    c: NotRequired[int]
    d: int


class Described(TypedDict):
    a: int
    b: Annotated[NotRequired[str], "what it is"]


class Extended(typing_extensions.TypedDict):
    a: int
    b: NotRequired[str]


class Outer(TypedDict):
    a: Plain
    b: NotRequired[Plain]


def schema_of(kind: Any) -> dict[str, Any]:
    def f(given: Any) -> str:
        return ""

    f.__annotations__["given"] = kind
    server = Server("t")
    server.tool(f)
    tool = server.mcp.tools.registry.get("f")
    assert tool is not None
    return tool.function.arguments.schema["properties"]["given"]


@for_each_row(
    "kind, required",
    [
        (Plain, {"a"}),
        (Open, {"a"}),
        (Below, {"a", "d"}),
        (Described, {"a"}),
        (Extended, {"a"}),
        (Outer, {"a"}),
        (typing.TypedDict("Made", {"a": int, "b": NotRequired[int]}), {"a"}),
    ],
)
def test_the_keys_that_are_required_are_those_of_the_declaration(kind: Any, required: set[str]):
    assert set(schema_of(kind)["required"]) == required
