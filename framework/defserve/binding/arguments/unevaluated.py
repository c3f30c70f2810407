"""`unevaluatedItems` and `unevaluatedProperties`, in time that grows with the value and not with its square.

A schema has looked at an item or a name if one of its keywords applies to it, or one in a schema beside it (`allOf`,
`$ref`, `if`, …) that the value fits. jsonschema looks each up in a list of those; here they are in a set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from defserve.wire.jsonvalue import is_array, is_object

Spend = Callable[[int], None]
Matches = Callable[[Any, Any], bool | None]
_ADDED_A_STEP = 100


class Evaluated:
    """The indexes of an array, or the names of an object, that a schema has looked at.

    `spend` is called with the steps that it takes. `matches` says whether a name fits a pattern; None: it may.
    """

    def __init__(self, value: Any, spend: Spend, matches: Matches) -> None:
        self._value, self._spend, self._matches = value, spend, matches
        self._found: set[Any] = set()
        self._has_all = False

    def rest(self, validator: Any, schema: Any) -> list[Any]:
        """What a schema leaves to its own `unevaluated…`."""
        self._visit(validator, schema, is_root=True)
        every: Iterable[Any] = range(len(self._value)) if is_array(self._value) else self._value
        return [] if self._has_all else [one for one in every if one not in self._found]

    def _visit(self, validator: Any, schema: Any, *, is_root: bool = False) -> None:
        self._spend(1)
        if self._has_all or not is_object(schema):
            return
        for beside, inner in _resolved(validator, schema):
            self._visit(beside, inner)
        if is_array(self._value):
            self._visit_items(validator, schema, is_root)
        else:
            self._visit_names(validator, schema, is_root)
        for inner in self._applied(validator, schema):
            self._visit(validator, inner)

    def _applied(self, validator: Any, schema: Any) -> Iterator[Any]:
        """The schemas beside it that the value fits."""
        for keyword in ("allOf", "oneOf", "anyOf"):
            yield from (inner for inner in schema.get(keyword, ()) if self._fits(validator, self._value, inner))
        if "if" in schema:
            is_met = self._fits(validator, self._value, schema["if"])
            yield from (schema[word] for word in (("if", "then") if is_met else ("else",)) if word in schema)
        if is_object(self._value):
            dependent: dict[str, Any] = schema.get("dependentSchemas", {})
            yield from (inner for name, inner in dependent.items() if name in self._value)

    def _visit_items(self, validator: Any, schema: Any, is_root: bool) -> None:
        items = schema.get("items")
        # Until 2019-09, a list under `items` was what `prefixItems` is now.
        is_prefix = is_array(items)
        prefix = items if is_array(items) else schema.get("prefixItems", ())
        others = schema.get("additionalItems") if is_prefix else items
        if others is not None or ("unevaluatedItems" in schema and not is_root):
            self._has_all = True
            return
        self._add(range(min(len(prefix), len(self._value))))
        if "contains" in schema and "prefixItems" in validator.VALIDATORS:
            wanted = schema["contains"]
            self._add(at for at, item in enumerate(self._value) if self._fits(validator, item, wanted))

    def _visit_names(self, validator: Any, schema: Any, is_root: bool) -> None:
        if "additionalProperties" in schema or ("unevaluatedProperties" in schema and not is_root):
            self._has_all = True
            return
        self._add(schema.get("properties", {}).keys() & self._value.keys())
        for pattern in schema.get("patternProperties", ()):
            self._add(name for name in self._value if self._matches(pattern, name) is not False)

    def _add(self, found: Iterable[Any]) -> None:
        before = len(self._found)
        self._found.update(found)
        self._spend(1 + (len(self._found) - before) // _ADDED_A_STEP)

    def _fits(self, validator: Any, value: Any, schema: Any) -> bool:
        self._spend(1)
        return next(validator.descend(value, schema), None) is None


def _resolved(validator: Any, schema: Any) -> Iterator[tuple[Any, Any]]:
    """What a schema refers to, each with a validator that knows the references in it."""
    for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
        if keyword not in schema or keyword not in validator.VALIDATORS:
            continue
        if keyword == "$recursiveRef":
            from referencing.jsonschema import lookup_recursive_ref

            found: Any = lookup_recursive_ref(validator._resolver)
        else:
            found = validator._resolver.lookup(schema[keyword])
        yield validator.evolve(schema=found.contents, _resolver=found.resolver), found.contents
