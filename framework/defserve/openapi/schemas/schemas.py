"""The schemas of a document. Each is converted once; a tool's schema has those that it reaches, within a budget."""

from __future__ import annotations

import json
import re
from typing import Any, Final
from urllib.parse import unquote

from defserve.binding.arguments.compact import children, inlined, rebuilt
from defserve.openapi.documents.references import References
from defserve.openapi.schemas.conversion import DEFS, LONGEST, Conversion
from defserve.openapi.schemas.dialect import Direction
from defserve.openapi.schemas.loosening import is_costly, loosened, without_circles
from defserve.openapi.schemas.raw import RawSchemas
from defserve.wire.jsonvalue import JsonSchema, is_object

MOST_BYTES: Final = 16_000
"""Of the definitions that one tool's schema has besides itself."""
FARTHEST: Final = 60
"""Levels from the root to a definition: what is used once is written in place, and would be nested that deeply."""
_WORD: Final = re.compile(r"[^A-Za-z0-9_.-]+")


class Schemas:
    """Converts schemas. References stay references, to the names of definitions that are kept here."""

    def __init__(self, references: References) -> None:
        self.raw = RawSchemas(references)
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()
        self._definitions: dict[tuple[Direction, str], JsonSchema] = {}
        self._sizes: dict[tuple[Direction, str], int] = {}
        self._cut: set[tuple[Direction, str]] = set()
        self._refs: dict[str, str] = {}

    def convert(self, schema: Any, direction: Direction, above: tuple[str, ...] = ()) -> JsonSchema:
        """A schema whose references lead to `$defs`. `above` are the references that it stands inside of."""
        conversion = Conversion(self.raw, self._name, direction)
        made = conversion.convert(schema, above)
        return loosened(made) if conversion.is_cut else made

    def root(self, schema: Any, direction: Direction) -> JsonSchema:
        """A converted schema that is no reference itself: for a body whose fields become arguments."""
        seen: tuple[str, ...] = ()
        while is_object(schema) and isinstance(ref := self.raw.combined(schema).get("$ref"), str) and ref not in seen:
            seen, schema = (*seen, ref), self.raw.target(ref)
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

    def _definition(self, name: str, direction: Direction) -> JsonSchema:
        key = direction, name
        if key not in self._definitions:
            ref = self._refs[name]
            conversion = Conversion(self.raw, self._name, direction)
            made = conversion.convert(self.raw.target(ref), (ref,))
            self._definitions[key] = loosened(made) if conversion.is_cut else made
            # What took long to make counts even if little came of it: else a short document could have many of these.
            self._sizes[key] = max(len(json.dumps(made, default=str)), conversion.read // 4)
            if conversion.is_cut:
                self._cut.add(key)
        return self._definitions[key]

    def _short_form(self, name: str, direction: Direction) -> JsonSchema:
        """The type of a definition, and what it says of itself."""
        found = self.raw.target(self._refs[name])
        words = ("type", "description", "nullable")
        short = {word: found[word] for word in words if word in found} if is_object(found) else {}
        if is_object(found) and "properties" in found:
            short.setdefault("type", "object")
        return _shortened(self.convert(short, direction))

    def whole(self, schema: JsonSchema, direction: Direction, most: int = MOST_BYTES) -> JsonSchema:
        """A schema with the definitions that it needs. Those nearest to it first; the rest is cut to its type."""
        kept: dict[str, JsonSchema] = {}
        cut: dict[str, JsonSchema] = {}
        schema, is_cut = _within(schema, LONGEST)
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
            cut |= {name: _shortened(found) for name, found in kept.items()}
            kept = {}
        made = inlined(_without(schema, cut), {name: _without(found, cut) for name, found in kept.items()})
        return loosened(made) if is_cut or cut or has_circles else made


def _within(schema: JsonSchema, most: int) -> tuple[JsonSchema, bool]:
    """An object whose last properties are cut to their type if it is too long, and whether they are."""
    if len(json.dumps(schema, default=str)) <= most or not is_object(properties := schema.get("properties")):
        return schema, False
    made: dict[str, Any] = {}
    for name, found in properties.items():
        most -= len(json.dumps(found, default=str))
        made[name] = found if most >= 0 else _shortened(found)
    return {**schema, "properties": made}, True


def _targets(schema: JsonSchema, level: int = 0) -> dict[str, int]:
    """The definitions that a schema at this level refers to, and the level at which it does."""
    found: dict[str, int] = {}
    pending = [(schema, level)]
    while pending:
        here, level = pending.pop()
        if isinstance(ref := here.get("$ref"), str) and ref.startswith(DEFS):
            found.setdefault(ref.removeprefix(DEFS), level)
        pending += [(inner, level + 1) for inner in children(here)]
    return found


def _shortened(schema: JsonSchema) -> JsonSchema:
    return {name: schema[name] for name in ("type", "description") if name in schema}


def _without(schema: JsonSchema, cut: dict[str, JsonSchema]) -> JsonSchema:
    """The schema with the short forms of definitions in place of references to them."""
    if not cut:
        return schema

    def placed(here: JsonSchema) -> JsonSchema:
        ref = here.get("$ref")
        name = ref.removeprefix(DEFS) if isinstance(ref, str) else None
        if name in cut:
            return {**cut[name], **{key: value for key, value in here.items() if key != "$ref"}}
        return rebuilt(here, placed)

    return placed(schema)
