"""Schemas that only a hostile server would list: each within the size of a message, and costly to whoever walks it."""

from __future__ import annotations

from typing import Any

MANY, SEVERAL = 30_000, 3_000

Json = dict[str, Any]


def _taking(member: Any, **more: Any) -> Json:
    return {"type": "object", "required": ["a"], "properties": {"a": member}, **more}


_NAMES = {f"k{n:04d}": True for n in range(SEVERAL)}
_MARKS = {f"x-{n}": 0 for n in range(SEVERAL)}
_ALIKE = {"$ref": "#/$defs/A"}

WIDE: dict[str, Json] = {
    "as many required as there is room for": {"type": "object", "required": ["z"] * 3 * MANY, "properties": _NAMES},
    "the same in a member": _taking({"type": "object", "required": ["z"] * 3 * MANY, "properties": _NAMES}),
    "the same in a branch": _taking(
        {"anyOf": [{"type": "object", "required": ["z"] * MANY, "properties": _NAMES}] * 3}
    ),
    "as many types": _taking({"type": ["integer", "string"] * MANY, **_MARKS}),
    "as many branches": _taking({"type": "array", "minItems": 2_000, "anyOf": [{}] * MANY, **_MARKS}),
    "as many branches that refer to themselves": _taking(_ALIKE, **{"$defs": {"A": {"anyOf": [_ALIKE] * MANY}}}),
    "as many parts": _taking({"allOf": [{"minimum": 1}] * MANY, **_MARKS}),
    "as many choices": _taking({"enum": [[n] for n in range(MANY)]}),
    "as many items that differ": _taking({"type": "array", "minItems": 1_000, "uniqueItems": True, "items": {}}),
    "as many first items": _taking({"type": "array", "prefixItems": [{"pattern": "(a{30}){30}"}] * MANY}),
    "as many patterns": {
        "type": "object",
        "required": [*_NAMES],
        "properties": {name: {"pattern": "[a-c]{9}"} for name in _NAMES},
    },
    "a long default": _taking({"default": [0] * 10 * MANY}),
    "a long name": {"type": "object", "properties": {"n" * 10 * MANY: {}}},
    "a long way to follow": _taking({"$ref": "#/" + "a/" * 10 * MANY}),
    "as many long ways": _taking({"anyOf": [{"$ref": "#/" + "a/" * 1_000}] * 500}),
}

BROKEN: dict[str, Json] = {
    "a bound that is a text": _taking({"anyOf": 5, "exclusiveMinimum": "x", "minimum": 3}),
    "branches that are a number": _taking({"anyOf": 5}),
    "parts that are a text": _taking({"allOf": "ab"}),
    "properties that are a list": {"type": "object", "properties": ["a"]},
    "properties that are a number": _taking({"type": "object", "properties": 7}),
    "required that is a number": {"type": "object", "required": 5, "properties": {"a": {}}},
    "required that holds lists": {"type": "object", "required": [["a"], {}], "properties": {"a": {}}},
    "definitions that are a list": _taking(_ALIKE, **{"$defs": [1]}),
    "a type that is an object": _taking({"type": {"a": 1}}),
    "a type that holds lists": _taking({"type": [["string"], 3]}),
    "items that are a number": _taking({"type": "array", "items": 3, "minItems": "many"}),
    "a pattern that is a number": _taking({"type": "string", "pattern": 3, "minLength": "x"}),
    "an enum that is an object": _taking({"enum": {"a": 1}}),
    "a default without an end": _taking({"default": {"a": [[[[[[]]]]]]}, "$ref": 7}),
}

_FEW = {f"x-{n}": 0 for n in range(900)}

# Few values, and much to do for whoever makes a value that fits them.
DENSE: dict[str, Json] = {
    "branches that do not fit": _taking({"type": "array", "minItems": 2_000, "anyOf": [{}] * 900, **_FEW}),
    "branches of branches": _taking({"anyOf": [{"anyOf": [{"minItems": 2_000, "type": "array"}] * 30}] * 30}),
    "branches that refer to themselves": _taking(_ALIKE, **{"$defs": {"A": {"anyOf": [_ALIKE] * 900, **_FEW}}}),
    "members that refer to themselves": _taking(
        _ALIKE, **{"$defs": {"A": {"required": [*"abcdefgh"], "properties": dict.fromkeys("abcdefgh", _ALIKE)}}}
    ),
    "parts of parts": _taking(_ALIKE, **{"$defs": {"A": {"allOf": [{"allOf": [_FEW] * 3, **_FEW}] * 2}}}),
    "items that differ": _taking({"type": "array", "minItems": 1_000, "uniqueItems": True, "items": {}}),
    "numbers that differ": _taking(
        {"type": "array", "minItems": 1_000, "uniqueItems": True, "items": {"type": "number"}}
    ),
    "choices that differ": _taking(
        {"type": "array", "minItems": 1_000, "uniqueItems": True, "items": {"enum": [[n] for n in range(900)]}}
    ),
    "patterns": {
        "type": "object",
        "required": [f"k{n}" for n in range(400)],
        "properties": {f"k{n}": {"type": "string", "pattern": "([a-c]{9}|x){5}", "minLength": 90} for n in range(400)},
    },
}

SCHEMAS: dict[str, Json] = {**WIDE, **BROKEN, **DENSE}
