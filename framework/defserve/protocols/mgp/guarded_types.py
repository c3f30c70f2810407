"""MGP §4.5: guards in the types of parameters, however deep, and unions that would bypass them."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, Union, cast, get_args, get_origin

from defserve.binding.arguments import ArgumentsSchema, require_annotation_schemas
from defserve.binding.json_schemas import walk_graph
from defserve.core.json_values import is_array, is_mapping
from defserve.errors import UsageError
from defserve.guard.argument_types import (
    ARGUMENT_GUARD_CLASSES,
    GUARD_BY_GUARDED_TYPE,
    Code,
    FileTypes,
    Shell,
    Url,
    Within,
)

if TYPE_CHECKING:
    from defserve.protocols.mcp.items import Item
    from defserve.protocols.mcp.prompts import Completion
    from defserve.protocols.mcp.tools import Tool


ArgumentGuard: TypeAlias = Shell | Url | Within | Code | FileTypes

_HAVE_FIELDS = ("__dataclass_fields__", "__total__", "_fields")

# Types that accept any text.
_TEXTS = (str, bytes, bytearray, PurePath)


def find_parameter_guards(item: Item[Any] | Completion) -> dict[str, list[ArgumentGuard]]:
    """The guards in the types of an item's parameters. Raises UsageError for a union that would bypass one.

    They are those of pydantic's core schema, which is what judges: it knows generics, aliases, and all that a class may
    say of its fields. A class may also say something else than it is: what is in its annotations counts as well.
    """
    found: dict[str, list[ArgumentGuard]] = {}
    for parameter in item.function.signature.parameters:
        guards = list(_walk(parameter.annotation, {}))
        subject = f"{item.name}: parameter {parameter.name!r}"
        if (core := _core(item, parameter.annotation, subject)) is not None:
            check = UnionCheck(core)
            guards += [guard for guard in check.guards() if guard not in guards]
            if guards:
                _refuse_bypass(check, subject, item.where)
        if guards:
            found[parameter.name] = guards
    return found


def _core(item: Item[Any] | Completion, annotation: Any, subject: str) -> Any:
    """The core schema of a parameter. None beside a schema of the author's own, if the type has no JSON form."""
    try:
        return require_annotation_schemas(annotation, where=item.where, subject=subject).core
    except UsageError:
        if isinstance(item.function.arguments, ArgumentsSchema):
            raise
        return None


def find_tool_guards(tool: Tool) -> dict[str, list[ArgumentGuard]]:
    """See `find_parameter_guards`. Raises UsageError as well for guards beside a schema of the author's own."""
    found = find_parameter_guards(tool)
    if found and not isinstance(tool.function.arguments, ArgumentsSchema):
        raise UsageError(
            f"{tool.name}: parameter {next(iter(found))!r}: a guarded type judges nothing beside schema=, which"
            " replaces what is made from the types",
            where=tool.where,
            fix="remove schema=, or the guarded type and name a validator= for the tool",
        )
    return found


def _walk(annotation: Any, seen: dict[int, Any]) -> Iterator[ArgumentGuard]:
    """Every guard in a type. A type that is in it twice is entered once."""
    if id(annotation) in seen:
        return
    seen[id(annotation)] = annotation  # kept alive, so that no other object gets its id
    # What `type Name = …` or a NewType stands for.
    meant = getattr(annotation, "__value__", None) or getattr(annotation, "__supertype__", None)
    if meant is not None:
        yield from _walk(meant, seen)
        return
    if (guard := _own_guard(annotation)) is not None:
        yield guard
        return
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        own = [metadata for metadata in arguments[1:] if isinstance(metadata, ARGUMENT_GUARD_CLASSES)]
        yield from own or _walk(arguments[0], seen)
        return
    for inner in arguments or _fields(annotation):
        if not isinstance(inner, str):
            yield from _walk(inner, seen)


def _own_guard(annotation: Any) -> ArgumentGuard | None:
    """The guard of a type that is judged by itself, or of one that is made from it."""
    bases = annotation.__mro__ if isinstance(annotation, type) else ()
    return next((GUARD_BY_GUARDED_TYPE[base]() for base in bases if base in GUARD_BY_GUARDED_TYPE), None)


def _fields(annotation: Any) -> list[Any]:
    """The types of a model's, dataclass', TypedDict's or NamedTuple's fields."""
    if not isinstance(annotation, type):
        return []
    fields = getattr(annotation, "model_fields", None)
    if is_mapping(fields):
        return [Annotated[f.annotation, *f.metadata] if f.metadata else f.annotation for f in fields.values()]
    if any(hasattr(annotation, mark) for mark in _HAVE_FIELDS):
        from typing import get_type_hints

        try:
            return list(get_type_hints(annotation, include_extras=True).values())
        except (NameError, TypeError):
            return []
    return []


def _refuse_bypass(check: UnionCheck, subject: str, place: str) -> None:
    """Refuse a union that lets through, by one branch, what another one would have judged."""
    if (other := check.find_bypass()) is not None:
        raise UsageError(
            f"{subject}: a guarded type is in a union with {other}, which accepts what the guard refuses",
            where=place,
            fix="remove that type from the union, or guard it too",
        )


def _strip_guards(given: Any, within: tuple[Any, ...] = ()) -> Any:
    """The JSON that a type accepts, as a type without guards: `str` for any text, `dict` for guarded fields.

    `within`: the `type Name = …` that it is a part of. Such a name may hold itself.
    """
    if given in within:
        return given
    if (annotation := getattr(given, "__value__", None)) is not None:
        return _strip_guards(annotation, (*within, given))
    annotation = getattr(given, "__supertype__", given)
    if inspect.isclass(annotation) and (_own_guard(annotation) or issubclass(annotation, _TEXTS)):
        return str
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _strip_guards(arguments[0], within)
    if origin is None:
        # Nothing seen so far counts: a type that was met before is guarded in each of its places.
        is_guarded = any(True for _ in _walk(annotation, {}))
        return dict if is_guarded else annotation
    if origin is dict:
        return dict
    return (origin, *(inner if isinstance(inner, str) else _strip_guards(inner, within) for inner in arguments))


def can_be_plain_text(annotation: Any) -> bool:
    """Whether a value may be plain text."""
    branches = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return any(_strip_guards(branch) is str for branch in branches)


# -- Whether a union lets a value reach the function that one of its branches would have judged.
#
# How it works. Pydantic has resolved every alias, generic and model into a core schema. Two branches of a union are
# laid over each other: is there JSON that both accept, and does a text that the first one judges meet, at the same
# place, a type in the other that takes any text? Types are not compared. What cannot be known (an author's own
# function) counts as accepting everything, so a doubtful union is refused.


Node: TypeAlias = Mapping[str, Any]

# Where a core schema holds the schema that really decides.
_WRAPPERS: Final = {
    **dict.fromkeys(("nullable", "default", "custom-error", "model", "dataclass", "function-after"), ("schema",)),
    "definitions": ("schema",),
    "lax-or-strict": ("lax_schema", "strict_schema"),
    "json-or-python": ("json_schema", "python_schema"),
    "call": ("arguments_schema",),
}
_TEXT_KINDS: Final = frozenset(("str", "bytes", "url", "multi-host-url", "json"))
_ARRAYS: Final = frozenset(("list", "set", "frozenset", "deque", "generator", "tuple"))
_MAPPINGS: Final = frozenset(("dict", "ordered-dict", "frozendict", "counter", "defaultdict"))
_RECORDS: Final = frozenset(
    ("model-fields", "typed-dict", "dataclass-args", "arguments", "arguments-v3", "named-tuple")
)

# They may have been given any value, and nobody knows what they make of it.
_UNKNOWN: Final = frozenset(("function-before", "function-wrap", "function-plain"))
_CHOSEN: Final = frozenset(("literal", "enum"))
_ANYTHING: Final[Node] = {"type": "any"}
_INSIDE: Final = (
    "schema", "items_schema", "keys_schema", "values_schema", "lax_schema", "strict_schema", "python_schema",
    "json_schema", "arguments_schema", "steps", "fields", "choices", "extras_schema", "var_args_schema",
    "var_kwargs_schema",
)  # fmt: skip


class _Items:
    """The items of an array: the first ones, and any number of others."""

    def __init__(self, fixed: list[Node], rest: Node | None, least: int | None = None) -> None:
        self.fixed, self.rest = fixed, rest
        self.least = len(fixed) if least is None else least
        self.most = len(fixed) if rest is None else 1_000_000

    def at(self, place: int) -> Node:
        return self.fixed[place] if place < len(self.fixed) else self.rest or _ANYTHING


class UnionCheck:
    """One core schema, and the definitions in it."""

    def __init__(self, core: Any) -> None:
        self._definitions: dict[str, Node] = {}
        for node in _all_nodes([core]):
            self._definitions |= {one["ref"]: one for one in node.get("definitions", ())}
        self._nodes = list(_all_nodes([core, *self._definitions.values()]))
        # Pairs that are being compared, or were, and did not bypass.
        self._seen: dict[tuple[int, int], bool] = {}
        self._holding: dict[int, bool] = {}
        # Nodes that are made here. They are kept, because others are known by their `id`.
        self._made: dict[int, Node] = {}

    def guards(self) -> list[Any]:
        """The guards in it, each once."""
        found: list[Any] = []
        for node in self._nodes:
            if _is_guard(node) and (guard := _get_function(node).__self__) not in found:
                found.append(guard)
        return found

    def find_bypass(self) -> str | None:
        """The name of a type that accepts, in a union, what a guarded type beside it refuses."""
        for union in (node for node in self._nodes if node.get("type") in ("union", "tagged-union")):
            branches = list(_choices(union))
            for guarded in branches:
                for other in branches if self._holds_guard(guarded) else ():
                    if other is not guarded and self._faces(guarded, other):
                        return _name(other)
        return None

    def _faces(self, guarded: Node, other: Node) -> bool:
        """Whether a text that `guarded` judges can be accepted unjudged by `other`, in JSON that both accept."""
        pair = (id(guarded), id(other))
        if pair not in self._seen:
            self._seen[pair] = False
            self._seen[pair] = any(
                self._leaves_face(one, two) for one in self._plain(guarded) for two in self._plain(other)
            )
        return self._seen[pair]

    def _leaves_face(self, guarded: Node, other: Node) -> bool:
        kind, beside = guarded.get("type"), other.get("type")
        if not self._holds_guard(guarded):
            return False
        if _is_guard(guarded) or kind == "json":
            return _takes_text(other)
        if kind in _UNKNOWN:
            return self._takes_any_text(other)
        if _is_anything(other):
            return True
        if (kind in _ARRAYS and beside in (*_ARRAYS, "named-tuple")) or (kind == "named-tuple" and beside in _ARRAYS):
            return self._arrays_face(guarded, other)
        if kind in _MAPPINGS and beside in _MAPPINGS:
            keys = self._faces(_at(guarded, "keys_schema"), _at(other, "keys_schema"))
            return keys or self._faces(_at(guarded, "values_schema"), _at(other, "values_schema"))
        if kind in _MAPPINGS and beside in _RECORDS:
            return self._mapping_faces_record(guarded, other)
        if kind in _RECORDS and beside in _MAPPINGS:
            values = _at(other, "values_schema")
            fields = list(_record_fields(guarded))
            needed = all(self._can_meet(schema, values) for _, schema, required in fields if required)
            return needed and any(self._faces(schema, values) for _, schema, _ in fields)
        return kind in _RECORDS and beside in _RECORDS and self._records_face(guarded, other)

    def _arrays_face(self, guarded: Node, other: Node) -> bool:
        first, second = self._items(guarded), self._items(other)
        if first.most < second.least or second.most < first.least:
            return False
        shared = min(max(len(first.fixed), len(second.fixed)) + 1, first.most, second.most)
        pairs = [(first.at(place), second.at(place)) for place in range(shared)]
        needed = max(first.least, second.least)
        if not all(self._can_meet(one, two) for one, two in pairs[:needed]):
            return False
        return any(self._faces(one, two) for one, two in pairs)

    def _mapping_faces_record(self, guarded: Node, other: Node) -> bool:
        values = _at(guarded, "values_schema")
        fields = list(_record_fields(other))
        if not all(self._can_meet(values, schema) for _, schema, required in fields if required):
            return False
        extras = _extras(other)
        facing = any(self._faces(values, schema) for _, schema, _ in fields)
        return facing or (
            extras is not None and (self._holds_guard(_at(guarded, "keys_schema")) or self._faces(values, extras))
        )

    def _records_face(self, guarded: Node, other: Node) -> bool:
        first, second = list(_record_fields(guarded)), list(_record_fields(other))
        mine = {name: schema for names, schema, _ in first for name in names}
        theirs = {name: schema for names, schema, _ in second for name in names}
        for ours, known, against in ((first, theirs, other), (second, mine, guarded)):
            for names, schema, required in ours:
                if not required:
                    continue
                meeting = [known[name] for name in names if name in known]
                if not meeting and _extra_behaviour(against) == "forbid":
                    return False
                if meeting and not any(self._can_meet(schema, one) for one in meeting):
                    return False
        extras = _extras(other)
        for names, schema, _ in first:
            for beside in [theirs[name] for name in names if name in theirs] or ([extras] if extras else []):
                if self._faces(schema, beside):
                    return True
        return False

    def _can_meet(self, one: Node, two: Node) -> bool:
        """Whether some JSON may fit both. False only if it is sure that none does."""
        return any(self._leaves_meet(a, b) for a in self._plain(one) for b in self._plain(two))

    def _leaves_meet(self, one: Node, two: Node) -> bool:
        if _is_open(one) or _is_open(two):
            return True
        if one["type"] in _CHOSEN and two["type"] in _CHOSEN:
            return not _values(one).isdisjoint(_values(two))
        first, second = _json_kind(one), _json_kind(two)
        return first is None or second is None or first == second

    def _takes_any_text(self, other: Node) -> bool:
        """Whether an unjudged text is accepted anywhere in it."""

        def inside(node: Node) -> Iterable[Node]:
            inner = () if _is_guard(node) else (*_bare_items(node), *_inner(node))
            return [plain for one in inner for plain in self._plain(one)]

        return any(map(_takes_text, walk_graph(self._plain(other), inside)))

    def _holds_guard(self, node: Node) -> bool:
        if id(node) not in self._holding:
            self._holding[id(node)] = any(map(_is_guard, walk_graph([node], self._inside)))
        return self._holding[id(node)]

    def _inside(self, node: Node) -> Iterator[Node]:
        """The schemas directly inside one, and the one that it refers to."""
        yield from _inner(node)
        if node.get("type") == "definition-ref":
            yield self._definitions.get(node["schema_ref"], _ANYTHING)

    def _plain(self, node: Node) -> list[Node]:
        """What a schema comes to without its wrappers; several for a union."""
        found: list[Node] = []
        # What a model says of fields that it does not name stands beside it, not in its fields.
        waiting: list[tuple[Node, Any]] = [(node, None)]
        seen: set[int] = set()
        while waiting:
            here, config = waiting.pop()
            if id(here) in seen:
                continue
            seen.add(id(here))
            kind = here.get("type")
            config = here.get("config") or config
            if _is_guard(here):
                found.append(here)
            elif kind == "definition-ref":
                waiting.append((self._definitions.get(here["schema_ref"], _ANYTHING), None))
            elif kind in ("union", "tagged-union"):
                waiting.extend((choice, None) for choice in _choices(here))
            elif kind == "chain":
                # Each step sees what the one before it lets through: the last that is a shape says most.
                steps: list[Node] = list(here["steps"])
                shapes = [one for one in steps if one.get("type") != "is-instance"][-1:] or steps[:1]
                waiting.extend((one, config) for one in shapes)
            elif kind in _WRAPPERS and not (kind == "function-after" and "schema" not in here):
                waiting.extend((here[key], config) for key in _WRAPPERS[kind] if key in here)
            elif kind in _UNKNOWN and _is_of_pydantic(here) and "schema" in here:
                waiting.append((here["schema"], config))
            elif kind in _RECORDS and config and "config" not in here:
                found.append(self._made.setdefault(id(here), {**here, "config": config}))
            else:
                found.append(here)
        return found

    def _items(self, node: Node) -> _Items:
        if node["type"] == "named-tuple":
            fields = [(schema, required) for _, schema, required in _record_fields(node)]
            return _Items([schema for schema, _ in fields], None, sum(required for _, required in fields))
        if node["type"] != "tuple":
            return _Items([], _at(node, "items_schema"))
        items: list[Node] = list(node.get("items_schema") or ())
        variadic: int | None = node.get("variadic_item_index")
        if not items and "items_schema" not in node:
            return _Items([], _ANYTHING)
        if variadic is None:
            return _Items(items, None)
        # What follows the variadic part may come at any place.
        rest: Node = items[variadic]
        if variadic < len(items) - 1:
            rest = self._made.setdefault(id(node), {"type": "union", "choices": items[variadic:]})
        return _Items(items[:variadic], rest, len(items) - 1)


def _all_nodes(roots: Iterable[Any]) -> Iterator[Node]:
    return walk_graph(roots, lambda node: (*_inner(node), *node.get("definitions", ())))


def _inner(node: Node) -> Iterator[Node]:
    """The schemas directly inside one. A field of a record counts as its schema."""
    for key in _INSIDE:
        value: Any = node.get(key)
        if key in ("fields", "choices") and is_mapping(value):
            value = list(value.values())
        several: list[Any] = list(value) if isinstance(value, list | tuple) else [value]  # pyright: ignore
        for one in several:
            # A choice of a union may stand beside its label.
            schema: Any = cast("tuple[Any, ...]", one)[0] if isinstance(one, tuple) else one
            if is_mapping(schema):
                yield schema


def _choices(union: Node) -> Iterator[Node]:
    choices: Any = union["choices"]
    for choice in choices.values() if is_mapping(choices) else choices:
        yield choice[0] if isinstance(choice, tuple) else choice


def _is_guard(node: Node) -> bool:
    return node.get("type") == "function-after" and isinstance(
        getattr(_get_function(node), "__self__", None), ARGUMENT_GUARD_CLASSES
    )


def _get_function(node: Node) -> Any:
    """The function that a node calls."""
    function: Any = node.get("function")
    return function.get("function") if is_mapping(function) else function


def _is_of_pydantic(node: Node) -> bool:
    return str(getattr(_get_function(node), "__module__", "")).partition(".")[0] == "pydantic"


def _is_anything(node: Node) -> bool:
    kind = node.get("type")
    if kind == "is-instance":
        return _is_instance_type(node, {}) or _is_instance_type(node, [])
    # Pydantic's own plain functions read addresses and the like from a text.
    return kind == "any" or (kind in _UNKNOWN and not _is_of_pydantic(node))


def _is_instance_type(node: Node, value: Any) -> bool:
    try:
        return isinstance(value, node["cls"])
    except TypeError:
        return True


def _takes_text(node: Node) -> bool:
    """Whether any text fits, and nothing judges it."""
    kind = node.get("type")
    if _is_guard(node):
        return False
    if kind == "is-instance":
        return _is_instance_type(node, "")
    if kind in _UNKNOWN and _is_of_pydantic(node):
        return not str(getattr(node["function"]["function"], "__name__", "")).startswith("ip_v")
    return kind in _TEXT_KINDS or _is_anything(node)


def _is_open(node: Node) -> bool:
    return _is_anything(node) or node.get("type") in _UNKNOWN


def _values(node: Node) -> set[str]:
    found: list[Any] = list(node.get("expected") or node.get("members") or ())
    return {repr(getattr(one, "value", one)) for one in found}


def _json_kind(node: Node) -> str | None:
    kind = str(node.get("type"))
    if _is_guard(node) or kind in _TEXT_KINDS:
        return "text"
    if kind in _ARRAYS:
        return "array"
    if kind in _MAPPINGS or (kind in _RECORDS and kind != "named-tuple"):
        return "object"
    if kind == "none":
        return "null"
    if kind in _CHOSEN and all(value[:1] in "'\"" for value in _values(node)):
        return "text"
    # Numbers, times and the like are read from texts and from numbers.
    return None


def _at(node: Node, key: str) -> Node:
    found: Any = node.get(key)
    return found if is_mapping(found) else _ANYTHING


def _bare_items(node: Node) -> Iterator[Node]:
    """What a container holds that does not say it."""
    kind = node.get("type")
    is_bare_array = kind in _ARRAYS and not node.get("items_schema")
    if is_bare_array or (kind in _MAPPINGS and not node.get("values_schema")):
        yield _ANYTHING
    elif kind in _RECORDS and (extras := _extras(node)) is not None:
        yield extras


def _record_fields(record: Node) -> Iterator[tuple[list[str], Node, bool]]:
    """The names under which a field may come, its schema, and whether it has to come."""
    fields: Any = record.get("fields") or record.get("arguments_schema") or ()
    pairs: list[tuple[Any, Any]] = (
        list(fields.items()) if is_mapping(fields) else [(one.get("name"), one) for one in fields]
    )
    total = record.get("total", True)
    for name, field in pairs:
        schema: Any = field.get("schema") or _ANYTHING
        has_default = schema.get("type") == "default" or field.get("init") is False
        required = bool(field.get("required", total)) and not has_default
        yield [str(name), *_aliases(field.get("validation_alias", field.get("alias")))], schema, required


def _aliases(alias: Any) -> Iterator[str]:
    if isinstance(alias, str):
        yield alias
    elif is_array(alias):
        for one in alias:
            first: Any = one[0] if is_array(one) and one else one
            if isinstance(first, str):
                yield first


def _extras(record: Node) -> Node | None:
    """What fields that a record does not name may hold; None if they do not reach the function."""
    if _extra_behaviour(record) == "allow":
        return _at(record, "extras_schema")
    others: Any = record.get("var_kwargs_schema")
    return others if is_mapping(others) else None


def _extra_behaviour(record: Node) -> Any:
    """What becomes of fields that a record does not name: `allow`, `forbid` or `ignore`, if it says so."""
    config: Any = record.get("config") or {}
    return record.get("extra_behavior") or config.get("extra_fields_behavior")


def _name(node: Node) -> str:
    kind = getattr(node.get("cls"), "__name__", None)
    if kind is None and node.get("type") in (*_WRAPPERS, *_UNKNOWN):
        inner = next((node[key] for key in _WRAPPERS.get(str(node["type"]), ("schema",)) if key in node), None)
        return _name(inner) if is_mapping(inner) else "a type of your own"
    return str(kind or {"any": "Any", "definition-ref": "a type that holds itself"}.get(node["type"], node["type"]))
