"""MCP request params (schema: RequestParams), each member checked as it is read: InvalidParams says what is wrong."""

from __future__ import annotations

from typing import Any

from defserve.errors import InvalidParams
from defserve.wire.jsonvalue import is_object
from defserve.wire.messages import Params


def text(params: Params, name: str) -> str:
    """A member that must be a string."""
    found = params.get(name)
    if not isinstance(found, str):
        raise InvalidParams(f"Invalid params: {name} must be a string")
    return found


def fields(params: Params, name: str) -> Params:
    """A member that must be an object."""
    if (found := optional_fields(params, name)) is None:
        raise InvalidParams(f"Invalid params: {name} must be an object")
    return found


def optional_fields(params: Params, name: str) -> Params | None:
    """A member that may be missing. If it is given, it must be an object."""
    found: Any = params.get(name)
    if found.__class__ is not dict and found is not None and not is_object(found):
        raise InvalidParams(f"Invalid params: {name} must be an object")
    return found


def meta(params: Params) -> Params:
    """`_meta`; empty if the client sent none, or something that is not an object."""
    found = params.get("_meta")
    return found if is_object(found) else {}
