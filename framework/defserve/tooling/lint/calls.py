"""Checks calls against a list of tools. The server is not asked: a tool that it does not list does not exist."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from defserve.wire.jsonvalue import is_mapping

MOST = 20


def problems(tools: Iterable[Mapping[str, Any]], name: str, arguments: Mapping[str, Any]) -> list[str]:
    """Why a call would fail, one line each; empty if the list allows it.

    An argument that the schema does not name is a problem too, unless the schema allows others.
    """
    known = {str(tool.get("name")): tool for tool in tools}
    if name not in known:
        return [f"there is no tool {name!r}{_close(name, known)}"]
    schema: Mapping[str, Any] = known[name].get("inputSchema") or {}
    properties: Mapping[str, Any] = schema.get("properties") or {}
    allows_others = "additionalProperties" in schema or "patternProperties" in schema
    unknown = [] if allows_others else sorted(arguments.keys() - properties)
    return [*(f"{each}: unknown{_close(each, properties)}" for each in unknown), *_broken(schema, arguments)][:MOST]


def _broken(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[str]:
    from defserve.binding.arguments.explicit import find_errors

    try:
        errors = find_errors(dict(arguments), dict(schema), MOST, with_formats=True)
    except Exception as error:
        return [f"its schema cannot be used: {error}"]
    return [f"{_path(error.absolute_path)}{error.message}" for error in errors]


def _path(steps: Iterable[Any]) -> str:
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return f"{text}: " if text else ""


def _close(name: str, known: Mapping[str, Any]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, known, 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def read_call(value: Any) -> tuple[str, Mapping[str, Any]] | None:
    """The name and arguments of a call: `{"name": …, "arguments": {…}}`, or a whole `tools/call` request."""
    call: Any = value.get("params") if is_mapping(value) and "params" in value else value
    if not is_mapping(call) or not isinstance(call.get("name"), str):
        return None
    arguments: Any = call.get("arguments") or {}
    return (call["name"], arguments) if is_mapping(arguments) else None
