"""The schemas of a document. Each is converted once; a tool's schema has those that it reaches, within a budget."""

from __future__ import annotations

import json
import re
from typing import Any, Final
from urllib.parse import unquote

from defserve.binding.arguments.compact import inlined, rebuilt, walk
from defserve.errors import UsageError
from defserve.openapi.documents.references import References
from defserve.openapi.schemas.dialect import Direction, converted, nullable
from defserve.openapi.schemas.merging import merged
from defserve.openapi.schemas.texts import OF_FIELD, cleaned
from defserve.wire.jsonvalue import JsonSchema, is_array, is_object

MOST_BYTES: Final = 16_000
"""Of the definitions that one tool's schema has besides itself."""
DEEPEST: Final = 24
_WORD: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_DEFS: Final = "#/$defs/"


class Schemas:
    """Converts schemas. References stay references, to the names of definitions that are kept here."""

    def __init__(self, references: References) -> None:
        self._references = references
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()
        self._definitions: dict[tuple[Direction, str], JsonSchema] = {}
        self._sizes: dict[tuple[Direction, str], int] = {}
        self._refs: dict[str, str] = {}

    def convert(self, schema: Any, direction: Direction, above: tuple[str, ...] = (), depth: int = 0) -> JsonSchema:
        """A schema whose references lead to `$defs`. `above` are the references that it stands inside of."""
        if schema is True or not is_object(schema) or depth > DEEPEST:
            return {"not": {}} if schema is False else {}
        if isinstance(ref := schema.get("$ref"), str):
            return self._reference(ref, schema)

        def inner(each: Any) -> JsonSchema:
            return self.convert(each, direction, above, depth + 1)

        made = converted(schema, direction, inner)
        parts = schema.get("allOf")
        return self._combined(made, parts, direction, above, depth) if is_array(parts) and parts else made

    def _reference(self, ref: str, schema: JsonSchema) -> JsonSchema:
        made: JsonSchema = {"$ref": _DEFS + self._name(ref)}
        if isinstance(text := schema.get("description"), str) and (said := cleaned(text, OF_FIELD)):
            made["description"] = said
        return nullable(made) if schema.get("nullable") is True else made

    def _combined(
        self, made: JsonSchema, parts: Any, direction: Direction, above: tuple[str, ...], depth: int
    ) -> JsonSchema:
        """`allOf` beside other keywords."""
        if len(parts) == 1 and is_object(parts[0]) and isinstance(ref := parts[0].get("$ref"), str):
            if made.keys() <= {"description", "default"}:  # the way 3.0 writes something beside a reference
                return {**self._reference(ref, {}), **made}
            if "anyOf" in made and made.keys() <= {"anyOf", "description"}:  # a nullable one
                return {**nullable(self._reference(ref, {})), **{k: made[k] for k in made if k != "anyOf"}}
        flat: list[JsonSchema] = [self._flat(part, direction, above, depth) for part in parts]
        whole = merged([*flat, made])
        return whole if whole is not None else {**made, "allOf": [self.convert(p, direction, above) for p in parts]}

    def _flat(self, part: Any, direction: Direction, above: tuple[str, ...], depth: int) -> JsonSchema:
        """A part of `allOf` with what it refers to in place, unless it stands inside of that."""
        if is_object(part) and isinstance(ref := part.get("$ref"), str):
            if ref in above or len(above) > DEEPEST:
                return {"$ref": ref}
            return self._flat(self._target(ref), direction, (*above, ref), depth)
        return self.convert(part, direction, above, depth)

    def root(self, schema: Any, direction: Direction) -> JsonSchema:
        """A converted schema that is no reference itself: for a body whose fields become arguments."""
        seen: tuple[str, ...] = ()
        while is_object(schema) and isinstance(ref := schema.get("$ref"), str) and ref not in seen:
            seen, schema = (*seen, ref), self._target(ref)
        return self.convert(schema, direction, seen)

    def raw_properties(self, schema: Any) -> dict[str, Any]:
        """The fields of an object as the document describes them, each without a reference."""
        found: dict[str, Any] = {}
        pending: list[Any] = [schema]
        for _ in range(DEEPEST):
            if not pending:
                break
            here = self._followed(pending.pop())
            if is_object(here):
                pending += here.get("allOf", ())
                found |= {name: self._followed(each) for name, each in here.get("properties", {}).items()}
        return found

    def _followed(self, schema: Any) -> Any:
        for _ in range(DEEPEST):
            if not is_object(schema) or not isinstance(ref := schema.get("$ref"), str):
                break
            schema = self._target(ref)
        return schema

    def _target(self, ref: str) -> Any:
        try:
            return self._references.at(ref)
        except UsageError:
            return {}  # one bad reference must not cost the whole document

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

    def _definition(self, name: str, direction: Direction) -> JsonSchema:
        key = direction, name
        if key not in self._definitions:
            ref = self._refs[name]
            self._definitions[key] = self.convert(self._target(ref), direction, (ref,))
            self._sizes[key] = len(json.dumps(self._definitions[key], default=str))
        return self._definitions[key]

    def whole(self, schema: JsonSchema, direction: Direction, most: int = MOST_BYTES) -> JsonSchema:
        """A schema with the definitions that it needs. Those nearest to it first; the rest is cut to its type."""
        kept: dict[str, JsonSchema] = {}
        cut: dict[str, JsonSchema] = {}
        pending, left = _targets(schema), most
        while pending:
            later: dict[str, None] = {}
            for name in pending:
                definition = self._definition(name, direction)
                left -= self._sizes[direction, name]
                if left >= 0:
                    kept[name] = definition
                    later |= _targets(definition)
                else:
                    cut[name] = _shortened(definition)
            pending = {name: None for name in later if name not in kept and name not in cut}
        return inlined(_without(schema, cut), {name: _without(found, cut) for name, found in kept.items()})


def _targets(schema: JsonSchema) -> dict[str, None]:
    refs = (node.get("$ref") for node in walk(schema))
    return {ref.removeprefix(_DEFS): None for ref in refs if isinstance(ref, str) and ref.startswith(_DEFS)}


def _shortened(schema: JsonSchema) -> JsonSchema:
    return {name: schema[name] for name in ("type", "description") if name in schema}


def _without(schema: JsonSchema, cut: dict[str, JsonSchema]) -> JsonSchema:
    """The schema with the short forms of definitions in place of references to them."""
    if not cut:
        return schema

    def placed(here: JsonSchema) -> JsonSchema:
        ref = here.get("$ref")
        name = ref.removeprefix(_DEFS) if isinstance(ref, str) else None
        if name in cut:
            return {**cut[name], **{key: value for key, value in here.items() if key != "$ref"}}
        return rebuilt(here, placed)

    return placed(schema)
