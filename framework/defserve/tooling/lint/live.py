"""Rules about servers that act on their own: what they inject, and what states they keep."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from textwrap import dedent
from typing import Any, Final

from defserve.tooling.lint.definitions import Definitions
from defserve.tooling.lint.finding import LintFinding, about
from defserve.tooling.lint.words import INJECTIONS, words
from defserve.wire.jsonvalue import is_array, is_mapping

# What an injected text must not do, besides what no text for a model should.
ORDERS: Final = (
    *INJECTIONS,
    *(
        (what, re.compile(pattern, re.IGNORECASE | re.MULTILINE))
        for what, pattern in (
            ("gives orders", r"\byou (must|have to|are required to|shall|need to|should always)\b"),
            ("gives orders", r"\b(always|never) (answer|reply|respond|say|call|use|mention|follow)\b"),
            ("overrides instructions", r"\b(ignore|disregard|override) (the|your|all|any|every)\b"),
            ("speaks as somebody else", r"^\s*(system|user|assistant|human|developer)\s*:"),
        )
    ),
)

FIX_DENIED: Final = (
    "inject beside the user's message (leave positions= out), or move what needs more to a feature set of its own, so "
    "that the rest stays on"
)

SAFE: Final = 2**53
# The last word of a field's name, if it holds numbers of other services that are often past 2^53.
IDS: Final = frozenset({"id", "ids", "snowflake", "snowflakes", "nanoseconds", "ns"})
DEEPEST: Final = 20


def injected_orders(found: Definitions) -> Iterator[LintFinding]:
    for hook in found.hooks:
        told: set[str] = set()
        for text, line in _texts(hook.function):
            what, phrase = _order_in(text)
            if phrase and phrase not in told:
                told.add(phrase)
                yield LintFinding(
                    f"hook {hook.name!r} of {hook.feature_set!r}",
                    f"{hook.where.rpartition(':')[0]}:{line}" if hook.where else "",
                    f"injects a text that {what}: “{phrase}”",
                    "state facts and say where they come from; the host's instructions are not yours to change",
                )


def denied_sets(found: Definitions) -> Iterator[LintFinding]:
    for one in found.feature_sets:
        if one.denied:
            yield LintFinding(
                f"feature set {one.name!r}",
                "",
                f"is off at MCPL hosts of 0.5 with their default settings, which do not grant {', '.join(one.denied)}",
                FIX_DENIED,
            )


def _order_in(text: str) -> tuple[str, str]:
    """What a text does to a model's instructions, and its words for it; empty if it does nothing."""
    found = ((what, phrase) for what, pattern in ORDERS if (phrase := pattern.search(text)))
    return next(((what, " ".join(phrase[0].split())[:80]) for what, phrase in found), ("", ""))


def big_integers(found: Definitions) -> Iterator[LintFinding]:
    for state in found.states:
        for field in _big_fields(state.schema, "", state.schema, DEEPEST) if not state.chooses else ():
            yield LintFinding(
                f"state of {state.feature_set!r}",
                "",
                f"{field or 'its value'} may be past 2^53, which hosts written in JavaScript change",
                'say what should happen: set.state(…, big_integers="text"), or "refuse"',
            )


def sent_states(found: Definitions) -> Iterator[LintFinding]:
    for item in found.items:
        for name, kind in item.takes.items():
            for state in found.states:
                if kind is state.model:
                    yield about(
                        item,
                        f"the caller has to send {name!r}: {kind.__name__} is the model of a state",
                        f"write {name}: State[{kind.__name__}], in a tool of the feature set {state.feature_set!r}",
                    )


# -- texts -----------------------------------------------------------------------------------------------


def _texts(function: Any) -> Iterator[tuple[str, int]]:
    """The texts that a function may return, with their lines: its literals, and the constants of its module."""
    try:
        lines, first = inspect.getsourcelines(function)
        (written,) = ast.parse(dedent("".join(lines))).body
    except (TypeError, OSError, SyntaxError, ValueError):
        return  # there is no source, or it cannot be parsed alone
    if not isinstance(written, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    documented = ast.get_docstring(written, clean=False) is not None
    known: Mapping[str, Any] = getattr(function, "__globals__", {})
    for statement in written.body[1:] if documented else written.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.JoinedStr):
                yield (
                    "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values),
                    (first + node.lineno - 1),
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value, first + node.lineno - 1
            elif isinstance(node, ast.Name) and isinstance(value := known.get(node.id), str):
                yield value, first + node.lineno - 1


# -- schemas ---------------------------------------------------------------------------------------------


def _big_fields(schema: Any, path: str, root: Mapping[str, Any], depth: int) -> Iterator[str]:
    """The fields that may hold an integer past 2^53: by their bounds, or by a name that says so."""
    if not is_mapping(schema) or depth == 0:
        return
    if isinstance(reference := schema.get("$ref"), str):
        definitions: Mapping[str, Any] = root.get("$defs", {})
        yield from _big_fields(definitions.get(reference.rpartition("/")[2]), path, root, depth - 1)
    if schema.get("type") == "integer" and _may_be_big(schema, path):
        yield path
    properties = schema.get("properties")
    for name, below in properties.items() if is_mapping(properties) else ():
        yield from _big_fields(below, f"{path}.{name}" if path else name, root, depth - 1)
    for member in ("items", "additionalProperties"):
        yield from _big_fields(schema.get(member), path, root, depth - 1)
    for member in ("anyOf", "oneOf", "prefixItems"):
        branches = schema.get(member)
        for branch in branches if is_array(branches) else ():
            yield from _big_fields(branch, path, root, depth - 1)


def _may_be_big(schema: Mapping[str, Any], path: str) -> bool:
    bounds = [schema.get(name) for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "default")]
    if any(isinstance(bound, int | float) and abs(bound) > SAFE for bound in bounds):
        return True
    is_bounded = schema.get("maximum") is not None or schema.get("exclusiveMaximum") is not None
    last = words(path.rpartition(".")[2])[-1:]
    return not is_bounded and bool(IDS.intersection(last))
