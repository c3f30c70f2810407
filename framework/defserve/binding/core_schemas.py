"""Core schemas: those of scalars and their containers, built by hand, and those that stop at the first bad item.

No pydantic is imported for them. Stopping early keeps the memory and the time of a large message small.
"""

from __future__ import annotations

import collections.abc as abc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, Flag, IntEnum, StrEnum
from math import isinf
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, NewType, cast, get_args, get_origin

from pydantic_core import PydanticKnownError, SchemaValidator, core_schema, to_json, to_jsonable_python
from pydantic_core.core_schema import CoreSchema

from defserve.binding.json_schemas import simplify_array, simplify_choices
from defserve.binding.signature import (
    get_value_class,
    is_doc_metadata,
    is_field_info,
    list_union_members,
    split_annotated,
)
from defserve.core.json_values import JsonSchema, find_infinity

if TYPE_CHECKING:
    from pydantic import TypeAdapter


Built = tuple[CoreSchema, JsonSchema]

_PLAIN: dict[Any, Built] = {
    str: (core_schema.str_schema(), {"type": "string"}),
    int: (core_schema.int_schema(), {"type": "integer"}),
    float: (core_schema.float_schema(), {"type": "number"}),
    bool: (core_schema.bool_schema(), {"type": "boolean"}),
    bytes: (core_schema.bytes_schema(), {"type": "string", "format": "binary"}),
    NoneType: (core_schema.none_schema(), {"type": "null"}),
    None: (core_schema.none_schema(), {"type": "null"}),
    Any: (core_schema.any_schema(), {}),
    object: (core_schema.any_schema(), {}),
}

# The concrete type that a function gets for an abstract container.
ABSTRACT_TO_CONCRETE_TYPES: dict[Any, Any] = {
    abc.Iterable: list,
    abc.Collection: list,
    abc.Sequence: list,
    abc.MutableSequence: list,
    abc.Set: set,
    abc.MutableSet: set,
    abc.Mapping: dict,
    abc.MutableMapping: dict,
}

_SEQUENCES: dict[Any, Callable[[CoreSchema], CoreSchema]] = {
    list: core_schema.list_schema,
    set: core_schema.set_schema,
    frozenset: core_schema.frozenset_schema,
}

_ENUMS = (Enum, IntEnum, StrEnum)
_SUB_TYPES: dict[type, Any] = {str: "str", int: "int", float: "float"}
_CHOICES = {str, int, float, bool, NoneType}

# Constraint attribute -> core schema types it fits -> JSON keyword there.
_NUMBER = ("int", "float")
_KEYWORDS: dict[str, dict[str, str]] = {
    "ge": dict.fromkeys(_NUMBER, "minimum"),
    "gt": dict.fromkeys(_NUMBER, "exclusiveMinimum"),
    "le": dict.fromkeys(_NUMBER, "maximum"),
    "lt": dict.fromkeys(_NUMBER, "exclusiveMaximum"),
    "multiple_of": dict.fromkeys(_NUMBER, "multipleOf"),
    "min_length": {"str": "minLength", "bytes": "minLength", "dict": "minProperties"}
    | dict.fromkeys(("list", "set", "frozenset"), "minItems"),
    "max_length": {"str": "maxLength", "bytes": "maxLength", "dict": "maxProperties"}
    | dict.fromkeys(("list", "set", "frozenset"), "maxItems"),
    "pattern": {"str": "pattern"},
}
_CONSTRAINTS = {"Ge", "Gt", "Le", "Lt", "MultipleOf", "MinLen", "MaxLen"}
_READ_BY_SIGNATURE = {"annotation", "default", "alias", "alias_priority", "validation_alias", "serialization_alias"}
_READ_HERE = {"description", "title", "examples"}


class _NeedsPydantic(Exception):
    """Only pydantic knows what an annotation means."""


def build_scalar_schemas(annotation: Any) -> Built | None:
    """The schemas of a scalar annotation; None when pydantic has to make them. Raises SchemaError for a bad bound."""
    try:
        return _build(annotation)
    except _NeedsPydantic:
        return None


def _build(annotation: Any) -> Built:
    try:
        if (plain := _PLAIN.get(annotation)) is not None:
            return plain
    except TypeError:
        pass  # unhashable metadata
    inner, metadata = split_annotated(annotation)
    if metadata:
        return _apply_constraints(_build(inner), metadata)
    if isinstance(annotation, NewType):
        return _build(annotation.__supertype__)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _enum(annotation)
    origin, args = cast(Any, get_origin(annotation) or annotation), get_args(annotation)
    if origin is Literal:
        return core_schema.literal_schema(list(args)), _choices(args)
    if len(list_union_members(annotation)) > 1:
        return _union(list_union_members(annotation))
    if origin is tuple and not args and annotation is not tuple:
        raise _NeedsPydantic  # tuple[()]
    return _container(_concrete(origin), args)


def _concrete(origin: Any) -> Any:
    try:
        return ABSTRACT_TO_CONCRETE_TYPES.get(origin, origin)
    except TypeError:
        return origin


def _container(origin: Any, args: tuple[Any, ...]) -> Built:
    if origin in _SEQUENCES and len(args) <= 1:
        core, item = _build(args[0] if args else Any)
        json: JsonSchema = {"type": "array", "items": item}
        return _SEQUENCES[origin](core), json if origin is list else json | {"uniqueItems": True}
    if origin is dict and len(args) in (0, 2):
        return _mapping(*(args or (Any, Any)))
    if origin is tuple:
        return _tuple(args)
    raise _NeedsPydantic


def _mapping(key: Any, value: Any) -> Built:
    core, json = _build(value)
    if key not in (str, int, Any):
        raise _NeedsPydantic
    # The keys are not described in JSON Schema: they are always strings. In a result, any key becomes one.
    described: JsonSchema = {"type": "object", "properties": {}, "additionalProperties": json or True}
    return core_schema.dict_schema(_PLAIN[key][0], core), described


def _tuple(args: tuple[Any, ...]) -> Built:
    if not args:
        args = (Any, ...)
    if len(args) == 2 and args[1] is Ellipsis:
        core, item = _build(args[0])
        return core_schema.tuple_schema([core], variadic_item_index=0), {"type": "array", "items": item}
    items = [_build(arg) for arg in args]
    json: JsonSchema = {"type": "array", "prefixItems": [json for _, json in items]}
    counts = {"minItems": len(items), "maxItems": len(items)}
    return core_schema.tuple_schema([core for core, _ in items]), simplify_array(json | counts)


def _union(options: tuple[Any, ...]) -> Built:
    values = [_build(option) for option in options if option is not NoneType]
    shapes: list[JsonSchema] = []
    for _, json in values:
        # A literal of several types is a union already.
        members: list[JsonSchema] = json["anyOf"] if json.keys() == {"anyOf"} else [json]
        shapes += [member for member in members if member not in shapes]
    core = values[0][0] if len(values) == 1 else core_schema.union_schema([core for core, _ in values])
    if len(values) < len(options):
        core = core_schema.nullable_schema(core)
        shapes = [shape for shape in shapes if shape != {"type": "null"}] + [{"type": "null"}]
    return core, {"anyOf": shapes}


def _enum(kind: type[Enum]) -> Built:
    json = _choices(tuple(member.value for member in kind))  # each once, also if it has several names
    if _finds_missing(kind) or issubclass(kind, Flag) or hasattr(kind, "__get_pydantic_core_schema__"):
        raise _NeedsPydantic
    if doc := vars(kind).get("__doc__"):
        json["description"] = " ".join(str(doc).split())
    sub_type = next((name for base, name in _SUB_TYPES.items() if issubclass(kind, base)), None)
    return core_schema.enum_schema(kind, list(kind), sub_type=sub_type), json


def _finds_missing(kind: type[Enum]) -> bool:
    """Whether an enum makes members of values that none has."""
    return any("_missing_" in vars(base) for base in kind.__mro__ if base not in _ENUMS)


def _choices(values: tuple[Any, ...]) -> JsonSchema:
    if not values or not all(type(value) in _CHOICES for value in values):
        raise _NeedsPydantic
    return simplify_choices({"enum": list(values)})


def _apply_constraints(built: Built, metadata: Iterable[Any]) -> Built:
    for item in metadata:
        built = _apply(item, built)
    return built


def _apply(item: Any, built: Built) -> Built:
    """One piece of metadata on top of a schema."""
    core, json = built
    if isinstance(item, str):
        return core, json | {"description": item}
    if is_doc_metadata(item):
        return core, json | {"description": item.documentation}
    if is_field_info(item):
        return _field(item, built)
    if getattr(item, "__is_annotated_types_grouped_metadata__", False):
        return _apply_constraints(built, item)
    kind = get_value_class(item)
    is_bound = kind.__module__ == "annotated_types" and kind.__name__ in _CONSTRAINTS
    if is_bound or kind.__name__ == "_PydanticGeneralMetadata":
        return _apply_bounds(vars_of(item), built)
    foreign = kind.__module__.startswith(("pydantic", "annotated_types")) or isinstance(item, type)
    hooked = hasattr(item, "__get_pydantic_core_schema__") or hasattr(item, "__get_pydantic_json_schema__")
    if foreign or hooked:
        raise _NeedsPydantic
    return built


def _field(field: Any, built: Built) -> Built:
    given: set[str] = getattr(field, "_attributes_set", {}).keys() | set()
    if given - _READ_BY_SIGNATURE - _READ_HERE - _KEYWORDS.keys():
        raise _NeedsPydantic
    core, json = built
    told = {name: value for name in sorted(_READ_HERE & given) if (value := getattr(field, name)) is not None}
    if "examples" in told:
        told["examples"] = to_jsonable_python(told["examples"])  # raises for what no list of tools could show
    json = json | told
    return _apply_constraints((core, json), field.metadata)


def _apply_bounds(bounds: dict[str, Any], built: Built) -> Built:
    core, json = built
    made: dict[str, Any] = {**core}
    for name, value in bounds.items():
        keyword = _KEYWORDS.get(name, {}).get(core["type"])
        if keyword is None or not isinstance(value, int | float | str):
            raise _NeedsPydantic
        made[name] = value
        if not (isinstance(value, float) and isinf(value)):  # all that JSON has is within an infinite bound
            json = json | {keyword: value}
    SchemaValidator(cast(CoreSchema, made))  # validators are built late, and a pattern or bound may not be possible
    return cast(CoreSchema, made), json


def vars_of(item: Any) -> dict[str, Any]:
    """The attributes of a small frozen object, whether it keeps them in slots or not."""
    slots: tuple[str, ...] = getattr(get_value_class(item), "__slots__", ())
    return {name: getattr(item, name) for name in slots if not name.startswith("__")} or {**vars(item)}


# -- Core schemas that stop at the first bad item, so that a large message cannot use much memory, or much time.
#
# pydantic collects every error, some 600 bytes each, and a message of a few megabytes can hold millions of them.
#
# Python does not salt the hashes of numbers. A caller can choose thousands that share one, and a set or dict compares
# each of them with all others. So sets and keys of such types are few, unless the author says how many there may be.


_Schema = dict[str, Any]

# Types with the `make_fail_fast_schema` option. A pydantic version that does not know it for a type ignores it.
_STOPPABLE = {
    *("list", "tuple", "set", "frozenset", "deque"),
    *("dict", "frozendict", "ordered-dict", "counter"),
}

# The keys under which a schema holds others: one, a list of them, or a mapping of names to them. Values under
# other keys (defaults, metadata, serialization) may look like schemas but are not.
_NESTED = {
    *("schema", "items_schema", "keys_schema", "values_schema", "lax_schema", "strict_schema", "python_schema"),
    *("json_schema", "arguments_schema", "steps", "definitions", "fields", "choices"),
    *("extras_schema", "var_args_schema", "var_kwargs_schema"),
}
_NAMED = {"fields", "choices"}

# One schema for any number of members, without stopping at the first.
_MANY = {"extras_schema", "var_args_schema", "var_kwargs_schema"}
_SETS = {"set", "frozenset"}
_MAPPINGS = {"dict", "frozendict", "ordered-dict", "counter"}

# Types with salted hashes, or with few values.
_SALTED = {"str", "bytes", "date", "bool", "none", "literal", "enum"}
MAX_NUMBERS, MAX_HASHED = 2_000, 1_000
"""How many numbers, and how many values of another type, a set or the keys of a mapping may be."""
_NUMBERS = {"int", "float", "decimal"}
# Types that are as strict about JSON as about what Python reads from it.
_SAME_IN_JSON = {
    *("any", "none", "bool", "int", "float", "str", "literal"),
    *("nullable", "union", "default", "list", "dict"),
}
# Types that take any value.
_OPEN = {"any", "function-plain"}
_MISFIT = {"custom_error_type": "nested", "custom_error_message": "Does not have the shape of the schema"}


def make_fail_fast_schema(schema: CoreSchema) -> CoreSchema:
    """A schema with the same results, but a sequence or mapping reports only its first bad item.

    A definition that branches into itself, as a binary tree does, reports each branch as a whole.
    """
    return cast(CoreSchema, _rewritten(schema, _branching(schema), wrap=False))


def make_fail_fast_validator(adapter: TypeAdapter[Any]) -> Any:
    """Like the adapter's own validator for arguments, but it fails fast, if its schema allows it."""
    if type(adapter.validator) is not SchemaValidator:
        return adapter.validator  # a pydantic plugin watches it
    try:
        # The prebuilt validators of models do not fail fast.
        return SchemaValidator(
            make_fail_fast_schema(_refuse_non_finite(adapter.core_schema)), None, _use_prebuilt=False
        )
    except (TypeError, RecursionError):
        return adapter.validator


def iter_schema_patterns(schema: Any) -> Iterator[tuple[Any, str | None]]:
    """The patterns that a schema matches texts against, each with the engine that its model names."""
    pending: list[tuple[Any, str | None]] = [(schema, None)]
    while pending:
        node, engine = pending.pop()
        config: Any = node.get("config") or {}
        engine = config.get("regex_engine", engine)
        if node.get("type") == "str" and node.get("pattern") is not None:
            yield node["pattern"], node.get("regex_engine") or engine
        inside: list[Any] = []
        _map_schema(node, lambda inner, _, inside=inside: inside.append(inner))
        pending.extend((inner, engine) for inner in inside)


def takes_infinity(schema: Any) -> bool:
    """Whether an infinity passes where the author did not ask for one: any value is taken there, or a function's."""
    takes_any: bool = False
    pending: list[Any] = [schema]
    while pending:
        node = pending.pop()
        kind, config = str(node.get("type")), cast(_Schema, node.get("config") or {})
        if node.get("allow_inf_nan") or config.get("allow_inf_nan"):
            return False
        inside: list[Any] = []
        _map_schema(node, lambda inner, _, inside=inside: inside.append(inner))
        extra: Any = node.get("extra_behavior") or config.get("extra_fields_behavior")
        is_open = kind in _OPEN or (extra == "allow" and "extras_schema" not in node)
        takes_any = takes_any or is_open or (kind in _STOPPABLE and not inside)
        pending += inside
    return takes_any


def is_strict_about_json(schema: Any) -> bool:
    """Whether a strict type is in it that is another one in JSON than in Python: a date, a tuple, an enum."""
    is_strict, is_plain = False, True
    pending: list[Any] = [schema]
    while pending:
        node = pending.pop()
        config: Any = node.get("config") or {}
        is_strict = is_strict or bool(node.get("strict") or config.get("strict"))
        is_plain = is_plain and node.get("type") in _SAME_IN_JSON
        _map_schema(node, lambda inner, _: pending.append(inner))
    return is_strict and not is_plain


def make_bounded_schema(schema: CoreSchema) -> CoreSchema:
    """A schema that matches no text against a pattern that is too long for it."""
    return cast(CoreSchema, _apply_limits(schema, _limit_text_length)) if any(iter_schema_patterns(schema)) else schema


def make_pattern_bounded_validator(adapter: TypeAdapter[Any]) -> Any:
    """The adapter's own validator, bounded like a schema."""
    if type(adapter.validator) is not SchemaValidator or not any(iter_schema_patterns(adapter.core_schema)):
        return adapter.validator
    return _build_validator(adapter, make_bounded_schema(adapter.core_schema))


def make_bounded_argument_schema(schema: CoreSchema) -> CoreSchema:
    """As `make_bounded_schema`, and sets and keys whose hashes a caller can choose are few. Results may have more."""
    return cast(CoreSchema, _apply_limits(schema, *_CHANGES_FOR_ARGUMENTS))


def make_bounded_argument_validator(adapter: TypeAdapter[Any]) -> Any:
    """The adapter's own validator, bounded like a schema of arguments."""
    if type(adapter.validator) is not SchemaValidator:
        return adapter.validator
    return _build_validator(adapter, make_bounded_argument_schema(_refuse_non_finite(adapter.core_schema)))


def _build_validator(adapter: TypeAdapter[Any], schema: CoreSchema) -> Any:
    try:
        return SchemaValidator(schema, None, _use_prebuilt=False)
    except (TypeError, RecursionError):
        return adapter.validator


def _apply_limits(schema: Any, *bounds: Callable[[_Schema], None]) -> Any:
    made = _map_schema(schema, lambda inner, _: _apply_limits(inner, *bounds))
    for bound in bounds:
        bound(made)
    return made


def _refuse_non_finite(schema: Any, is_allowed: bool = False) -> Any:
    """A schema to which "NaN" is no number, as JSON has none. An author may allow it with `allow_inf_nan`."""
    config: _Schema = schema.get("config") or {}
    is_allowed_here: bool = config.get("allow_inf_nan", is_allowed)
    made = _map_schema(schema, lambda inner, _: _refuse_non_finite(inner, is_allowed_here))
    if made.get("type") == "float" and not is_allowed_here:
        made.setdefault("allow_inf_nan", False)
    if made.get("type") == "json" and not is_allowed_here:
        return core_schema.no_info_after_validator_function(_require_finite, cast(CoreSchema, made))
    return made


def _require_finite(value: Any) -> Any:
    """What was read from a JSON text, if it holds only what JSON can write."""
    if find_infinity(value) is not None:
        raise ValueError("JSON has no NaN, and no number that is too large")
    return value


def _limit_text_length(made: _Schema) -> None:
    """A text that meets a pattern has an end: what a match costs grows with both."""
    if made.get("type") == "str" and isinstance(made.get("pattern"), str):
        from defserve.binding.patterns import compute_max_text_length

        most, said = compute_max_text_length(made["pattern"]), made.get("max_length")
        made["max_length"] = most if said is None else min(said, most)


def _limit_hashed_items(made: _Schema) -> None:
    """A set or mapping whose hashes a caller can choose has an end. The author's own counts, also if it is larger."""
    kind = made.get("type")
    if kind in _SETS:
        members = made.get("items_schema") or {"type": "any"}
    elif kind in _MAPPINGS:
        members = made.get("keys_schema") or {"type": "any"}
        if members.get("type") == "any":
            return  # the names of a JSON object are texts
    else:
        return
    if made.get("max_length") is None and (kinds := _find_unsalted_kinds(members)):
        made["max_length"] = MAX_NUMBERS if kinds <= _NUMBERS else MAX_HASHED


def _take_written_choices(made: _Schema) -> None:
    """A choice is taken as a caller writes it. To pydantic, only the member is right for `Literal[Color.RED]`, and only
    a tuple for an enum's member that is one."""
    kind = made.get("type")
    if kind == "tagged-union":
        tags: dict[Any, Any] = made["choices"]
        made["choices"] = {tag.value: choice for tag, choice in tags.items() if isinstance(tag, Enum)} | tags
    elif kind == "literal" and not all(type(choice) in _CHOICES for choice in made["expected"]):
        choices: list[Any] = made.pop("expected")
        made.update(_make_choice_schema("literal_error", choices, core_schema.literal_schema(choices)))
    elif kind == "enum" and not all(type(member.value) in _CHOICES for member in made["members"]):
        enum = {name: made.pop(name) for name in ("type", "cls", "members", "sub_type", "missing") if name in made}
        made.update(_make_choice_schema("enum", enum["members"], enum))


def _make_choice_schema(error: Any, choices: list[Any], schema: Any) -> CoreSchema:
    written = [to_jsonable_python(choice) for choice in choices]
    expected = ", ".join(to_json(each).decode() for each in written)
    # A text that is a choice itself is not a member's value.
    pairs = sorted(zip(written, choices, strict=True), key=lambda pair: isinstance(pair[1], Enum))

    def find_choice(value: Any) -> Any:
        for each, choice in pairs:
            if each == value and isinstance(each, bool) == isinstance(value, bool):
                return choice
        if isinstance(value, Enum | bytes) or _finds_missing(schema.get("cls", Enum)):
            return value
        raise PydanticKnownError(error, {"expected": expected})

    return core_schema.no_info_before_validator_function(find_choice, schema)


def _check_items_at_once(made: _Schema) -> None:
    """An Iterable is a list, also inside of another type. pydantic would check its items later, as they are used."""
    if made.get("type") == "generator":
        made["type"] = "list"


_CHANGES_FOR_ARGUMENTS = (_limit_text_length, _limit_hashed_items, _take_written_choices, _check_items_at_once)


def _find_unsalted_kinds(schema: _Schema) -> set[str]:
    """The types of the members of a set whose hashes are not salted."""
    kind = schema.get("type")
    if kind in ("union", "tagged-union"):
        choices: list[_Schema] = []
        _map_schema(schema, lambda inner, _: choices.append(inner))
        return {found for choice in choices for found in _find_unsalted_kinds(choice)}
    if kind in ("nullable", "default", "custom-error", "function-before"):
        return _find_unsalted_kinds(schema["schema"])
    return set() if kind in _SALTED else {str(kind)}


def _rewritten(schema: Any, branching: set[str], wrap: bool) -> Any:
    """`wrap`: this is in the body of a branching definition."""
    if schema.get("type") == "definition-ref":
        return {"type": "custom-error", "schema": schema, **_MISFIT} if wrap else schema

    def change(inner: _Schema, key: str) -> Any:
        return _rewritten(inner, branching, inner.get("ref") in branching if key == "definitions" else wrap)

    made = _map_schema(schema, change)
    for change_argument in _CHANGES_FOR_ARGUMENTS:
        change_argument(made)
    if made.get("type") in _STOPPABLE:
        made["fail_fast"] = True
    return made


def _branching(schema: Any) -> set[str]:
    """The definitions that lead back to themselves by more than one way."""
    ways: dict[str, Counter[str]] = {}

    def gather(node: _Schema, definition: str, times: int) -> None:
        if node.get("type") == "definition-ref":
            ways.setdefault(definition, Counter())[node["schema_ref"]] += times

        def go_on(inner: _Schema, key: str) -> None:
            gather(inner, inner["ref"] if key == "definitions" else definition, 2 if key in _MANY else times)

        _map_schema(node, go_on)

    gather(schema, "", 1)
    return {
        ref
        for ref, targets in ways.items()
        if sum(times for to, times in targets.items() if ref == to or ref in _reachable(to, ways)) > 1
    }


def _reachable(start: str, ways: dict[str, Counter[str]]) -> set[str]:
    found: set[str] = set()
    ahead = [start]
    while ahead:
        fresh = ways.get(ahead.pop(), Counter()).keys() - found
        found |= fresh
        ahead += fresh
    return found


def _map_schema(node: _Schema, change: Callable[[_Schema, str], Any]) -> _Schema:
    """A copy of a schema, or of one of its fields, with every schema directly inside it changed."""

    def change_value(value: Any, key: str) -> Any:
        if isinstance(value, list | tuple):
            items = [change_value(item, key) for item in cast(list[Any], value)]
            return items if isinstance(value, list) else tuple(items)
        # Not a dict: the label beside a choice of a union.
        return change(cast(_Schema, value), key) if isinstance(value, dict) else value

    made = {**node}
    for key, value in node.items():
        if key in _NAMED and isinstance(value, dict):
            made[key] = {name: change_value(item, key) for name, item in cast(_Schema, value).items()}
        elif key in _NESTED:
            made[key] = change_value(value, key)
    return made
