"""Infinities and NaN in results: JSON has none, so they are sent as null. A schema that says number refuses null."""

from __future__ import annotations

from math import isfinite
from typing import Any

from defserve.wire.jsonvalue import JsonSchema, as_list, is_array, is_object

_Schemas = list[Any]
_Path = tuple[Any, ...]


def refused_null(value: Any, schema: JsonSchema) -> str | None:
    """What is wrong with the first such number whose place in the schema does not take null; None if there is none."""
    defs: JsonSchema = schema.get("$defs", {})
    found = _search(value, _options([schema], defs), defs, ())
    if found is None:
        return None
    path, number = found
    at = ".".join(map(str, path))
    return f"{at}{': ' if at else ''}{number} has no JSON form: return None, and declare float | None"


def _search(value: Any, options: _Schemas, defs: JsonSchema, path: _Path) -> tuple[_Path, float] | None:
    if isinstance(value, float):
        return None if isfinite(value) or _take_null(options) else (path, value)
    if is_object(value):
        members: list[tuple[Any, Any]] = [*value.items()]
    else:
        members = [*enumerate(value)] if is_array(value) else []
    last: tuple[_Schemas, _Schemas] = [], []
    for key, member in members:
        inside = _inside(options, key)
        if not last[0] or inside != last[0]:  # the items of a list have one schema, mostly
            last = inside, _options(inside, defs)
        if (found := _search(member, last[1], defs, (*path, key))) is not None:
            return found
    return None


def _options(schemas: _Schemas, defs: JsonSchema) -> _Schemas:
    """The schemas with references and unions resolved."""
    found: _Schemas = []
    pending, seen = [*schemas], set[int]()
    while pending:
        here = pending.pop()
        if id(here) in seen:
            continue
        seen.add(id(here))
        if not is_object(here):
            found.append(here)
            continue
        inner = [one for name in ("anyOf", "oneOf", "allOf") for one in here.get(name, ())]
        if "$ref" in here:
            inner.append(defs.get(str(here["$ref"]).rpartition("/")[2], True))
        pending += inner
        if not inner:
            found.append(here)
    return found


def _inside(options: _Schemas, key: Any) -> _Schemas:
    """What the schemas say of a member: those that name it, or else all. True: it may be anything."""
    schemas = [option for option in options if is_object(option)]
    if isinstance(key, str):
        named = [option["properties"][key] for option in schemas if key in option.get("properties", {})]
        return named or [option.get("additionalProperties", True) for option in schemas]
    listed = [option["prefixItems"][key] for option in schemas if key < len(option.get("prefixItems", ()))]
    return listed or [option.get("items", True) for option in schemas if "items" in option]


def _take_null(options: _Schemas) -> bool:
    return not options or any(
        option is True or (is_object(option) and "null" in as_list(option.get("type", "null"))) for option in options
    )
