"""A server whose authors and APIs have written patterns that backtrack, everywhere where a pattern may stand."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from defserve import Context, Server

PATTERNS = {
    "nested": "^(a+)+$",
    "choice": "^(a|aa)+$",
    "words": r"^(\w+\s?)*$",
    "optional": "^" + "a?" * 24 + "a" * 24 + "$",
    "polynomial": r"^\w*\d*\w*\d*\w*$",
    "anything": "^(.*)*x$",
}

server = Server("patterned", "1")


def field(pattern: str) -> Any:
    def take(text: Annotated[str, Field(pattern=pattern)]) -> str:
        return "taken"

    take.__annotations__["text"] = Annotated[str, Field(pattern=pattern)]
    return take


def rest() -> Any:
    def take(**given: Any) -> str:
        return "taken"

    return take


def text(pattern: str) -> dict[str, Any]:
    return {"type": "string", "maxLength": 20_000, "pattern": pattern}


def asking(pattern: str) -> Any:
    async def ask(ctx: Context) -> str:
        form: Any = {"properties": {"text": text(pattern)}, "required": ["text"]}
        await ctx.ask("Which?", form, key="which")
        return "taken"

    return ask


def operation(name: str, pattern: str) -> dict[str, Any]:
    parameter = {"name": "text", "in": "query", "schema": text(pattern), "required": True}
    return {"get": {"operationId": f"api_{name}", "parameters": [parameter], "responses": {"200": {"description": ""}}}}


for _name, _pattern in PATTERNS.items():
    _inner = {"type": "array", "items": {"anyOf": [text(_pattern), {"type": "integer"}]}}
    _schemas = {
        "schema": {"properties": {"text": text(_pattern)}},
        "inner": {"properties": {"text": _inner}},
        "names": {"propertyNames": text(_pattern)},
        "members": {"patternProperties": {_pattern: {"type": "integer"}}, "additionalProperties": False},
    }
    server.tool(name=f"field_{_name}")(field(_pattern))
    server.tool(name=f"ask_{_name}")(asking(_pattern))
    for _place, _schema in _schemas.items():
        server.tool(name=f"{_place}_{_name}", schema={"type": "object", **_schema})(rest())

server.add_openapi(
    {
        "openapi": "3.1.0",
        "info": {"title": "api", "version": "1"},
        "servers": [{"url": "https://api.example.com"}],
        "paths": {f"/{name}": operation(name, pattern) for name, pattern in PATTERNS.items()},
    },
    base_url="http://127.0.0.1:9",
)
