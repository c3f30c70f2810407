"""Core schemas that stop at the first bad item, so that a large message cannot use much memory.

pydantic collects every error, some 600 bytes each, and a message of a few megabytes can hold millions of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import SchemaValidator
from pydantic_core.core_schema import CoreSchema

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_Schema = dict[str, Any]

# Types with the `fail_fast` option. A pydantic version that does not know it for a type ignores it.
_STOPPABLE = {
    *("list", "tuple", "set", "frozenset", "deque"),
    *("dict", "frozendict", "ordered-dict", "counter"),
}
# The keys under which a schema holds others: one, a list of them, or a mapping of names to them. Values under
# other keys (defaults, metadata, serialization) may look like schemas but are not.
_NESTED = {
    *("schema", "items_schema", "keys_schema", "values_schema", "lax_schema", "strict_schema", "python_schema"),
    *("json_schema", "arguments_schema", "steps", "definitions", "fields", "choices"),
    *("extras_schema", "var_args_schema", "var_kwargs_schema"),
}
_NAMED = {"fields", "choices"}
# One schema for any number of members, without stopping at the first.
_MANY = {"extras_schema", "var_args_schema", "var_kwargs_schema"}
_MISFIT = {"custom_error_type": "nested", "custom_error_message": "Does not have the shape of the schema"}


def fail_fast(schema: CoreSchema) -> CoreSchema:
    """A schema with the same results, but a sequence or mapping reports only its first bad item.

    A definition that branches into itself, as a binary tree does, reports each branch as a whole.
    """
    return cast(CoreSchema, _rewritten(schema, _branching(schema), wrap=False))


def fail_fast_validator(adapter: TypeAdapter[Any]) -> Any:
    """Like the adapter's own validator, but it fails fast, if its schema allows it."""
    if type(adapter.validator) is not SchemaValidator:
        return adapter.validator  # a pydantic plugin watches it
    try:
        # The prebuilt validators of models do not fail fast.
        return SchemaValidator(fail_fast(adapter.core_schema), None, _use_prebuilt=False)
    except (TypeError, RecursionError):
        return adapter.validator


def matched_patterns(schema: Any) -> Iterator[tuple[Any, str | None]]:
    """The patterns that a schema matches texts against, each with the engine that its model names."""
    pending: list[tuple[Any, str | None]] = [(schema, None)]
    while pending:
        node, engine = pending.pop()
        config: Any = node.get("config") or {}
        engine = config.get("regex_engine", engine)
        if node.get("type") == "str" and node.get("pattern") is not None:
            yield node["pattern"], node.get("regex_engine") or engine
        inside: list[Any] = []
        _mapped(node, lambda inner, _, inside=inside: inside.append(inner))
        pending.extend((inner, engine) for inner in inside)


def bounded_schema(schema: CoreSchema) -> CoreSchema:
    """A schema that matches no text against a pattern that is too long for it."""
    return cast(CoreSchema, _bounded(schema)) if any(matched_patterns(schema)) else schema


def bounded_validator(adapter: TypeAdapter[Any]) -> Any:
    """The adapter's own validator, bounded like a schema."""
    if type(adapter.validator) is not SchemaValidator or not any(matched_patterns(adapter.core_schema)):
        return adapter.validator
    try:
        return SchemaValidator(bounded_schema(adapter.core_schema), None, _use_prebuilt=False)
    except (TypeError, RecursionError):
        return adapter.validator


def _bounded(schema: Any) -> Any:
    made = _mapped(schema, lambda inner, _: _bounded(inner))
    _bound_text(made)
    return made


def _bound_text(made: _Schema) -> None:
    """A text that meets a pattern has an end: what a match costs grows with both."""
    if made.get("type") == "str" and isinstance(made.get("pattern"), str):
        from defserve.binding.arguments.patterns import max_text_length

        most, said = max_text_length(made["pattern"]), made.get("max_length")
        made["max_length"] = most if said is None else min(said, most)


def _rewritten(schema: Any, branching: set[str], wrap: bool) -> Any:
    """`wrap`: this is in the body of a branching definition."""
    if schema.get("type") == "definition-ref":
        return {"type": "custom-error", "schema": schema, **_MISFIT} if wrap else schema

    def change(inner: _Schema, key: str) -> Any:
        return _rewritten(inner, branching, inner.get("ref") in branching if key == "definitions" else wrap)

    made = _mapped(schema, change)
    _bound_text(made)
    if made.get("type") in _STOPPABLE:
        made["fail_fast"] = True
    return made


def _branching(schema: Any) -> set[str]:
    """The definitions that lead back to themselves by more than one way."""
    ways: dict[str, Counter[str]] = {}

    def gather(node: _Schema, definition: str, times: int) -> None:
        if node.get("type") == "definition-ref":
            ways.setdefault(definition, Counter())[node["schema_ref"]] += times

        def go_on(inner: _Schema, key: str) -> None:
            gather(inner, inner["ref"] if key == "definitions" else definition, 2 if key in _MANY else times)

        _mapped(node, go_on)

    gather(schema, "", 1)
    return {
        ref
        for ref, targets in ways.items()
        if sum(times for to, times in targets.items() if ref == to or ref in _reachable(to, ways)) > 1
    }


def _reachable(start: str, ways: dict[str, Counter[str]]) -> set[str]:
    found: set[str] = set()
    ahead = [start]
    while ahead:
        fresh = ways.get(ahead.pop(), Counter()).keys() - found
        found |= fresh
        ahead += fresh
    return found


def _mapped(node: _Schema, change: Callable[[_Schema, str], Any]) -> _Schema:
    """A copy of a schema, or of one of its fields, with every schema directly inside it changed."""

    def changed(value: Any, key: str) -> Any:
        if isinstance(value, list | tuple):
            items = [changed(item, key) for item in cast(list[Any], value)]
            return items if isinstance(value, list) else tuple(items)
        # Not a dict: the label beside a choice of a union.
        return change(cast(_Schema, value), key) if isinstance(value, dict) else value

    made = {**node}
    for key, value in node.items():
        if key in _NAMED and isinstance(value, dict):
            made[key] = {name: changed(item, key) for name, item in cast(_Schema, value).items()}
        elif key in _NESTED:
            made[key] = changed(value, key)
    return made
