"""Schemas of OpenAPI 3.0 and 3.1 as JSON Schema 2020-12, small enough for a model to read.

Each is converted once; a tool's schema has those that it reaches, within a budget. What is too long, too costly, or
leads in a circle is loosened: every value that fitted still fits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final
from urllib.parse import unquote

from defserve.binding.json_schemas import inline_defs, list_subschemas, transform_subschemas
from defserve.core.json_values import JsonSchema, is_array, is_object
from defserve.errors import UsageError
from defserve.openapi.documents import DocumentReferences
from defserve.openapi.schema_dialect import (
    CONSTRAINT_KEYWORDS,
    HIDDEN_FIELD_KEYWORDS,
    MAX_FIELD_DESCRIPTION_LENGTH,
    SchemaDirection,
    clean_and_cut_text,
    convert_schema,
    estimate_schema_length,
    make_nullable,
    merge_schemas,
    reduce_to_type,
)

MAX_SCHEMA_BYTES: Final = 16_000
"""Of the definitions that one tool's schema has besides itself."""
FARTHEST: Final = 60
"""Levels from the root to a definition: what is used once is written in place, and would be nested that deeply."""
_WORD: Final = re.compile(r"[^A-Za-z0-9_.-]+")


class SchemaConverter:
    """Converts schemas. References stay references, to the names of definitions that are kept here."""

    def __init__(self, references: DocumentReferences) -> None:
        self.raw = RawSchemas(references)
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()
        self._definitions: dict[tuple[SchemaDirection, str], JsonSchema] = {}
        self._sizes: dict[tuple[SchemaDirection, str], int] = {}
        self._cut: set[tuple[SchemaDirection, str]] = set()
        self._refs: dict[str, str] = {}

    def convert(self, schema: Any, direction: SchemaDirection, above: tuple[str, ...] = ()) -> JsonSchema:
        """A schema whose references lead to `$defs`. `above` are the references that it stands inside of."""
        conversion = Conversion(self.raw, self._name, direction)
        made = conversion.convert(schema, above)
        return loosen_schema(made) if conversion.is_cut else made

    def convert_root(self, schema: Any, direction: SchemaDirection) -> JsonSchema:
        """A converted schema that is no reference itself: for a body whose fields become arguments."""
        seen: tuple[str, ...] = ()
        while (
            is_object(schema)
            and isinstance(ref := self.raw.move_ref_into_all_of(schema).get("$ref"), str)
            and ref not in seen
        ):
            seen, schema = (*seen, ref), self.raw.find_target(ref)
        return self.convert(schema, direction, seen)

    def _name(self, ref: str) -> str:
        if ref not in self._names:
            last = unquote(ref.rpartition("/")[2]).replace("~1", "/").replace("~0", "~")
            name = base = _WORD.sub("_", last).strip("_")[:48] or "Value"
            number = 2
            while name in self._taken:
                name, number = f"{base}_{number}", number + 1
            self._taken.add(name)
            self._names[ref], self._refs[name] = name, ref
        return self._names[ref]

    def _definition(self, name: str, direction: SchemaDirection) -> JsonSchema:
        key = direction, name
        if key not in self._definitions:
            ref = self._refs[name]
            conversion = Conversion(self.raw, self._name, direction)
            made = conversion.convert(self.raw.find_target(ref), (ref,))
            self._definitions[key] = loosen_schema(made) if conversion.is_cut else made
            # What took long to make counts even if little came of it: else a short document could have many of these.
            self._sizes[key] = max(len(json.dumps(made, default=str)), conversion.read // 4)
            if conversion.is_cut:
                self._cut.add(key)
        return self._definitions[key]

    def _short_form(self, name: str, direction: SchemaDirection) -> JsonSchema:
        """The type of a definition, and what it says of itself."""
        found = self.raw.find_target(self._refs[name])
        words = ("type", "description", "nullable")
        short = {word: found[word] for word in words if word in found} if is_object(found) else {}
        if is_object(found) and "properties" in found:
            short.setdefault("type", "object")
        return _shorten_schema(self.convert(short, direction))

    def convert_with_definitions(
        self, schema: JsonSchema, direction: SchemaDirection, most: int = MAX_SCHEMA_BYTES
    ) -> JsonSchema:
        """A schema with the definitions that it needs. Those nearest to it first; the rest is cut to its type."""
        kept: dict[str, JsonSchema] = {}
        cut: dict[str, JsonSchema] = {}
        schema, is_cut = _within(schema, MAX_SCHEMA)
        pending, left = _targets(schema), most
        while pending:
            later: dict[str, int] = {}
            for name, level in pending.items():
                if left >= 0 and level < FARTHEST:
                    definition = self._definition(name, direction)
                    left -= self._sizes[direction, name]
                    if left >= 0:
                        kept[name] = definition
                        later = _targets(definition, level) | later
                        continue
                cut[name] = self._short_form(name, direction)
            pending = {name: later[name] for name in later if name not in kept and name not in cut}
        is_cut = is_cut or any((direction, name) in self._cut for name in kept)
        kept, has_circles = without_circles(kept)
        if is_costly(kept):
            cut |= {name: _shorten_schema(found) for name, found in kept.items()}
            kept = {}
        made = inline_defs(
            _replace_references(schema, cut), {name: _replace_references(found, cut) for name, found in kept.items()}
        )
        return loosen_schema(made) if is_cut or cut or has_circles else made


def _within(schema: JsonSchema, most: int) -> tuple[JsonSchema, bool]:
    """An object whose last properties are cut to their type if it is too long, and whether they are."""
    if len(json.dumps(schema, default=str)) <= most or not is_object(properties := schema.get("properties")):
        return schema, False
    made: dict[str, Any] = {}
    for name, found in properties.items():
        most -= len(json.dumps(found, default=str))
        made[name] = found if most >= 0 else _shorten_schema(found)
    return {**schema, "properties": made}, True


def _targets(schema: JsonSchema, level: int = 0) -> dict[str, int]:
    """The definitions that a schema at this level refers to, and the level at which it does."""
    found: dict[str, int] = {}
    pending = [(schema, level)]
    while pending:
        here, level = pending.pop()
        if isinstance(ref := here.get("$ref"), str) and ref.startswith(DEFS):
            found.setdefault(ref.removeprefix(DEFS), level)
        pending += [(inner, level + 1) for inner in list_subschemas(here)]
    return found


def _shorten_schema(schema: JsonSchema) -> JsonSchema:
    return {name: schema[name] for name in ("type", "description") if name in schema}


def _replace_references(schema: JsonSchema, cut: dict[str, JsonSchema]) -> JsonSchema:
    """The schema with the short forms of definitions in place of references to them."""
    if not cut:
        return schema

    def replace_inside(here: JsonSchema) -> JsonSchema:
        ref = here.get("$ref")
        name = ref.removeprefix(DEFS) if isinstance(ref, str) else None
        if name in cut:
            return {**cut[name], **{key: value for key, value in here.items() if key != "$ref"}}
        return transform_subschemas(here, replace_inside)

    return replace_inside(schema)


# -- One schema converted, with what `allOf` makes a part of it written in place.


MAX_SCHEMA: Final = 32_000
"""Characters that one conversion reads. Written in place, a short document can be of any length."""
DEFS: Final = "#/$defs/"


class Conversion:
    """Converts one schema. `is_cut`: parts of it are left out, since it is too long or too deep.

    `name` gives the name of the definition for a reference. `above` are the references that a schema stands inside of.
    """

    def __init__(self, raw: RawSchemas, name: Callable[[str], str], direction: SchemaDirection) -> None:
        self._raw, self._name = raw, name
        self._direction: SchemaDirection = direction
        self.read = 0
        self.is_cut = False

    def convert(self, schema: Any, above: tuple[str, ...], depth: int = 0) -> JsonSchema:
        """A schema whose references lead to `$defs`."""
        if not is_object(schema):
            return {"not": {}} if schema is False else {}
        if self._is_over(depth):
            self.is_cut = True
            return reduce_to_type(schema)
        self.read += estimate_schema_length(schema)
        schema = self._raw.move_ref_into_all_of(schema)
        if isinstance(ref := schema.get("$ref"), str):
            return self._reference(ref, schema)
        schema = self._with_forms(schema, above)

        def inner(each: Any) -> JsonSchema:
            return self.convert(each, above, depth + 1)

        made = convert_schema(
            schema, inner, lambda field: self._raw.has_keyword(field, HIDDEN_FIELD_KEYWORDS[self._direction])
        )
        if is_array(parts := schema.get("allOf")) and parts:
            made = self._merge_all_of(made, parts, above, depth)
        return make_nullable(made) if schema.get("nullable") is True else made

    def _is_over(self, depth: int) -> bool:
        return depth > MAX_DEPTH or self.read > MAX_SCHEMA

    def _with_forms(self, schema: JsonSchema, above: tuple[str, ...]) -> JsonSchema:
        """A schema with the forms that its `discriminator` tells apart, and without those that it is a part of."""
        own = above[-1] if above and self._raw.find_target(above[-1]) is schema else None
        if is_object(schema.get("discriminator")) and "anyOf" not in schema:
            if "oneOf" in schema:
                # One field decides. The others may well fit several forms.
                schema = {"anyOf" if name == "oneOf" else name: value for name, value in schema.items()}
            elif own is not None and self._direction == "request" and (subtypes := self._raw.subtypes(own)):
                forms = [{"$ref": each} for each in subtypes]
                schema = {**schema, "anyOf": [*forms, {"type": "object"}]}  # the last one for a value of no subtype
        if own is None:
            return schema
        # A parent that lists its children is written into each child: there, the list would lead back to the child.
        return {
            name: value for name, value in schema.items() if name not in ("anyOf", "oneOf") or not _refers(value, above)
        }

    def _reference(self, ref: str, schema: JsonSchema) -> JsonSchema:
        made: JsonSchema = {"$ref": DEFS + self._name(ref)}
        if isinstance(text := schema.get("description"), str) and (
            said := clean_and_cut_text(text, MAX_FIELD_DESCRIPTION_LENGTH)
        ):
            made["description"] = said
        return make_nullable(made) if schema.get("nullable") is True else made

    def _merge_all_of(self, made: JsonSchema, parts: Any, above: tuple[str, ...], depth: int) -> JsonSchema:
        """`allOf` beside other keywords."""
        refs = [self._raw_ref(part) for part in parts]
        if len(parts) == 1 and refs[0] is not None and made.keys() <= {"description", "default"}:
            return {**self._reference(refs[0], {}), **made}  # the way 3.0 writes something beside a reference
        flat = [self._flat(part, above, depth + 1) for part in parts]
        whole = merge_schemas([*flat, made])
        if whole is not None:
            return whole
        kept = [self._reference(ref, {}) if ref is not None else found for ref, found in zip(refs, flat, strict=True)]
        return {**made, "allOf": kept}

    def _raw_ref(self, part: Any) -> str | None:
        ref = self._raw.move_ref_into_all_of(part).get("$ref") if is_object(part) else None
        return ref if isinstance(ref, str) else None

    def _flat(self, part: Any, above: tuple[str, ...], depth: int) -> JsonSchema:
        """A part of `allOf` with what it refers to in place. `$ref` or `allOf` if that is not possible."""
        ref = self._raw_ref(part)
        if ref is None:
            if not self._is_over(depth):
                return self.convert(part, above, depth)
            self.is_cut = True
            return {"allOf": [{}]}  # never {}: nobody may believe that all fields are known
        if ref in above or len(above) > MAX_DEPTH or self._is_over(depth):
            return {"$ref": ref}
        return self._flat(self._raw.find_target(ref), (*above, ref), depth)


def _refers(options: Any, above: tuple[str, ...]) -> bool:
    return any(is_object(option) and option.get("$ref") in above for option in (options if is_array(options) else ()))


# -- Schemas that say less: every value that fitted still fits. For what is too long, too costly, or leads in a circle.


MAX_FORMS: Final = 1_000
"""Definitions that may be applied to one value, each as often as it is referred to."""
_SAME_VALUE: Final = ("allOf", "anyOf", "oneOf", "not")
"""Keywords whose schemas are applied to the value itself, and not to something inside it."""


def loosen_schema(schema: JsonSchema) -> JsonSchema:
    """A schema for parts that were cut: they fit more than they should, so `oneOf` and `not` would refuse too much."""
    made = transform_subschemas({name: value for name, value in schema.items() if name != "not"}, loosen_schema)
    if "oneOf" in made:
        made.setdefault("anyOf", made.pop("oneOf"))
    return made


def without_circles(defs: dict[str, JsonSchema]) -> tuple[dict[str, JsonSchema], bool]:
    """The definitions without keywords that would apply one to a value for ever, and whether there were any."""
    made = dict(defs)
    while True:
        graph = {name: {*_iter_applied_definitions(found)} for name, found in made.items()}
        try:
            TopologicalSorter(graph).prepare()
            return made, made != defs
        except CycleError as error:
            target, name, *_ = error.args[1]  # each is referred to by the next
            made[name] = _drop_references(made[name], target)


def is_costly(defs: dict[str, JsonSchema]) -> bool:
    """Whether one value would have to be compared with too many forms. The definitions have no circles."""
    applied = {name: [*_iter_applied_definitions(found)] for name, found in defs.items()}
    counts: dict[str, int] = {}
    for name in TopologicalSorter(applied).static_order():
        counts[name] = 1 + sum(counts[each] for each in applied.get(name, ()))
    return max(counts.values(), default=0) > MAX_FORMS


def _iter_applied_definitions(schema: JsonSchema) -> Iterator[str]:
    """The definitions that a schema applies to the value itself."""
    if isinstance(ref := schema.get("$ref"), str):
        yield ref.removeprefix(DEFS)
    for word in _SAME_VALUE:
        for option in _options(schema.get(word)):
            yield from _iter_applied_definitions(option)


def _drop_references(schema: JsonSchema, target: str) -> JsonSchema:
    """The schema without the keywords that apply a definition to the value itself."""

    def leads_there(option: JsonSchema) -> bool:
        return target in _iter_applied_definitions(option)

    made = {name: value for name, value in schema.items() if name != "$ref" or not leads_there({"$ref": value})}
    for word in _SAME_VALUE:
        if any(map(leads_there, _options(schema.get(word)))):
            del made[word]
            if word == "allOf" and (others := [part for part in schema[word] if not leads_there(part)]):
                made[word] = others
    return made


def _options(found: object) -> Iterator[JsonSchema]:
    return filter(is_object, found if is_array(found) else [found])


# -- The schemas as the document writes them: what a reference means, which fields an object has, what extends it.


MAX_DEPTH: Final = 24


class RawSchemas:
    """Answers questions about schemas that have not been converted."""

    def __init__(self, references: DocumentReferences) -> None:
        self._references = references
        # 3.0 ignores what is written beside `$ref`.
        self._takes_siblings = not str(references.root.get("openapi")).startswith("3.0")
        self._subtypes: dict[str, list[str]] | None = None

    def find_target(self, ref: str) -> Any:
        try:
            return self._references.find_target(ref)
        except UsageError:
            return {}  # one bad reference must not cost the whole document

    def move_ref_into_all_of(self, schema: JsonSchema) -> JsonSchema:
        """A schema that has keywords beside `$ref`, with `allOf` for both. Any other as it is."""
        if not self._takes_siblings or "$ref" not in schema or schema.keys().isdisjoint(CONSTRAINT_KEYWORDS):
            return schema
        parts = schema.get("allOf")
        own = {name: value for name, value in schema.items() if name != "$ref"}
        return {**own, "allOf": [{"$ref": schema["$ref"]}, *(parts if is_array(parts) else ())]}

    def follow_reference(self, schema: Any) -> Any:
        """What a schema refers to, or itself if it is no reference."""
        *_, last = self._chain(schema)
        return last

    def has_keyword(self, schema: Any, word: str) -> bool:
        """Whether a schema, or what it refers to, says that it is `readOnly` or `writeOnly`."""
        return any(is_object(each) and each.get(word) is True for each in self._chain(schema))

    def _chain(self, schema: Any) -> Iterator[Any]:
        yield schema
        for _ in range(MAX_DEPTH):
            if not is_object(schema) or not isinstance(ref := schema.get("$ref"), str):
                break
            schema = self.find_target(ref)
            yield schema

    def properties(self, schema: Any) -> dict[str, Any]:
        """The fields of an object, each without a reference."""
        found: dict[str, Any] = {}
        pending: list[Any] = [schema]
        for _ in range(MAX_DEPTH):
            if not pending:
                break
            here = pending.pop()
            here = self.follow_reference(self.move_ref_into_all_of(here) if is_object(here) else here)
            if is_object(here):
                pending += parts if is_array(parts := here.get("allOf")) else ()
                fields = here.get("properties")
                found |= (
                    {name: self.follow_reference(each) for name, each in fields.items()} if is_object(fields) else {}
                )
        return found

    def subtypes(self, ref: str) -> list[str]:
        """References to the named schemas that extend this one by `allOf`."""
        if self._subtypes is None:
            self._subtypes = {}
            components: Any = self._references.root.get("components")
            named: Any = components.get("schemas") if is_object(components) else None
            for name, schema in named.items() if is_object(named) else ():
                parts = schema.get("allOf") if is_object(schema) else None
                for part in parts if is_array(parts) else ():
                    if is_object(part) and isinstance(base := part.get("$ref"), str):
                        own = str(name).replace("~", "~0").replace("/", "~1")
                        self._subtypes.setdefault(base, []).append(f"#/components/schemas/{own}")
        return self._subtypes.get(ref, [])
