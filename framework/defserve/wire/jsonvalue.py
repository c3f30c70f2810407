"""The kinds and limits of decoded JSON values. Every layer may use it, since JSON comes in everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, TypeGuard

JsonSchema = dict[str, Any]


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether this is an object as an author may write it: any mapping."""
    return isinstance(value, Mapping)


def is_array(value: Any) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, list | tuple)


def as_list(value: Any) -> list[Any]:
    """The value of a keyword that may hold one thing or a list of them, as a list."""
    return list(value) if is_array(value) else [value]


def excess(value: Any, depth: int, keys: int) -> str | None:
    """Why a message may not hold this decoded value: too deep, too wide, or an infinity in it. Else None."""
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    for _ in range(depth):
        below: list[Any] = []
        for container in level:
            if is_object(container) and len(container) > keys:
                return f"an object has more than {keys} members"
            for item in container.values() if is_object(container) else container:
                if isinstance(item, dict | list):
                    below.append(item)
                elif type(item) is float and not isfinite(item):
                    return "a number is too large"
        if not below:
            return None
        level = below
    return f"nested deeper than {depth} levels"


def without_surrogates(value: Any) -> Any:
    """The value with U+FFFD for each lone surrogate, which no JSON text can hold."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if is_object(value):
        return {without_surrogates(k): without_surrogates(v) for k, v in value.items()}
    if is_array(value):
        return [without_surrogates(item) for item in value]
    return value
