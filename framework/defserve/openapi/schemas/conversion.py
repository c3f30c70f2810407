"""One schema converted, with what `allOf` makes a part of it written in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from defserve.openapi.schemas.dialect import HIDDEN, Direction, converted, length_of, nullable, type_of
from defserve.openapi.schemas.merging import merged
from defserve.openapi.schemas.raw import DEEPEST, RawSchemas
from defserve.openapi.schemas.texts import OF_FIELD, cleaned
from defserve.wire.jsonvalue import JsonSchema, is_array, is_object

LONGEST: Final = 32_000
"""Characters that one conversion reads. Written in place, a short document can be of any length."""
DEFS: Final = "#/$defs/"


class Conversion:
    """Converts one schema. `is_cut`: parts of it are left out, since it is too long or too deep.

    `name` gives the name of the definition for a reference. `above` are the references that a schema stands inside of.
    """

    def __init__(self, raw: RawSchemas, name: Callable[[str], str], direction: Direction) -> None:
        self._raw, self._name = raw, name
        self._direction: Direction = direction
        self.read = 0
        self.is_cut = False

    def convert(self, schema: Any, above: tuple[str, ...], depth: int = 0) -> JsonSchema:
        """A schema whose references lead to `$defs`."""
        if not is_object(schema):
            return {"not": {}} if schema is False else {}
        if self._is_over(depth):
            self.is_cut = True
            return type_of(schema)
        self.read += length_of(schema)
        schema = self._raw.combined(schema)
        if isinstance(ref := schema.get("$ref"), str):
            return self._reference(ref, schema)
        schema = self._with_forms(schema, above)

        def inner(each: Any) -> JsonSchema:
            return self.convert(each, above, depth + 1)

        made = converted(schema, inner, lambda field: self._raw.says(field, HIDDEN[self._direction]))
        if is_array(parts := schema.get("allOf")) and parts:
            made = self._combined(made, parts, above, depth)
        return nullable(made) if schema.get("nullable") is True else made

    def _is_over(self, depth: int) -> bool:
        return depth > DEEPEST or self.read > LONGEST

    def _with_forms(self, schema: JsonSchema, above: tuple[str, ...]) -> JsonSchema:
        """A schema with the forms that its `discriminator` tells apart, and without those that it is a part of."""
        own = above[-1] if above and self._raw.target(above[-1]) is schema else None
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
        return {name: value for name, value in schema.items() if name not in _UNIONS or not _refers(value, above)}

    def _reference(self, ref: str, schema: JsonSchema) -> JsonSchema:
        made: JsonSchema = {"$ref": DEFS + self._name(ref)}
        if isinstance(text := schema.get("description"), str) and (said := cleaned(text, OF_FIELD)):
            made["description"] = said
        return nullable(made) if schema.get("nullable") is True else made

    def _combined(self, made: JsonSchema, parts: Any, above: tuple[str, ...], depth: int) -> JsonSchema:
        """`allOf` beside other keywords."""
        refs = [self._raw_ref(part) for part in parts]
        if len(parts) == 1 and refs[0] is not None and made.keys() <= {"description", "default"}:
            return {**self._reference(refs[0], {}), **made}  # the way 3.0 writes something beside a reference
        flat = [self._flat(part, above, depth + 1) for part in parts]
        whole = merged([*flat, made])
        if whole is not None:
            return whole
        kept = [self._reference(ref, {}) if ref is not None else found for ref, found in zip(refs, flat, strict=True)]
        return {**made, "allOf": kept}

    def _raw_ref(self, part: Any) -> str | None:
        ref = self._raw.combined(part).get("$ref") if is_object(part) else None
        return ref if isinstance(ref, str) else None

    def _flat(self, part: Any, above: tuple[str, ...], depth: int) -> JsonSchema:
        """A part of `allOf` with what it refers to in place. `$ref` or `allOf` if that is not possible."""
        ref = self._raw_ref(part)
        if ref is None:
            if not self._is_over(depth):
                return self.convert(part, above, depth)
            self.is_cut = True
            return {"allOf": [{}]}  # never {}: nobody may believe that all fields are known
        if ref in above or len(above) > DEEPEST or self._is_over(depth):
            return {"$ref": ref}
        return self._flat(self._raw.target(ref), (*above, ref), depth)


_UNIONS: Final = ("anyOf", "oneOf")


def _refers(options: Any, above: tuple[str, ...]) -> bool:
    return any(is_object(option) and option.get("$ref") in above for option in (options if is_array(options) else ()))
