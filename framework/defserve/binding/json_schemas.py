"""Several JSON Schemas merged into one. A `$defs` entry that is used once is written where it is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from defserve.core.json_values import JsonSchema, as_list, is_array, is_object

T = TypeVar("T")

_PREFIX = "#/$defs/"
_NAMED = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}
_LISTED = {"anyOf", "oneOf", "allOf", "prefixItems"}
_SINGLE = {
    "items", "additionalProperties", "unevaluatedItems", "unevaluatedProperties", "additionalItems", "contains",
    "propertyNames", "not", "if", "then", "else", "contentSchema",
}  # fmt: skip
# Keywords that only describe: beside a `$ref` they may override those of its target.
_DESCRIBING = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}


def list_subschemas(schema: JsonSchema) -> Iterator[JsonSchema]:
    """The schemas directly inside a schema; never data (`default`, `const`, `enum`, `examples`)."""
    for name, found in schema.items():
        if name in _NAMED:
            if is_object(found):
                yield from filter(is_object, found.values())
        elif name in _LISTED or name in _SINGLE:
            yield from filter(is_object, as_list(found))


def walk_schema(schema: JsonSchema) -> Iterator[JsonSchema]:
    """A schema and every schema inside it."""
    pending = [schema]
    while pending:
        here = pending.pop()
        yield here
        pending.extend(list_subschemas(here))


def walk_graph(roots: Iterable[T], inside: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """The roots and all that they lead to, each once. They may lead back to themselves; `inside` says where to."""
    pending, seen = list(roots), dict[int, T]()
    while pending:
        here = pending.pop()
        if id(here) not in seen:
            seen[id(here)] = here  # kept alive, so that no other object gets its id
            yield here
            pending.extend(inside(here))


def resolve_leaf_schemas(schemas: Iterable[Any], defs: JsonSchema) -> list[Any]:
    """The schemas with references and unions resolved. One may be True: anything fits it."""

    def inside(here: Any) -> list[Any]:
        if not is_object(here):
            return []
        inner = [one for name in ("anyOf", "oneOf", "allOf") for one in here.get(name, ())]
        return [*inner, defs.get(str(here["$ref"]).rpartition("/")[2], True)] if "$ref" in here else inner

    return [here for here in walk_graph(schemas, inside) if not inside(here)]


def find_json_types(schema: JsonSchema) -> set[str]:
    """The JSON types that a value may have; `any` where the schema says none."""
    leaves = filter(is_object, resolve_leaf_schemas([schema], schema.get("$defs", {})))
    types = (leaf.get("type", "string" if "enum" in leaf or "const" in leaf else "any") for leaf in leaves)
    return {kind for each in types for kind in as_list(each)}


def rebuild_schema(schema: JsonSchema, change: Callable[[JsonSchema], JsonSchema]) -> JsonSchema:
    """A copy in which `change` has been applied to every schema inside."""

    def change_item(item: Any) -> Any:
        return change(item) if is_object(item) else item

    made = dict(schema)
    for name, found in schema.items():
        if name in _NAMED and is_object(found):
            made[name] = {key: change_item(item) for key, item in found.items()}
        elif name in _LISTED or name in _SINGLE:
            made[name] = [change_item(item) for item in found] if is_array(found) else change_item(found)
    return made


def make_object_schema(properties: dict[str, JsonSchema], required: list[str]) -> JsonSchema:
    """The schema of an object with these properties and no others."""
    defs: dict[str, JsonSchema] = {}
    merged = {name: hoist_defs(schema, defs) for name, schema in properties.items()}
    # Also without any: clients exist that read `properties` unasked, and lose the whole server.
    made: JsonSchema = {"type": "object", "properties": merged}
    if required:
        made["required"] = required
    made["additionalProperties"] = False
    return inline_defs(made, defs)


def ensure_properties(schema: JsonSchema) -> JsonSchema:
    """An input schema as every client can read it: with `properties`, also if there are none."""
    if "properties" in schema or schema.get("type") != "object":
        return schema
    return {"type": "object", "properties": {}, **schema}


def compact_schema(schema: JsonSchema) -> JsonSchema:
    """The schema with `$defs` that are used once written where they are used. Its root is never a `$ref`."""
    if "$defs" not in schema:
        return schema
    defs: dict[str, JsonSchema] = {}
    root = hoist_defs(schema, defs)
    if (target := _target(root)) is not None:
        root = defs[target] | {key: value for key, value in root.items() if key != "$ref"}
    return inline_defs(root, defs)


def hoist_defs(schema: JsonSchema, defs: dict[str, JsonSchema]) -> JsonSchema:
    """The schema without its `$defs`, which are added to `defs`. If a name is taken, the new one is renamed."""
    own: dict[str, JsonSchema] = schema.get("$defs", {})
    if not own:
        return schema
    names: dict[str, str] = {}
    for name, definition in own.items():
        names[name] = name
        number = 2
        while names[name] in defs and defs[names[name]] != definition:
            names[name] = f"{name}{number}"
            number += 1

    def rename_refs(here: JsonSchema) -> JsonSchema:
        made = rebuild_schema(here, rename_refs)
        target = _target(here)
        if target in names:
            made["$ref"] = _PREFIX + names[target]
        return made

    for name, definition in own.items():
        defs[names[name]] = rename_refs(definition)
    return rename_refs({key: value for key, value in schema.items() if key != "$defs"})


def inline_defs(schema: JsonSchema, defs: dict[str, JsonSchema]) -> JsonSchema:
    """The schema with the `defs` it needs: in place if used once, else (or if recursive) in `$defs`."""
    if not defs:
        return schema
    uses = Counter(
        target for root in (schema, *defs.values()) for node in walk_schema(root) if (target := _target(node))
    )
    once = {name for name in defs if uses[name] == 1 and not _is_recursive(name, defs)}

    def inline_refs(here: JsonSchema) -> JsonSchema:
        target = _target(here)
        siblings = {key: value for key, value in here.items() if key != "$ref"}
        if target in once and siblings.keys() <= _DESCRIBING:
            inlined_names.add(target)
            return inline_refs(defs[target]) | siblings
        return rebuild_schema(here, inline_refs)

    inlined_names: set[str] = set()
    made = inline_refs(schema)
    kept = {name: inline_refs(definition) for name, definition in defs.items() if name not in once}
    left = {name: inline_refs(defs[name]) for name in once - inlined_names if uses[name]}
    needed = {name: definition for name, definition in {**kept, **left}.items() if uses[name]}
    return made | {"$defs": needed} if needed else made


def _is_recursive(name: str, defs: dict[str, JsonSchema]) -> bool:
    def inside(here: JsonSchema) -> Iterable[JsonSchema]:
        target = _target(here)
        return (*list_subschemas(here), defs[target]) if target in defs else list_subschemas(here)

    return any(_target(here) == name for here in walk_graph([defs[name]], inside))


def _target(schema: JsonSchema) -> str | None:
    ref = schema.get("$ref")
    if isinstance(ref, str) and ref.startswith(_PREFIX):
        return ref[len(_PREFIX) :].replace("~1", "/").replace("~0", "~")
    return None
