"""JSON Schemas: several merged into one, and what is published of those that we make.

A `$defs` entry that is used once is written where it is used. A published schema is *portable*: see below.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from types import NoneType
from typing import Any, Final, Literal, NamedTuple, TypeVar

from pydantic_core import to_json

from defserve.core.json_values import JsonSchema, as_list, is_array, is_object

T = TypeVar("T")

_PREFIX = "#/$defs/"
_NAMED = {"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"}
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


def transform_subschemas(schema: JsonSchema, change: Callable[[JsonSchema], JsonSchema]) -> JsonSchema:
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
    root = {key: value for key, value in schema.items() if key != "$defs"}
    if defs.keys().isdisjoint(own):
        defs.update(own)
        return root
    names = {name: name for name in own}
    numbers = dict.fromkeys(own, 1)

    def rename_refs(here: JsonSchema) -> JsonSchema:
        made = transform_subschemas(here, rename_refs)
        target = _target(here)
        if target in names:
            made["$ref"] = _PREFIX + names[target]
        return made

    def is_taken(name: str) -> bool:
        return names[name] in defs and defs[names[name]] != rename_refs(own[name])

    # Two definitions that read alike differ once what one of them refers to has another name. So all are asked again.
    while taken := list(filter(is_taken, own)):
        for name in taken:
            used = own.keys() | set(names.values())
            numbers[name] = next(n for n in count(numbers[name] + 1) if f"{name}{n}" not in used)
            names[name] = f"{name}{numbers[name]}"
    for name, definition in own.items():
        defs[names[name]] = rename_refs(definition)
    return rename_refs(root)


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
        return transform_subschemas(here, inline_refs)

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


# -- Portable schemas: those that every client can read.
#
# Clients hand the schemas of a list to models, and break in different ways: some resolve no `$ref`, some recurse for
# ever, some want `items`, `properties` or one type everywhere, some know no `oneOf` and no `const`. What we make is
# published without any of it. At least what fits the exact schema fits the published one; validation uses the exact.


MAX_PORTABLE_BYTES: Final = 16 * 1024
"""How large a schema may become by writing definitions where they are used. Past it, they stay in `$defs`."""
UNROLLED_DEPTHS: Final = (3, 2, 1)
"""How often a recursive definition is written inside itself: as often as there is room."""
_MIN_NODE_BYTES: Final = 8

_JSON_TYPE_NAMES: Final[dict[type, str]] = {
    str: "string", bool: "boolean", int: "integer", float: "number", NoneType: "null", list: "array", dict: "object",
}  # fmt: skip
# What a keyword is about, for schemas of several types.
_KEYWORDS_OF_TYPES: Final[dict[str, set[str]]] = {
    "string": {"minLength", "maxLength", "pattern", "format", "contentEncoding", "contentMediaType", "contentSchema"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "array": {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains"},
    "object": {
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
        *("minProperties", "maxProperties", "dependentRequired", "dependentSchemas"),
    },
}
_KEYWORDS_OF_TYPES["integer"] = _KEYWORDS_OF_TYPES["number"]
_COMBINERS: Final = ("anyOf", "oneOf", "allOf", "not", "if", "then", "else")


class _TooLarge(Exception):
    """A schema does not end within its bytes."""


def make_portable_schema(schema: JsonSchema) -> JsonSchema:
    """The schema without `$ref` and in the words that every client knows. One that would be too large keeps `$defs`."""
    if "$defs" not in schema:
        return _simplify_schema(schema)
    compact = compact_schema(schema)
    if "$defs" not in compact:
        return _simplify_schema(compact)
    most = max(MAX_PORTABLE_BYTES, len(to_json(compact)))
    for depth in UNROLLED_DEPTHS:
        try:
            return _Inliner(schema["$defs"], depth, most).inline_root(schema)
        except _TooLarge:
            continue
    return _simplify_schema(compact)


def move_combiners_to_description(schema: JsonSchema) -> JsonSchema:
    """An object schema without combiners at its root, where clients refuse them. Its description has them instead."""
    combiners = {name: schema[name] for name in _COMBINERS if name in schema}
    if not combiners or schema.get("type") != "object":
        return schema
    made = {name: value for name, value in schema.items() if name not in combiners}
    return _describe_more(made, f"Must also fit {to_json(combiners).decode()}")


class _Inliner:
    """Writes definitions where they are used, each at most `depth` times inside itself. Raises _TooLarge."""

    def __init__(self, defs: dict[str, JsonSchema], depth: int, most: int) -> None:
        self._defs, self._depth, self._most = defs, depth, most
        self._nodes = most // _MIN_NODE_BYTES
        self._open = Counter[str]()

    def inline_root(self, schema: JsonSchema) -> JsonSchema:
        made = self._inline({name: value for name, value in schema.items() if name != "$defs"})
        if len(to_json(made)) > self._most:
            raise _TooLarge
        return made

    def _inline(self, schema: JsonSchema) -> JsonSchema:
        self._nodes -= 1
        if self._nodes < 0:
            raise _TooLarge
        target = _target(schema)
        if target is None or target not in self._defs:
            return _simplify_node(transform_subschemas(schema, self._inline))
        if self._open[target] == self._depth:
            made = make_open_schema(self._defs[target], self._defs)
        else:
            self._open[target] += 1
            made = self._inline(self._defs[target])
            self._open[target] -= 1
        siblings = self._inline({name: value for name, value in schema.items() if name != "$ref"})
        # A constraint on both sides is the definition's: more may fit than the exact schema takes, never less.
        return siblings | made | {name: value for name, value in siblings.items() if name in _DESCRIBING}


def make_open_schema(definition: JsonSchema, defs: dict[str, JsonSchema]) -> JsonSchema:
    """What stands for a definition that is not written out: its types and its description."""
    kinds: set[str] = set()
    for leaf in resolve_leaf_schemas([definition], defs):
        said: Any = leaf.get("type") if is_object(leaf) else None
        if said is None:
            kinds = set()
            break
        kinds.update(map(str, as_list(said)))
    about = {name: definition[name] for name in ("title", "description") if name in definition}
    options = [_simplify_node({"type": kind}) for kind in sorted(kinds)]
    return about | (options[0] if len(options) == 1 else {"anyOf": options} if options else {})


def _simplify_schema(schema: JsonSchema) -> JsonSchema:
    return _simplify_node(transform_subschemas(schema, _simplify_schema))


def _simplify_node(schema: JsonSchema) -> JsonSchema:
    """A schema whose inner ones are simple already, in the words that every client knows."""
    made = dict(schema)
    if "const" in made:
        made["enum"] = [made.pop("const")]
    if "oneOf" in made:
        options = made.pop("oneOf")
        made.setdefault("anyOf", options)
    if is_array(made.get("enum")):
        made = simplify_choices(made)
    if is_array(kinds := made.get("type")):
        made = _split_types(made, list(map(str, kinds)))
    if is_array(options := made.get("anyOf")):
        made["anyOf"] = [inner for option in options for inner in _flatten_union(option)]
    if is_object(properties := made.get("properties")):
        made["properties"] = {name: {} if inner is True else inner for name, inner in properties.items()}
    if made.get("type") == "object" and "properties" not in made:
        made = ensure_properties(made)
    if made.get("type") == "array":
        made = simplify_array(made)
    return made


def _flatten_union(option: Any) -> list[Any]:
    return option["anyOf"] if is_object(option) and option.keys() == {"anyOf"} else [{} if option is True else option]


def simplify_choices(schema: JsonSchema) -> JsonSchema:
    """A schema whose `enum` is of one type, or a union of those. Arrays and objects are told in its description."""
    values: list[Any] = schema["enum"]
    by_kind: dict[str, list[Any]] = {}
    for value in values:
        by_kind.setdefault(_JSON_TYPE_NAMES.get(value.__class__, ""), []).append(value)
    if "number" in by_kind and "integer" in by_kind:
        by_kind["number"] = [value for value in values if type(value) in (int, float)]
        del by_kind["integer"]
    made = {name: value for name, value in schema.items() if name not in ("enum", "type")}
    if not by_kind.keys() <= {"string", "boolean", "integer", "number", "null"}:
        said = {"type": schema["type"]} if "type" in schema else {}
        return said | _describe_more(made, f"One of {to_json(values, fallback=str).decode()}")
    choices: list[JsonSchema] = [
        {"type": kind} if kind == "null" else {"type": kind, "enum": items} for kind, items in by_kind.items()
    ]
    if len(choices) != 1:
        return {"anyOf": choices, **made}
    if schema.get("type") == "number":
        choices[0]["type"] = "number"
    return choices[0] | made


def _split_types(schema: JsonSchema, kinds: list[str]) -> JsonSchema:
    """A schema of several types as a union of one each. What it says beside a union of its own is left out."""
    if len(kinds) == 1:
        return schema | {"type": kinds[0]}
    own = set[str]().union(*_KEYWORDS_OF_TYPES.values())
    made = {name: value for name, value in schema.items() if name != "type" and name not in own}
    if "anyOf" in made:
        return made
    fitting = {kind: _KEYWORDS_OF_TYPES.get(kind, ()) for kind in kinds}
    made["anyOf"] = [
        _simplify_node({"type": kind, **{name: schema[name] for name in schema if name in names}})
        for kind, names in fitting.items()
    ]
    return made


def simplify_array(schema: JsonSchema) -> JsonSchema:
    """An array with `items`. Beside `prefixItems` they are all that these have, for clients that do not know it."""
    made, items = dict(schema), schema.get("items")
    places: list[Any] = [{} if place is True else place for place in schema.get("prefixItems") or ()]
    if places:
        is_closed = items is False or schema.get("maxItems", len(places) + 1) <= len(places)
        kinds = [place for number, place in enumerate(places) if place not in places[:number]]
        if is_closed:
            items = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
            made["maxItems"] = min(len(places), schema.get("maxItems", len(places)))
        if is_closed and len(kinds) == 1:
            del made["prefixItems"]
    elif items is False:
        made["maxItems"] = 0
    made["items"] = items if is_object(items) else {}
    return made


def _describe_more(schema: JsonSchema, text: str) -> JsonSchema:
    known = schema.get("description")
    return schema | {"description": f"{known}\n{text}" if known else text}


# -- Narrower dialects, for a server whose operator knows its clients.


SchemaDialectName = Literal["portable", "gemini"]


class SchemaDialect(NamedTuple):
    """The keywords that a dialect knows, and the formats of strings."""

    keywords: frozenset[str]
    formats: frozenset[str]


SCHEMA_DIALECTS: Final[dict[str, SchemaDialect]] = {
    # Gemini's API before it took JSON Schema: the fields of its own `Schema`. Others are refused.
    "gemini": SchemaDialect(
        frozenset(
            (
                "type format title description enum items minItems maxItems properties required minProperties "
                "maxProperties minLength maxLength pattern default anyOf minimum maximum"
            ).split()
        ),
        frozenset(("date-time", "enum")),
    )
}


def narrow_schema_to_dialect(schema: JsonSchema, name: str) -> JsonSchema:
    """A portable schema in a narrower dialect of the table."""
    dialect, defs = SCHEMA_DIALECTS[name], schema.get("$defs", {})

    def narrow(here: JsonSchema) -> JsonSchema:
        if (target := _target(here)) is not None and target in defs:
            siblings = {key: value for key, value in here.items() if key in _DESCRIBING}
            return narrow(make_open_schema(defs[target], defs) | siblings)
        made = _bound_inclusively(transform_subschemas(here, narrow))
        if "enum" in made and made.get("type") != "string":
            values = to_json(made.pop("enum")).decode()
            made = _describe_more(made, f"One of {values}")
        made = {key: value for key, value in made.items() if key in dialect.keywords}
        if made.get("type") == "string" and made.get("format") not in dialect.formats:
            made.pop("format", None)
        return _hand_down_description(made)

    return narrow({key: value for key, value in schema.items() if key != "$defs"})


def _bound_inclusively(schema: JsonSchema) -> JsonSchema:
    """`minimum` and `maximum` for bounds that are not in the range themselves. Of numbers, they then are."""
    made, step = dict(schema), 1 if schema.get("type") == "integer" else 0
    for exclusive, inclusive, towards, tighter in (
        ("exclusiveMinimum", "minimum", step, max),
        ("exclusiveMaximum", "maximum", -step, min),
    ):
        if type(bound := made.pop(exclusive, None)) in (int, float):
            made[inclusive] = tighter(bound + towards, made.get(inclusive, bound + towards))
    return made


def _hand_down_description(schema: JsonSchema) -> JsonSchema:
    """A union stands alone: Gemini refuses other members beside it."""
    if "anyOf" not in schema:
        return schema
    about = {"description": schema["description"]} if "description" in schema else {}
    return {"anyOf": [option if option.get("type") == "null" else about | option for option in schema["anyOf"]]}
