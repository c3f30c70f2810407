"""Rules about what a model reads: names and descriptions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Final

from defserve.guard.text import hidden as hidden_in
from defserve.tooling.lint.definitions import Definition, Definitions
from defserve.tooling.lint.finding import LintFinding, about
from defserve.tooling.lint.words import INJECTIONS, VAGUE, words

LONG: Final = 1_000
ALIKE: Final = 0.8
FEW_WORDS: Final = 4
# Every pair is compared; a longer list has other problems.
COMPARED: Final = 200
SAME_VERBS: Final = (
    frozenset({"get", "fetch", "read", "load", "retrieve", "show"}),
    frozenset({"list", "index", "enumerate"}),
    frozenset({"search", "find", "lookup", "query"}),
    frozenset({"create", "add", "new", "make"}),
    frozenset({"delete", "remove", "drop", "erase"}),
    frozenset({"update", "edit", "change", "modify", "set"}),
)


def undescribed(found: Definitions) -> Iterator[LintFinding]:
    for item in found.items:
        if not item.description.strip():
            yield about(item, "has no description", "write a docstring that says what it does and when to use it")


def undescribed_parameters(found: Definitions) -> Iterator[LintFinding]:
    for tool in found.tools:
        if bare := [p.name for p in tool.parameters if not (p.schema.get("description") or "$ref" in p.schema)]:
            yield about(
                tool,
                f"{', '.join(map(repr, bare))} {'has' if len(bare) == 1 else 'have'} no description",
                f"add to the docstring: Args: {bare[0]}: what it means, with its unit or format",
            )


def vague_names(found: Definitions) -> Iterator[LintFinding]:
    for tool in found.tools:
        if tool.name.lower() in VAGUE or len(tool.name) < 3:
            yield about(tool, "has a name that says nothing", "use a verb and its object, such as search_orders")


def long_descriptions(found: Definitions) -> Iterator[LintFinding]:
    for item in found.items:
        if len(item.description) > LONG:
            yield about(
                item,
                f"has a description of {len(item.description)} characters",
                "models read it in every request: keep what helps to choose the tool, move the rest to a resource",
            )


def hidden(found: Definitions) -> Iterator[LintFinding]:
    for where, item, text in _read(found):
        if shown := [name for _, name in hidden_in(text) if not name.startswith("line break")]:
            yield _of(item, f"{where} contains {shown[0]}", "delete it: people do not see it, but models do")


def injections(found: Definitions) -> Iterator[LintFinding]:
    for where, item, text in _read(found):
        line = " ".join(text.split())
        for what, pattern in INJECTIONS:
            if phrase := pattern.search(line):
                problem = f"{where} {what}: “{phrase[0][:80]}”"
                yield _of(item, problem, "describe what the tool does, and nothing else")


def _read(found: Definitions) -> Iterator[tuple[str, Definition | None, str]]:
    yield "instructions", None, found.instructions
    for item in found.items:
        for where, text in item.texts():
            yield where, item, text


def _of(item: Definition | None, problem: str, fix: str) -> LintFinding:
    return about(item, problem, fix) if item is not None else LintFinding("the server", "", problem, fix)


def similar(found: Definitions) -> Iterator[LintFinding]:
    compared = found.tools[:COMPARED]
    meant = {tool.name: _means(tool.name) for tool in compared}
    said = {tool.name: frozenset(words(tool.description)) for tool in compared}
    for one, other in combinations(compared, 2):
        if meant[one.name] == meant[other.name]:
            yield about(other, f"has nearly the same name as {one.name!r}", "keep one, or choose names that differ")
        elif _alike(said[one.name], said[other.name]):
            yield about(
                other,
                f"is described in nearly the same words as {one.name!r}",
                "keep one, or say when to use which",
            )


def _means(name: str) -> frozenset[str]:
    """The words of a name, without their order and with one verb for all that mean the same."""
    known = words(name)
    same = next((min(verbs) for verbs in SAME_VERBS for word in known if word in verbs), None)
    nouns = {word.removesuffix("s") for word in known if not any(word in verbs for verbs in SAME_VERBS)}
    return frozenset({*nouns, f"<{same}>"}) if same and nouns else frozenset({name})


def _alike(one: frozenset[str], other: frozenset[str]) -> bool:
    return min(len(one), len(other)) >= FEW_WORDS and len(one & other) >= ALIKE * len(one | other)
