"""The kinds of a decoded JSON value, as type guards. Open to every layer, since JSON comes in everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

JsonSchema = dict[str, Any]


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """An object as an author may write it."""
    return isinstance(value, Mapping)


def is_array(value: Any) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, list | tuple)


def as_list(value: Any) -> list[Any]:
    """A keyword that may hold one thing or a list of them."""
    return list(value) if is_array(value) else [value]
