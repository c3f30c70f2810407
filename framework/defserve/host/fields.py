"""Reads the fields of a peer's JSON. An optional field that is missing or of the wrong type counts as empty."""

from __future__ import annotations

from typing import Any, TypeAlias

from defserve.wire.jsonvalue import is_array, is_object

Json: TypeAlias = dict[str, Any]


def object_of(value: Any) -> Json:
    """`value` if it is a JSON object, else an empty object."""
    return value if is_object(value) else {}


def text_of(value: Any) -> str | None:
    """`value` if it is a string, else None."""
    return value if isinstance(value, str) else None


def number_of(value: Any) -> float | None:
    """`value` if it is a number, else None."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def texts_of(value: Any) -> list[str]:
    """The strings in a JSON array; empty if `value` is no array."""
    return [item for item in value if isinstance(item, str)] if is_array(value) else []
