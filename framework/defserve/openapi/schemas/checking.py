"""Arguments checked against a schema that a stranger wrote: nothing in it may make checking slow."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any, Final

from defserve.binding.arguments.compact import rebuilt, walk
from defserve.binding.arguments.explicit import MOST_UNIQUE, ExplicitArguments
from defserve.binding.arguments.patterns import pattern_problem
from defserve.errors import UsageError
from defserve.wire.jsonvalue import JsonSchema, as_list

LONGEST_MATCHED: Final = 10_000
log = logging.getLogger("defserve.openapi")


def checker(schema: JsonSchema) -> ExplicitArguments:
    """Checks arguments as far as that is cheap. The API checks the rest; the log names the patterns that it has to."""
    for pattern, reason in unenforced_patterns(schema):
        log.warning("the pattern %r %s: it stays published, and only the API enforces it", pattern[:200], reason)
    names = schema.get("properties", {})
    known: JsonSchema = {"type": "object", "properties": dict.fromkeys(names, True), "additionalProperties": False}
    loose = ExplicitArguments.of_our_own({**known, "required": schema.get("required", [])})
    try:
        return ExplicitArguments(_cheap(schema), subject="input schema", otherwise=loose)
    except (UsageError, RecursionError):
        return loose


def unenforced_patterns(schema: JsonSchema) -> Iterator[tuple[str, str]]:
    """The patterns in a schema that are not matched here, each once, and why."""
    found: dict[str, None] = {}
    for node in walk(schema):
        found |= dict.fromkeys((node["pattern"],) if isinstance(node.get("pattern"), str) else ())
        found |= dict.fromkeys(node.get("patternProperties", ()))
    for pattern in found:
        if (problem := pattern_problem(pattern)) is not None:
            yield pattern, problem.reason


def _cheap(schema: JsonSchema) -> JsonSchema:
    made = rebuilt(schema, _cheap)
    pattern: Any = made.get("pattern")
    if isinstance(pattern, str):
        if pattern_problem(pattern) is not None:
            del made["pattern"]
        else:
            made.setdefault("maxLength", LONGEST_MATCHED)
    if made.get("uniqueItems") is True:
        made.setdefault("maxItems", MOST_UNIQUE)
        if made["maxItems"] > MOST_UNIQUE:
            del made["uniqueItems"]
    if any(map(pattern_problem, made.get("patternProperties", {}))):
        del made["patternProperties"]
        made.pop("additionalProperties", None)  # a name may fit a pattern that is not enforced
    return made


_READ: Final = {"object": dict, "array": list, "integer": int, "number": (int, float), "boolean": bool}


def unquoted(value: Any, schema: JsonSchema) -> Any:
    """A value that a model has put into a text by mistake: `"[1, 2]"` where only a list fits."""
    kinds = as_list(schema.get("type", "string"))
    if not isinstance(value, str) or "string" in kinds or not any(kind in _READ for kind in kinds):
        return value
    try:
        meant = json.loads(value)
    except (ValueError, RecursionError):
        return value
    wanted = tuple(t for k in kinds if k in _READ for t in (_READ[k] if isinstance(_READ[k], tuple) else (_READ[k],)))  # pyright: ignore
    return meant if isinstance(meant, wanted) else value
