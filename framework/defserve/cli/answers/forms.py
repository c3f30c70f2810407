"""Whether a form that a server sends can be shown: its fields, their types and choices."""

from __future__ import annotations

from typing import Any

from defserve.wire.jsonvalue import is_array, is_object


def form_problem(schema: dict[str, Any]) -> str | None:
    """What is wrong with a `requestedSchema`, in words; None if it can be asked field by field."""
    fields, required = schema.get("properties"), schema.get("required")
    if fields is None:
        fields = {}
    if not is_object(fields):
        return "its properties are not an object"
    if required is not None and not (is_array(required) and all(isinstance(name, str) for name in required)):
        return "its required is not a list of names"
    for name, field in fields.items():
        if (problem := _field_problem(field)) is not None:
            return f"its field {name!r} {problem}"
    return None


def _field_problem(field: Any) -> str | None:
    if not is_object(field):
        return "is not an object"
    kind, one = field.get("type"), field
    if kind is not None and not isinstance(kind, str):
        return "has a type that is not a string"
    if kind == "boolean" and not isinstance(field.get("default", False), bool | None):
        return "has a default that is neither true nor false"
    if kind == "array":
        one = field.get("items")
        if one is None:
            one = {}
        if not is_object(one):
            return "has items that are not an object"
    for member in ("oneOf", "anyOf"):
        options = one.get(member)
        if options is not None and not (is_array(options) and all(map(_is_option, options))):
            return f"has a {member} that is not a list of choices"
    for member in ("enum", "enumNames"):
        values = one.get(member)
        if values is not None and not (is_array(values) and all(map(_is_plain, values))):
            return f"has an {member} that is not a list of plain values"
    return None


def _is_option(option: Any) -> bool:
    return is_object(option) and _is_plain(option.get("const"))


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)
