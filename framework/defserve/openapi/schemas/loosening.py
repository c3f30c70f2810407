"""Schemas that say less: every value that fitted still fits. For what is too long, too costly, or leads in a circle."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Final

from defserve.binding.arguments.compact import rebuilt
from defserve.openapi.schemas.conversion import DEFS
from defserve.wire.jsonvalue import JsonSchema, is_array, is_object

MOST_FORMS: Final = 1_000
"""Definitions that may be applied to one value, each as often as it is referred to."""
_SAME_VALUE: Final = ("allOf", "anyOf", "oneOf", "not")
"""Keywords whose schemas are applied to the value itself, and not to something inside it."""


def loosened(schema: JsonSchema) -> JsonSchema:
    """A schema for parts that were cut: they fit more than they should, so `oneOf` and `not` would refuse too much."""
    made = rebuilt({name: value for name, value in schema.items() if name != "not"}, loosened)
    if "oneOf" in made:
        forms = made.pop("oneOf")
        made.setdefault("anyOf", forms)
    return made


def without_circles(defs: dict[str, JsonSchema]) -> tuple[dict[str, JsonSchema], bool]:
    """The definitions without keywords that would apply one to a value for ever, and whether there were any."""
    made = dict(defs)
    while True:
        graph = {name: {*_applied(found)} for name, found in made.items()}
        try:
            TopologicalSorter(graph).prepare()
            return made, made != defs
        except CycleError as error:
            target, name, *_ = error.args[1]  # each is referred to by the next
            made[name] = _without(made[name], target)


def is_costly(defs: dict[str, JsonSchema]) -> bool:
    """Whether one value would have to be compared with too many forms. The definitions have no circles."""
    applied = {name: [*_applied(found)] for name, found in defs.items()}
    counts: dict[str, int] = {}
    for name in TopologicalSorter(applied).static_order():
        counts[name] = 1 + sum(counts[each] for each in applied.get(name, ()))
    return max(counts.values(), default=0) > MOST_FORMS


def _applied(schema: JsonSchema) -> Iterator[str]:
    """The definitions that a schema applies to the value itself."""
    if isinstance(ref := schema.get("$ref"), str):
        yield ref.removeprefix(DEFS)
    for word in _SAME_VALUE:
        for option in _options(schema.get(word)):
            yield from _applied(option)


def _without(schema: JsonSchema, target: str) -> JsonSchema:
    """The schema without the keywords that apply a definition to the value itself."""

    def leads_there(option: JsonSchema) -> bool:
        return target in _applied(option)

    made = {name: value for name, value in schema.items() if name != "$ref" or not leads_there({"$ref": value})}
    for word in _SAME_VALUE:
        if any(map(leads_there, _options(schema.get(word)))):
            del made[word]
            if word == "allOf" and (others := [part for part in schema[word] if not leads_there(part)]):
                made[word] = others
    return made


def _options(found: object) -> Iterator[JsonSchema]:
    return filter(is_object, found if is_array(found) else [found])
