"""A tool's result as a Python value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import from_json

from defserve.errors import ToolError
from defserve.host.fields import object_of
from defserve.wire.jsonvalue import is_array, is_object

RETURNS: Final = "dev.defserve/returns"
"""The key of a tool's `_meta` that gives the type of its only text."""
WRAPPED: Final = "dev.defserve/wrapped"
"""The key of a result's `_meta` that says that its structured content is `{"result": value}`."""


def lone_text(result: Mapping[str, Any]) -> str | None:
    """The text of a result that is a single text block; None for other results."""
    content: Any = result.get("content") or []
    if result.get("structuredContent") is None and len(content) == 1 and content[0].get("type") == "text":
        return str(content[0].get("text", ""))
    return None


def value_of(result: Mapping[str, Any], returns: Mapping[str, Any] | None) -> Any:
    """Structured content if there is any, or else the only text decoded by `returns`, or else the content blocks.

    A result without content gives None. Raises ToolError for a result with `isError`.
    """
    if result.get("isError"):
        raise tool_error(result)
    if "structuredContent" in result:
        return unwrapped(result)
    text = lone_text(result)
    if text is None:
        return result.get("content") or None
    return read_text(text, returns) if returns is not None else text


def unwrapped(result: Mapping[str, Any]) -> Any:
    """The structured content of a result, without the wrapping that defserve and FastMCP give to lists and scalars."""
    content, meta = result["structuredContent"], object_of(result.get("_meta"))
    is_wrapped = meta.get(WRAPPED) is True or object_of(meta.get("fastmcp")).get("wrap_result") is True
    return content["result"] if is_wrapped and is_object(content) and content.keys() == {"result"} else content


def read_text(text: str, schema: Mapping[str, Any]) -> Any:
    """`text` as the JSON value that `schema` declares, or `text` itself if the schema allows a string."""
    types = _types(schema)
    if not types or "string" in types:
        return text
    try:
        return from_json(text)
    except ValueError:
        return text


def tool_error(result: Mapping[str, Any]) -> ToolError:
    content = result.get("content")
    blocks = [block for block in content if is_object(block)] if is_array(content) else []
    text = "\n".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")
    return ToolError(text or "the tool failed without a message", data=object_of(result.get("structuredContent")))


def _types(schema: Mapping[str, Any]) -> set[str]:
    """Every JSON type that the schema allows; empty if it does not say."""
    named: Any = schema.get("type")
    if isinstance(named, str):
        return {named}
    if is_array(named):
        return set(named)
    members: list[Any] = schema.get("anyOf") or schema.get("oneOf") or []
    values: list[Any] = [schema["const"]] if "const" in schema else list(schema.get("enum") or [])
    return {kind for member in members for kind in _types(member)} | {
        "string" if isinstance(value, str) else "other" for value in values
    }
