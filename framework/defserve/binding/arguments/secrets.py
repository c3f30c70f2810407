"""Which values must never be shown: secrets by name, by `writeOnly` or `format: password`, and containers of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from defserve.binding.arguments.compact import children, walk
from defserve.wire.jsonvalue import JsonSchema, is_object

Path = Sequence[str | int]


def is_secret(schema: JsonSchema, path: Path) -> bool:
    """Whether the value at a path is secret, holds a secret, or is inside one.

    A path that is not in the schema is secret if anything in the schema is.
    """
    from defserve.redaction import is_secret_name

    if any(isinstance(step, str) and is_secret_name(step) for step in path):
        return True
    if not any(map(_marked, walk(schema))):
        return False
    here = _alternatives(schema, [schema])
    for step in path:
        if any(map(_marked, here)):
            return True
        here = _alternatives(schema, _inside(here, step))
    return not here or _holds_secret(schema, here)


def _marked(schema: JsonSchema) -> bool:
    return schema.get("writeOnly") is True or schema.get("format") == "password"


def _inside(schemas: Iterable[JsonSchema], step: str | int) -> Iterator[JsonSchema]:
    for schema in schemas:
        if isinstance(step, int):
            prefix: list[Any] = schema.get("prefixItems", [])
            yield from filter(is_object, [*prefix[step : step + 1], schema.get("items")])
        else:
            named: dict[str, Any] = schema.get("properties", {})
            patterns: dict[str, Any] = schema.get("patternProperties", {})
            yield from filter(is_object, [named.get(step), *patterns.values(), schema.get("additionalProperties")])


def _alternatives(root: JsonSchema, schemas: Iterable[JsonSchema]) -> list[JsonSchema]:
    """The schemas, with the targets of their references and the branches of their unions."""
    found: list[JsonSchema] = []
    pending = list(schemas)
    while pending:
        here = pending.pop()
        if any(here is other for other in found):
            continue
        found.append(here)
        for name in ("anyOf", "oneOf", "allOf"):
            pending.extend(filter(is_object, here.get(name, [])))
        if is_object(target := _resolved(root, here.get("$ref"))):
            pending.append(target)
    return found


def _resolved(root: JsonSchema, ref: Any) -> Any:
    if not isinstance(ref, str) or not ref.startswith("#"):
        return None
    here: Any = root
    for step in ref[1:].split("/")[1:]:
        here = here.get(step.replace("~1", "/").replace("~0", "~")) if is_object(here) else None
    return here


def _holds_secret(root: JsonSchema, schemas: list[JsonSchema]) -> bool:
    seen: set[int] = set()
    pending = list(schemas)
    while pending:
        here = pending.pop()
        if id(here) in seen:
            continue
        seen.add(id(here))
        if _marked(here):
            return True
        pending.extend(children(here))
        if is_object(target := _resolved(root, here.get("$ref"))):
            pending.append(target)
    return False
