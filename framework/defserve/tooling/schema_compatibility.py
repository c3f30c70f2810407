"""Whether each value that one JSON Schema allows is also allowed by another, and where it is not.

Both schemas are anybody's, so depth and effort are bounded. Where the answer is not certain, it is no. What this does
not look at: names that an object does not list (clients send those they know), and whether two branches of `oneOf`
overlap.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeGuard

from defserve.core.json_values import is_array, is_object, read_required_names

NarrowingKind: TypeAlias = Literal["type", "value", "limit", "form", "required", "removed", "refused", "unknown"]
"""`removed`: a name that the other schema has not, and lets pass. `refused`: one that it does not let pass.
`unknown`: the schemas are too large to compare."""

MAX_DEPTH: Final = 20
MAX_STEPS: Final = 20_000
MAX_BRANCHES: Final = 100
MAX_SHOWN_VALUES: Final = 5
MAX_SHOWN_LENGTH: Final = 80


class Narrowing(NamedTuple):
    """A place where a schema allows less than the one before. `path` is like `order.items[].price`; empty is all."""

    path: str
    kind: NarrowingKind
    before: str
    after: str


def find_narrowings(before: Any, after: Any) -> list[Narrowing]:
    """Where a value that `before` allows may be one that `after` does not. Empty if that is nowhere."""
    if sort_schema_sets(before) == sort_schema_sets(after):
        return []
    try:
        return _Comparison(before, after).find_narrowed(before, after, "", 0)
    except _TooLarge:
        return [Narrowing("", "unknown", "", "")]


def sort_schema_sets(schema: Any) -> Any:
    """The schema, or the item around it, with its sets in one order: two that differ only in that become equal."""
    if is_object(schema):
        return {
            name: sorted(map(sort_schema_sets, value), key=to_canonical_json)
            if name in SETS and is_array(value)
            else sort_schema_sets(value)
            for name, value in schema.items()
        }
    return [sort_schema_sets(value) for value in schema] if is_array(schema) else schema


def iter_properties(root: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each named place of a schema, in objects and lists, with the schema of its value and the path to it."""
    waiting: list[tuple[str, Any, int]] = [("", root, 0)]
    for _ in range(MAX_STEPS):
        if not waiting:
            return
        path, schema, depth = waiting.pop()
        found = resolve_schema(schema, root)
        if path and not path.endswith("[]"):
            yield path, found
        if depth < MAX_DEPTH:
            waiting += [(join_path(path, name), below, depth + 1) for name, below in _members(found).items()]
            waiting += [(f"{path}[]", found["items"], depth + 1)] if "items" in found else []
            waiting += [(path, branch, depth + 1) for branch in _alternatives(found)] if not path else []


def resolve_schema(schema: Any, root: Any) -> Mapping[str, Any]:
    """The schema with its references and `allOf` taken in. What cannot be found stays as `$ref`."""
    found: Mapping[str, Any] = schema if is_object(schema) else {}
    for _ in range(MAX_DEPTH):
        if is_array(parts := found.get("allOf")) and parts:
            merged: Mapping[str, Any] = {name: value for name, value in found.items() if name != "allOf"}
            for part in parts[:MAX_BRANCHES]:
                merged = _merge(merged, _follow(part, root))
            found = merged
        elif (target := _look_up(found.get("$ref"), root)) is not None:
            found = _merge(target, {name: value for name, value in found.items() if name != "$ref"})
        else:
            break
    return found


def describe_schema(schema: Any, root: Any) -> str:
    """A schema in a few words: its values, or its types."""
    if schema is False:
        return "nothing"
    found = resolve_schema(schema, root)
    if (values := _values(found)) is not None:
        return format_values(values)
    if branches := _alternatives(found):
        return " or ".join(dict.fromkeys(describe_schema(branch, root) for branch in branches[:MAX_SHOWN_VALUES]))
    return " or ".join(sorted(types)) if (types := _types(found)) != ANY else "anything"


def format_values(values: Sequence[Any]) -> str:
    """`"a", "b" and 3 more`, short."""
    shown = ", ".join(shorten_shown_text(to_canonical_json(value)) for value in values[:MAX_SHOWN_VALUES])
    return shown + (f" and {len(values) - MAX_SHOWN_VALUES} more" if len(values) > MAX_SHOWN_VALUES else "")


def shorten_shown_text(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_LENGTH else f"{text[: MAX_SHOWN_LENGTH - 1]}…"


def to_canonical_json(value: Any) -> str:
    """A value as JSON. Equal values have equal texts, and `1` and `true` do not."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def join_path(path: str, name: str) -> str:
    return f"{path}.{shorten_shown_text(name)}" if path else shorten_shown_text(name)


# -- Keywords: what each of them restricts.


SETS: Final = frozenset(
    ("required", "enum", "type", "anyOf", "oneOf", "allOf", "arguments", "permissions_required", "extensions")
)
"""Keywords, and members of items, whose lists have no order."""
ANY: Final = frozenset(("null", "boolean", "number", "string", "array", "object"))
FINITE: Final[Mapping[str, list[Any]]] = {"null": [None], "boolean": [False, True]}
UNIONS: Final = ("anyOf", "oneOf")
UNMERGED: Final = "defserve:unmerged"
"""Where the parts of an `allOf` are kept that cannot be made into one schema."""

# The types that have it, the keyword, the same without its own value, and whether more of it allows less.
LIMITS: Final[tuple[tuple[frozenset[str], str, str, bool], ...]] = (
    (frozenset(("number", "integer")), "minimum", "exclusiveMinimum", True),
    (frozenset(("number", "integer")), "maximum", "exclusiveMaximum", False),
    (frozenset(("string",)), "minLength", "", True),
    (frozenset(("string",)), "maxLength", "", False),
    (frozenset(("array",)), "minItems", "", True),
    (frozenset(("array",)), "maxItems", "", False),
    (frozenset(("object",)), "minProperties", "", True),
    (frozenset(("object",)), "maxProperties", "", False),
)
# The types → keywords that allow less unless they are the same as before, or gone.
FORMS: Final[Mapping[frozenset[str], tuple[str, ...]]] = {
    frozenset(("string",)): ("pattern", "format", "contentEncoding", "contentMediaType"),
    frozenset(("number", "integer")): ("multipleOf",),
    frozenset(("array",)): ("uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems"),
    frozenset(("object",)): (
        *("patternProperties", "propertyNames", "dependentRequired", "dependentSchemas", "unevaluatedProperties"),
    ),
    ANY | {"integer"}: ("not", "if", "then", "else", "$ref", "$dynamicRef", UNMERGED),
}


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    said = schema.get("type")
    if isinstance(said, str):
        return frozenset((said,))
    if is_array(said):
        return frozenset(map(str, said))
    values = _values(schema)
    return ANY if values is None else frozenset(map(_type_of, values))


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case _:
            return "array" if is_array(value) else "object"


def _values(schema: Mapping[str, Any]) -> Sequence[Any] | None:
    """All values that a schema names, if it names them."""
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if is_array(schema.get("enum")) else None


def _members(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    return found if is_object(found := schema.get("properties")) else {}


def _first_items(schema: Mapping[str, Any]) -> list[Any]:
    return list(found) if is_array(found := schema.get("prefixItems")) else []


def _alternatives(schema: Mapping[str, Any]) -> list[Any]:
    return next((list(found) for union in UNIONS if is_array(found := schema.get(union)) and found), list[Any]())


def _limit(schema: Mapping[str, Any], keyword: str, exclusive: str, *, is_least: bool) -> tuple[float, bool]:
    """A limit that can be compared: the greater allows less."""
    sign = 1 if is_least else -1
    least: Any = schema.get(keyword)
    beyond: Any = schema.get(exclusive) if exclusive else None
    found: tuple[float, bool] = (0, False) if is_least and not exclusive else (-math.inf, False)
    if _is_number(beyond):
        is_whole = schema.get("type") == "integer" and float(beyond).is_integer()
        found = (sign * beyond + 1, False) if is_whole else (sign * beyond, True)
    return max(found, (sign * least, False)) if _is_number(least) else found


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# -- References and `allOf`.


def _follow(schema: Any, root: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = schema if is_object(schema) else {}
    for _ in range(MAX_DEPTH):
        if (target := _look_up(found.get("$ref"), root)) is None:
            break
        found = _merge(target, {name: value for name, value in found.items() if name != "$ref"})
    return found


def _reference(schema: Any) -> str:
    found = schema.get("$ref") if is_object(schema) else None
    return found if isinstance(found, str) else ""


def _look_up(reference: Any, root: Any) -> Mapping[str, Any] | None:
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for step in reference[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if is_object(found) else None
    return found if is_object(found) else None


def _merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> Mapping[str, Any]:
    """What both say. If they limit the same thing differently, the second counts, and both are kept to be compared."""
    merged: dict[str, Any] = {**first, **second}
    if "properties" in first and "properties" in second:
        merged["properties"] = {**_members(first), **_members(second)}
    if "required" in first and "required" in second:
        merged["required"] = sorted(read_required_names(first) | read_required_names(second))
    limits = {keyword for _, *keywords, _ in LIMITS for keyword in keywords} | {"type", "enum", "const", *UNIONS}
    if any(name in limits and first[name] != second[name] for name in first.keys() & second.keys()):
        merged[UNMERGED] = [first, second]
    return merged


# -- The comparison.


class _TooLarge(Exception):
    """Comparing would take too long."""


class _Comparison:
    def __init__(self, before: Any, after: Any) -> None:
        self._roots = before, after
        self._open: set[tuple[str, str]] = set()
        self._steps = 0

    def find_narrowed(self, before: Any, after: Any, path: str, depth: int) -> list[Narrowing]:
        """Where `after` allows less than `before`, below `path`."""
        self._steps += 1
        if self._steps > MAX_STEPS or depth > MAX_DEPTH:
            raise _TooLarge
        if before is False or after is True or after == {}:
            return []
        if after is False:
            return [Narrowing(path, "type", describe_schema(before, self._roots[0]), "nothing")]
        # Two references that are compared already: whatever they narrow is found there.
        pair = _reference(before), _reference(after)
        is_recursive = all(pair)
        if is_recursive and pair in self._open:
            return []
        try:
            if is_recursive:
                self._open.add(pair)
            return self._narrow_branches(before, after, path, depth)
        finally:
            self._open.discard(pair)

    def _narrow_branches(self, before: Any, after: Any, path: str, depth: int) -> list[Narrowing]:
        """Each branch of a union has to fit into one branch of the other."""
        olds, news = (self._branches(one, root, 0) for one, root in zip((before, after), self._roots, strict=True))
        found: list[Narrowing] = []
        for old in olds:
            tried = [self._narrow_one(old, new, path, depth) for new in news]
            best = min(
                tried, key=lambda made: (any(each.path == path and each.kind == "type" for each in made), len(made))
            )
            if best and len(olds) + len(news) > 2 and (best[0].path, best[0].kind) == (path, "type"):
                told = (describe_schema(one, root) for one, root in zip((before, after), self._roots, strict=True))
                best = [Narrowing(path, "type", *told)]
            found += [each for each in best if each not in found]
        return found

    def _branches(self, schema: Any, root: Any, depth: int) -> list[Mapping[str, Any]]:
        found = resolve_schema(schema, root)
        rest = {name: value for name, value in found.items() if name not in UNIONS}
        made: list[Mapping[str, Any]] = []
        if (alternatives := _alternatives(found)) and depth < MAX_DEPTH:
            for branch in alternatives:
                if branch is not False:
                    made += self._branches(_merge(rest, resolve_schema(branch, root)), root, depth + 1)
        elif is_array(kinds := found.get("type")) and kinds:
            made = [{**found, "type": kind} for kind in kinds]
        else:
            made = [found]
        if len(made) > MAX_BRANCHES:
            raise _TooLarge
        return made

    def _narrow_one(self, old: Mapping[str, Any], new: Mapping[str, Any], path: str, depth: int) -> list[Narrowing]:
        types, taken = _types(old), _types(new)
        if any(one not in taken and not (one == "integer" and "number" in taken) for one in types):
            return [self._tell(path, "type", old, new)]
        values = _values(old)
        if values is None and "const" not in new and "enum" not in new:
            return [
                *self._narrow_limits(old, new, types, path),
                *self._narrow_forms(old, new, types, path),
                *(self._narrow_object(old, new, path, depth) if "object" in types else ()),
                *(self._narrow_array(old, new, path, depth) if "array" in types else ()),
            ]
        if values is None and (values := FINITE.get("".join(types))) is None:
            return [self._tell(path, "type", old, new)]
        refused = [value for value in values if not self._takes(new, value)]
        return [Narrowing(path, "value", format_values(refused), "")] if refused else []

    def _takes(self, new: Mapping[str, Any], value: Any) -> bool:
        """Whether a schema allows one value."""
        self._steps += 1
        if (values := _values(new)) is not None:
            return to_canonical_json(value) in map(to_canonical_json, values)
        if new.keys() <= {"type", "title", "description", "default"}:
            return True
        from defserve.binding.explicit_schema import is_valid_instance

        root = self._roots[1] if is_object(self._roots[1]) else {}
        return is_valid_instance(
            value, {**{name: root[name] for name in ("$defs", "definitions") if name in root}, **new}
        )

    def _narrow_limits(
        self, old: Mapping[str, Any], new: Mapping[str, Any], types: frozenset[str], path: str
    ) -> Iterator[Narrowing]:
        for having, keyword, exclusive, is_least in LIMITS:
            if having & types and (
                _limit(new, keyword, exclusive, is_least=is_least) > _limit(old, keyword, exclusive, is_least=is_least)
            ):
                told = (_tell_limit(one, keyword, exclusive) for one in (old, new))
                yield Narrowing(path, "limit", *told)

    def _narrow_forms(
        self, old: Mapping[str, Any], new: Mapping[str, Any], types: frozenset[str], path: str
    ) -> Iterator[Narrowing]:
        for having, keywords in FORMS.items():
            for keyword in keywords if having & types else ():
                said, was = new.get(keyword), old.get(keyword)
                is_multiple = (
                    keyword == "multipleOf" and _is_number(said) and _is_number(was) and said and not was % said
                )
                if (
                    said not in (None, False, {}, [])
                    and sort_schema_sets(said) != sort_schema_sets(was)
                    and not is_multiple
                ):
                    told = (
                        f"{keyword} {shorten_shown_text(to_canonical_json(one))}" if one is not None else ""
                        for one in (was, said)
                    )
                    yield Narrowing(path, "form", *told)

    def _narrow_object(
        self, old: Mapping[str, Any], new: Mapping[str, Any], path: str, depth: int
    ) -> Iterator[Narrowing]:
        others, other = old.get("additionalProperties"), new.get("additionalProperties")
        for name in sorted(read_required_names(new) - read_required_names(old)):
            yield Narrowing(join_path(path, name), "required", "optional", "required")
        for name, below in _members(old).items():
            place = join_path(path, name)
            if name in _members(new):
                yield from self.find_narrowed(below, _members(new)[name], place, depth + 1)
            elif is_object(other) and other:
                yield from self.find_narrowed(below, other, place, depth + 1)
            elif other is not True and "patternProperties" not in new:
                told = describe_schema(below, self._roots[0])
                yield Narrowing(place, "refused" if other is False else "removed", told, "")
        if others is not None and others is not False and other is not None:
            yield from self.find_narrowed(others, other, join_path(path, "*"), depth + 1)
        if is_object(others) and others:
            for name in _members(new).keys() - _members(old).keys():
                yield from self.find_narrowed(others, _members(new)[name], join_path(path, name), depth + 1)

    def _narrow_array(
        self, old: Mapping[str, Any], new: Mapping[str, Any], path: str, depth: int
    ) -> Iterator[Narrowing]:
        firsts, first = _first_items(old), _first_items(new)
        rests, rest = old.get("items", True), new.get("items", True)
        for place in range(max(len(firsts), len(first))):
            was = firsts[place] if place < len(firsts) else rests
            now = first[place] if place < len(first) else rest
            yield from self.find_narrowed(was, now, f"{path}[{place}]", depth + 1)
        yield from self.find_narrowed(rests, rest, f"{path}[]", depth + 1)

    def _tell(self, path: str, kind: NarrowingKind, old: Mapping[str, Any], new: Mapping[str, Any]) -> Narrowing:
        return Narrowing(path, kind, describe_schema(old, self._roots[0]), describe_schema(new, self._roots[1]))


def _tell_limit(schema: Mapping[str, Any], *keywords: str) -> str:
    return ", ".join(f"{keyword} {schema[keyword]}" for keyword in keywords if keyword in schema) or "no limit"
