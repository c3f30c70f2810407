"""One schema of OpenAPI as JSON Schema 2020-12: only what describes values, in the words of the newer dialect.

Descriptions are short, and `allOf` of objects is one object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, Final, Literal, TypeAlias

from defserve.base.hidden_characters import iter_hidden_character_notes
from defserve.binding.patterns import MAX_PATTERN_LENGTH, NonLinearPattern, find_pattern_problem
from defserve.core.json_values import JsonSchema, as_list, is_array, is_object
from defserve.core.shapes import is_number

SchemaDirection: TypeAlias = Literal["request", "response"]
"""Whether a schema describes what is sent (no `readOnly` fields) or what comes back (no `writeOnly` fields)."""

FORMATS: Final = frozenset("date date-time time duration email uri uuid ipv4 ipv6 hostname byte password".split())
MAX_ENUM_LENGTH: Final = 4_000

_KEPT: Final = frozenset(
    "type enum const default multipleOf maximum exclusiveMaximum minimum exclusiveMinimum maxLength minLength pattern"
    " maxItems minItems uniqueItems maxProperties minProperties required".split()
)
_ONE: Final = ("items", "additionalProperties", "not", "propertyNames", "contains")
_MANY: Final = ("anyOf", "oneOf", "prefixItems")
_NAMED: Final = ("properties", "patternProperties")
CONSTRAINT_KEYWORDS: Final = (_KEPT - {"default"}) | {*_ONE, *_MANY, *_NAMED, "allOf"}
HIDDEN_FIELD_KEYWORDS: Final[dict[SchemaDirection, str]] = {"request": "readOnly", "response": "writeOnly"}

Convert: TypeAlias = Callable[[Any], JsonSchema]


def convert_schema(schema: JsonSchema, convert: Convert, is_hidden: Callable[[Any], bool]) -> JsonSchema:
    """A schema without its own `$ref`, `allOf` and `nullable`; `convert` does those inside."""
    made: JsonSchema = {name: schema[name] for name in schema if name in _KEPT}
    if isinstance(text := schema.get("description"), str) and (
        said := clean_and_cut_text(text, MAX_FIELD_DESCRIPTION_LENGTH)
    ):
        made["description"] = said
    if isinstance(schema.get("format"), str) and schema["format"] in FORMATS:
        made["format"] = schema["format"]
    for name in _ONE:
        if is_object(inner := schema.get(name)):
            made[name] = convert(inner)
        elif isinstance(inner, bool):
            made[name] = inner
    for name in _MANY:
        if is_array(inner := schema.get(name)) and inner:
            made[name] = [convert(each) for each in inner]
    for name in _NAMED:
        if is_object(inner := schema.get(name)):
            made[name] = {key: convert(each) for key, each in inner.items() if not is_hidden(each)}
    _repair(made, schema)
    return _one_or_null(made)


def estimate_schema_length(schema: JsonSchema) -> int:
    """About how many characters a schema has, without those inside it."""
    named = (len(str(key)) for name in _NAMED if is_object(inner := schema.get(name)) for key in inner)
    said = min(len(str(schema.get("description", ""))), MAX_FIELD_DESCRIPTION_LENGTH)
    return 16 + said + sum(len(repr(schema[name])) for name in schema if name in _KEPT) + sum(named)


def _one_or_null(schema: JsonSchema) -> JsonSchema:
    """`anyOf` of a type and null as one list of types, which more models understand."""
    for word in ("anyOf", "oneOf"):
        options: list[JsonSchema] = schema.get(word, [])
        others = [option for option in options if option != {"type": "null"}]
        if len(options) == len(others) + 1 == 2 and "type" in others[0] and schema.keys() <= {word, *_ANNOTATIONS}:
            return make_nullable({**others[0], **{name: schema[name] for name in _ANNOTATIONS if name in schema}})
    return schema


_ANNOTATIONS: Final = ("description", "default")


def make_nullable(schema: JsonSchema) -> JsonSchema:
    """A schema that takes null as well."""
    if "type" in schema and schema.keys().isdisjoint(("anyOf", "oneOf", "allOf", "const")):
        made = {**schema, "type": [*dict.fromkeys((*as_list(schema["type"]), "null"))]}
        if is_array(values := schema.get("enum")) and None not in values:
            made["enum"] = [*values, None]
        return made
    if not schema:
        return schema
    said = {"description": schema["description"]} if "description" in schema else {}
    return {"anyOf": [{name: schema[name] for name in schema if name not in said}, {"type": "null"}], **said}


def _repair(made: JsonSchema, schema: JsonSchema) -> None:
    """What is written in the words of 3.0, and what would be no schema."""
    for word, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(exclusive := made.get(word), bool):
            del made[word]
            if exclusive and limit in made:
                made[word] = made.pop(limit)
    if is_array(required := made.get("required")):
        known = made.get("properties")
        written = schema.get("properties")
        hidden = {*written} - {*known} if is_object(written) and is_object(known) else ()
        texts = [name for name in required if isinstance(name, str) and name not in hidden]
        kept = [name for name in texts if not is_object(known) or name in known or _is_open(schema)]
        made["required"] = [*dict.fromkeys(kept)]
    if not made.get("required", True) or not is_array(made.get("required", [])):
        del made["required"]
    if made.get("default", made) is None:
        del made["default"]
    if "type" in made:
        made |= reduce_to_type(made)
    elif "properties" in made:
        made["type"] = "object"
    elif "items" in made:
        made["type"] = "array"
    for word in (*_BOUNDS, *_COUNTS):
        if word in made and not _is_limit(word, made[word]):
            del made[word]
    for word in ("default", "const"):
        if len(repr(made.get(word))) > MAX_ENUM_LENGTH:
            del made[word]
    if is_array(values := made.get("enum")):
        if not values or len(json.dumps(values)) > MAX_ENUM_LENGTH:
            del made["enum"]
    elif "enum" in made:
        del made["enum"]
    if not _is_pattern(made.get("pattern", "")):
        del made["pattern"]
    if is_object(patterns := made.get("patternProperties")):
        made["patternProperties"] = {pattern: patterns[pattern] for pattern in patterns if _is_pattern(pattern)}
        if len(made["patternProperties"]) < len(patterns):
            made.pop("additionalProperties", None)  # a name may fit a pattern that is left out
    if not isinstance(made.get("uniqueItems", True), bool):
        del made["uniqueItems"]


def reduce_to_type(schema: JsonSchema) -> JsonSchema:
    """A schema that says only the type, if that is stated."""
    if "type" not in schema:
        return {}
    kinds = [kind for kind in as_list(schema["type"]) if isinstance(kind, str) and kind in _TYPES]
    kinds += ["null"] if schema.get("nullable") is True and kinds and "null" not in kinds else []
    return {"type": kinds if len(kinds) > 1 else kinds[0] if kinds else "string"}


_TYPES: Final = frozenset("string number integer boolean object array null".split())
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COUNTS: Final = ("multipleOf", "maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties")


def _is_limit(word: str, value: Any) -> bool:
    """Whether it can be the value of a keyword that bounds numbers, or counts."""
    if not is_number(value) or (isinstance(value, float) and not isfinite(value)):
        return False
    is_count = word in _COUNTS and word != "multipleOf"
    return word in _BOUNDS or (value > 0 and not (is_count and value % 1))


def _is_pattern(value: Any) -> bool:
    """Whether it is a regular expression of JavaScript. One that is not enforced here is published all the same."""
    if not isinstance(value, str) or len(value) > MAX_PATTERN_LENGTH:
        return False
    problem = find_pattern_problem(value)
    return problem is None or isinstance(problem, NonLinearPattern)


def _is_open(schema: JsonSchema) -> bool:
    """Whether it may have properties that it does not name, or has them by what it is combined with."""
    return any(word in schema for word in ("additionalProperties", "patternProperties", "anyOf", "oneOf", "allOf"))


# -- `allOf` of objects as one object. Models fill that in without mistakes.


_MERGED_ANNOTATIONS: Final = ("description", "default", "title")


def merge_schemas(parts: Sequence[JsonSchema]) -> JsonSchema | None:
    """One schema that takes what all parts take; None if they cannot be written as one."""
    made: JsonSchema = {}
    for part in parts:
        if "$ref" in part or "allOf" in part:
            return None
        for name, value in part.items():
            if name == "properties" and is_object(known := made.get(name)):
                made[name] = {**known, **{key: _narrower(known.get(key), given) for key, given in value.items()}}
            elif name == "required" and name in made:
                made[name] = [*dict.fromkeys((*made[name], *value))]
            elif name == "additionalProperties":
                # Each part alone may forbid what the others add: together they would take nothing.
                if is_object(value):
                    made[name] = value
            elif name == "type" and name in made:
                common = [kind for kind in as_list(made[name]) if kind in as_list(value)]
                if not common:
                    return None
                made[name] = common if len(common) > 1 else common[0]
            elif name in made and name not in _MERGED_ANNOTATIONS and made[name] != value:
                return None
            else:
                made[name] = value
    return made


def _narrower(known: Any, given: Any) -> Any:
    """A property that two parts describe: one object of both, or else the later one refines the other."""
    if not is_object(known) or known == given or "$ref" in known or "$ref" in given:
        return given
    return merge_schemas((known, given)) or {**known, **given}


# -- Descriptions for models: short, on few lines, without characters that hide or reorder text.


MAX_TOOL_DESCRIPTION_LENGTH: Final = 600
MAX_FIELD_DESCRIPTION_LENGTH: Final = 240

_TAG: Final = re.compile(r"</?[A-Za-z][^<>]{0,200}>")
_LINK: Final = re.compile(r"\[([^\[\]]{1,200})\]\([^()\s]{1,500}\)")
_BLANKS: Final = re.compile(r"[ \t\r\n]+")
_SENTENCE: Final = re.compile(r"[.!?](?=\s)")


def clean_and_cut_text(text: str, most: int) -> str:
    """One line of at most `most` characters, cut at the end of a sentence or a word."""
    text = text[: 8 * most]
    odd = {index for index, _ in iter_hidden_character_notes(text) if text[index] not in "\r\n"}
    if odd:
        text = "".join(character for index, character in enumerate(text) if index not in odd)
    text = _LINK.sub(r"\1", _TAG.sub("", text))
    return cut_text(_BLANKS.sub(" ", text).strip(), most)


def cut_text(text: str, most: int) -> str:
    """At most so many characters of a text: whole sentences if they are a third of it, else whole words and `…`."""
    if len(text) <= most:
        return text
    head = text[:most]
    ends = [found.end() for found in _SENTENCE.finditer(head)]
    if ends and ends[-1] > most // 3:
        return head[: ends[-1]]
    return f"{head[: most - 1].rpartition(' ')[0] or head[: most - 1]}…"


def make_tool_description(name: str, summary: str, description: str, *, deprecated: bool, fallback: str) -> str:
    """What a tool says about itself: the summary, and as much of the description as says more."""
    head, rest = (
        clean_and_cut_text(summary, MAX_TOOL_DESCRIPTION_LENGTH // 2),
        clean_and_cut_text(description.partition("\n\n")[0], MAX_TOOL_DESCRIPTION_LENGTH),
    )
    if rest and head.lower().replace(" ", "_") == name:  # it was made of the name
        head = ""
    if rest.lower().rstrip(".").startswith(head.lower().rstrip(".")):
        head = ""
    ended = head if not head or head[-1] in ".!?…" else f"{head}."
    text = (
        cut_text(" ".join(part for part in (ended if rest else head, rest) if part), MAX_TOOL_DESCRIPTION_LENGTH)
        or fallback
    )
    return f"Deprecated. {text}" if deprecated else text
