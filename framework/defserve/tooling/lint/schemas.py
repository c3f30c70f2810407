"""Rules about the shape and the size of what a model has to fill in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from defserve.tooling.lint.definitions import Definitions
from defserve.tooling.lint.finding import LintFinding, about
from defserve.wire.jsonvalue import as_list, is_mapping

FLAT: Final = 2
MANY: Final = 8
BUDGET: Final = 10_000
DEEPEST: Final = 20


def invalid(found: Definitions) -> Iterator[LintFinding]:
    for tool in found.tools:
        if (problem := _problem(tool.schema)) is not None:
            yield about(tool, f"has an inputSchema that {problem}", "write a JSON Schema (2020-12) of type object")


def _problem(schema: Mapping[str, Any]) -> str | None:
    if schema.get("type") != "object":
        return "is not of type object"
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        # Without formats: patterns are ECMAScript's, and Python's `re` would judge them.
        Draft202012Validator.check_schema(dict(schema), format_checker=None)  # pyright: ignore
    except SchemaError as error:
        return f"is not valid: {error.message}"
    missing = next((ref for ref in _references(schema, DEEPEST) if _target(schema, ref) is None), None)
    return f"refers to {missing}, which it does not contain" if missing else None


def _references(schema: Any, depth: int) -> Iterator[str]:
    if is_mapping(schema) and isinstance(schema.get("$ref"), str):
        yield schema["$ref"]
    inside: list[Any] = list(schema.values()) if is_mapping(schema) else list(schema)
    for below in inside:
        if depth and isinstance(below, dict | list):
            yield from _references(below, depth - 1)


def _target(root: Mapping[str, Any], reference: str) -> Any:
    """What a reference points to in the same schema, or None."""
    found: Any = root
    if not reference.startswith("#"):
        return None
    for step in reference.removeprefix("#").split("/")[1:]:
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if is_mapping(found) else None
    return found


def unenforced(found: Definitions) -> Iterator[LintFinding]:
    """An author's own pattern of this kind was refused when it was declared: these are imported."""
    from defserve.binding.arguments.compact import walk
    from defserve.binding.arguments.patterns import pattern_problem

    for tool in found.tools:
        for pattern in sorted({text for node in walk(dict(tool.schema)) for text in _patterns(node)}):
            if (problem := pattern_problem(pattern)) is not None:
                yield about(
                    tool,
                    f"has the pattern {pattern[:80]!r}, which {problem.reason}: it is published, but not enforced here",
                    "leave it if the server behind the tool checks it; else rewrite it without look-around",
                )


def _patterns(schema: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(pattern := schema.get("pattern"), str):
        yield pattern
    if is_mapping(patterns := schema.get("patternProperties")):
        yield from map(str, patterns)


def deep(found: Definitions) -> Iterator[LintFinding]:
    for tool in found.tools:
        measure = DepthMeasure(tool.schema)
        depth = max((measure.depth(parameter.schema, DEEPEST) for parameter in tool.parameters), default=0)
        if depth > FLAT:
            levels = f"{depth} levels deep" if depth < DEEPEST else "without end"
            yield about(
                tool,
                f"has arguments nested {levels}",
                "models are best with flat arguments: make arguments of the members, or split the tool",
            )


class DepthMeasure:
    """How deep objects and lists are nested. The target of a reference is measured once."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[str, int] = {}

    def depth(self, schema: Any, left: int) -> int:
        if not is_mapping(schema) or left == 0:
            return 0
        if "$ref" in schema:
            return self._referred(str(schema["$ref"]), left)
        below: list[Any] = [*(schema.get("properties") or {}).values()]
        below += [schema[member] for member in ("items", "additionalProperties") if member in schema]
        below += as_list(schema.get("prefixItems") or [])
        inside = max((self.depth(each, left - 1) for each in below), default=0)
        branches = [b for member in ("anyOf", "oneOf", "allOf") for b in as_list(schema.get(member) or [])]
        beside = max((self.depth(branch, left - 1) for branch in branches), default=0)
        return min(max(inside + _is_container(schema), beside), DEEPEST)

    def _referred(self, reference: str, left: int) -> int:
        if reference not in self._known:
            self._known[reference] = DEEPEST  # if the measure comes back here, the schema is recursive
            self._known[reference] = self.depth(_target(self._root, reference), left - 1)
        return self._known[reference]


def _is_container(schema: Mapping[str, Any]) -> bool:
    return bool({"object", "array"} & set(map(str, as_list(schema.get("type"))))) or "properties" in schema


def too_many(found: Definitions) -> Iterator[LintFinding]:
    for tool in found.tools:
        if len(tool.parameters) > MANY:
            yield about(
                tool,
                f"has {len(tool.parameters)} arguments",
                "use fewer: split the tool, or put what belongs together into one argument",
            )


def costly(found: Definitions) -> Iterator[LintFinding]:
    cost = found.tokens
    if cost > BUDGET and not found.is_searched:
        largest = sorted(found.tools, key=lambda tool: -tool.tokens)[:3]
        named = ", ".join(f"{tool.name} {tool.tokens}" for tool in largest)
        yield LintFinding(
            "the list of tools",
            largest[0].where,
            f"costs about {cost} tokens in every request (estimate: characters/4); the largest: {named}",
            'shorten descriptions and schemas, or have the tools searched: Server(search="auto")',
        )
