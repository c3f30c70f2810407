"""Example arguments for a JSON Schema, made from its constraints. A validator has checked each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from defserve.serving.openapi.patterns import Unmatched, matching
from defserve.wire.jsonvalue import JsonSchema, as_list, is_array, is_mapping, is_object

DEEPEST: Final = 8
MOST_ITEMS: Final = 1_000
# The most values in one example: a schema that refers to itself several times has no end.
MOST_VALUES: Final = 3_000

# The schema's own examples, which a server that is mounted here may have written.
MAX_GIVEN: Final = 5
MAX_GIVEN_BYTES: Final = 16_384

FORMATS: Final = {
    "date": "2026-01-31",
    "time": "12:30:00Z",
    "date-time": "2026-01-31T12:30:00Z",
    "duration": "P1D",
    "email": "ada@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
    "binary": "aGk=",
    "json-pointer": "/a",
    "regex": "a+",
    "ipv4network": "192.0.2.0/24",
    "ipv6network": "2001:db8::/32",
    "ipvanyaddress": "192.0.2.1",
}


class Impossible(ValueError):
    """Nothing that fits was found."""


def examples(schema: Mapping[str, Any]) -> list[Any]:
    """One value with the required members and one with all, as far as they differ and could be made.

    The schema's own examples come first, if they are few and short. Every example is valid under the schema, formats
    included. A schema that nothing can be made of has none.
    """
    from defserve.binding.arguments.explicit import find_errors

    found: list[Any] = []
    for candidate in _candidates(schema):
        try:
            fits = candidate not in found and not find_errors(candidate, dict(schema), 1, with_formats=True)
        except Exception:
            continue  # a schema that cannot be followed, such as a reference to nowhere, has no examples
        if fits:
            found.append(candidate)
    return found


def _candidates(schema: Mapping[str, Any]) -> Iterator[Any]:
    given = schema.get("examples")
    yield from filter(_is_short, given[:MAX_GIVEN] if is_array(given) else ())
    bare = {keyword: value for keyword, value in schema.items() if keyword != "examples"}
    for whole in (False, True):
        try:
            made = Maker(schema, whole).value(bare, DEEPEST)
        except Exception:  # also of a schema that is none: its `required` may be a number, or its `minimum` a text
            continue
        if _is_short(made):
            yield made


def _is_short(value: Any) -> bool:
    from pydantic_core import to_json

    try:
        return len(to_json(value)) <= MAX_GIVEN_BYTES
    except (ValueError, RecursionError):
        return False


class Maker:
    """Makes one value. A `whole` one has its optional members too."""

    def __init__(self, root: Mapping[str, Any], whole: bool) -> None:
        self._root, self._whole, self._left = root, whole, MOST_VALUES

    def value(self, schema: Any, depth: int) -> Any:
        """A value for a schema. Raises Impossible."""
        self._left -= 1
        if self._left < 0:
            raise Impossible
        if schema is True or (is_mapping(schema) and not schema):
            return "anything"
        if not is_mapping(schema) or depth < 0:
            raise Impossible
        schema = self._flat(schema, depth)
        for given in ("const", "default"):
            if given in schema:
                return schema[given]
        for given in ("examples", "enum"):
            if is_array(schema.get(given)) and schema[given]:
                return schema[given][0]
        for branches in ("anyOf", "oneOf"):
            if schema.get(branches):
                return self._first(schema, branches, depth)
        return MAKERS[_kind(schema)](self, schema, depth)

    def _flat(self, schema: Mapping[str, Any], depth: int) -> JsonSchema:
        """The schema with its reference followed and its `allOf` merged in."""
        flat = dict(schema)
        for _ in range(DEEPEST):
            if "$ref" not in flat and "allOf" not in flat:
                return flat
            parts = [self._referred(flat.pop("$ref"))] if "$ref" in flat else []
            parts += flat.pop("allOf", [])
            for part in parts:
                flat = _joined(flat, part)
        raise Impossible

    def _referred(self, reference: Any) -> Any:
        """What a local reference (`#/$defs/Order`) points to."""
        found: Any = self._root
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise Impossible
        for step in reference.removeprefix("#").split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if not is_object(found) or step not in found:
                raise Impossible
            found = found[step]
        return found

    def _first(self, schema: JsonSchema, branches: str, depth: int) -> Any:
        rest = {key: value for key, value in schema.items() if key != branches}
        # Null is the least helpful example, so it comes last.
        for branch in sorted(schema[branches], key=lambda b: is_mapping(b) and b.get("type") == "null"):
            try:
                return self.value(_joined(rest, branch), depth - 1)
            except (Impossible, Unmatched):
                continue
        raise Impossible

    def text(self, schema: JsonSchema, depth: int) -> str:
        least, most = schema.get("minLength", 0), schema.get("maxLength", math.inf)
        if "pattern" in schema:
            return matching(schema["pattern"], least)
        if schema.get("format") in FORMATS:
            return FORMATS[schema["format"]]
        if least > MOST_ITEMS:
            raise Impossible
        text = "text" if least <= 4 else "text ".ljust(least, "x")
        return text if len(text) <= most else text[: int(most)]

    def number(self, schema: JsonSchema, depth: int) -> int | float:
        whole = _kind(schema) == "integer"
        low = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf))
        high = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf))
        step = schema.get("multipleOf") or (1 if whole else None)
        if low == -math.inf and high == math.inf:
            return step or 1.5
        if low == -math.inf:
            low = high - 2 * (step or 1)
        start: int | float = math.ceil(low / step) * step if step else low
        if start == schema.get("exclusiveMinimum"):
            start = start + step if step else (low + min(high, low + 2)) / 2
        return int(start) if whole else start

    def array(self, schema: JsonSchema, depth: int) -> list[Any]:
        heads: list[Any] = schema.get("prefixItems") or []
        made = [self.value(head, depth - 1) for head in heads]
        wanted = max(schema.get("minItems", 0), 1 if self._whole and schema.get("maxItems", 1) else 0)
        if wanted > MOST_ITEMS:
            raise Impossible
        rest = schema.get("items", {})
        while len(made) < wanted:
            item = self.value(rest, depth - 1)
            made.append(_another(item, rest, made) if schema.get("uniqueItems") else item)
        return made

    def object(self, schema: JsonSchema, depth: int) -> dict[str, Any]:
        properties: dict[str, Any] = schema.get("properties") or {}
        required: list[str] = schema.get("required") or []
        made = {name: self.value(properties.get(name, {}), depth - 1) for name in required}
        for name in properties if self._whole or schema.get("minProperties", 0) > len(made) else ():
            if name not in made:
                try:
                    made[name] = self.value(properties[name], depth - 1)
                except (Impossible, Unmatched):
                    continue
        extra = schema.get("additionalProperties", {})
        if schema.get("minProperties", 0) > MOST_ITEMS:
            raise Impossible
        while len(made) < schema.get("minProperties", 0):
            made[f"key{len(made) + 1}"] = self.value(extra, depth - 1)
        if self._whole and not properties and is_mapping(extra) and extra and not made:
            made["key1"] = self.value(extra, depth - 1)
        return made


def _another(item: Any, schema: Any, known: list[Any]) -> Any:
    """An item that is not among the known ones. Raises Impossible."""
    choices: list[Any] = list(schema.get("enum") or []) if is_mapping(schema) else []
    if isinstance(item, str):
        choices += [item, *(f"{item}{number}" for number in range(2, len(known) + 3))]
    elif isinstance(item, int | float) and not isinstance(item, bool):
        choices += [item + number for number in range(len(known) + 2)]
    for choice in [item, *choices]:
        if choice not in known:
            return choice
    raise Impossible


def _kind(schema: Mapping[str, Any]) -> str:
    if named := [kind for kind in as_list(schema.get("type")) if kind in MAKERS]:
        return sorted(named, key=lambda kind: kind == "null")[0]
    return next((kind for member, kind in TELLING.items() if member in schema), "string")


def _joined(schema: JsonSchema, part: Any) -> JsonSchema:
    """Both schemas in one, as far as that is possible."""
    if part is True:
        return schema
    if not is_mapping(part):
        raise Impossible
    joined = {**schema, **part}
    for member in ("properties", "$defs"):
        if member in schema and member in part:
            joined[member] = {**schema[member], **part[member]}
    if "required" in schema and "required" in part:
        joined["required"] = list(dict.fromkeys([*schema["required"], *part["required"]]))
    return joined


# A keyword that only one type has.
TELLING: Final = {"properties": "object", "items": "array", "minimum": "number", "maximum": "number"}

MAKERS: Final[dict[str, Callable[[Maker, JsonSchema, int], Any]]] = {
    "string": Maker.text,
    "integer": Maker.number,
    "number": Maker.number,
    "boolean": lambda maker, schema, depth: True,
    "null": lambda maker, schema, depth: None,
    "array": Maker.array,
    "object": Maker.object,
}
