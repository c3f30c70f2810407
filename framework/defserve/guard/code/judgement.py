"""The layers of the judge, in order. Each may refuse; none may raise."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, TypeVar

from defserve.guard.code.gate import decode, measure, without_text
from defserve.guard.code.policy import CodePolicy
from defserve.guard.code.readonly import ReadonlyRules
from defserve.guard.code.rules import CodeRules
from defserve.guard.code.walk import TreeTooDeep, Walk
from defserve.guard.verdict import Verdict, Violation, refused

T = TypeVar("T")

MAX_VIOLATIONS = 20
IMPORT = "import"
QUOTED = re.compile(r"'([^']*)'")
# Rules that have nothing to do with what a level leaves out of the language.
PLAIN = frozenset((IMPORT, "size", "encoding"))
INVALID = "Invalid syntax"

# What a model should be told when the stricter levels refuse everyday Python.
RESTRICTIONS = {
    "unsupported_syntax": [
        "async and await",
        "match",
        "except*",
        "type parameters and type aliases",
        "metaclass=",
        "names with two leading underscores",
        "special methods other than __init__, __str__, __repr__, comparison, arithmetic and iteration",
    ],
    "unsupported_builtins": ["open", "input", "type", "super", "setattr", "BaseException"],
}
READONLY = "assign only to names and to items of containers made in this code; no attribute assignment"


def pronounce(source: str | bytes, policy: CodePolicy) -> Verdict:
    """The verdict on a source under a policy."""
    violations = list(islice(dict.fromkeys(_violations(source, policy)), MAX_VIOLATIONS))
    return refused(violations, _hints(policy, violations)) if violations else Verdict(True)


def _violations(source: str | bytes, policy: CodePolicy) -> Iterable[Violation]:
    text = decode(source, policy.max_bytes)
    if isinstance(text, Violation):
        return [text]
    if policy.level == "unrestricted":
        return []
    if (excess := measure(text, policy.bounds)) is not None:
        return [excess]
    try:
        tree = quietly(lambda: ast.parse(text))
        found = list(islice(chain(_block_texts(text, policy), _structure(tree, policy)), 10 * MAX_VIOLATIONS))
        if not found and policy.strict:
            found = _compile(text)
    except TreeTooDeep:
        return [Violation("nesting", f"Code nested too deeply: at most {policy.bounds.depth} levels are allowed")]
    except SyntaxError as error:
        return [Violation("syntax", f"{INVALID}: {error.msg}", error.lineno)]
    except (ValueError, RecursionError, MemoryError, OverflowError):
        return [Violation("nesting", "Code too complex to be judged")]
    return found


def _structure(tree: ast.Module, policy: CodePolicy) -> Iterator[Violation]:
    rules = CodeRules(Walk(tree, policy.bounds.depth), policy)
    yield from rules
    if policy.level == "readonly":
        yield from ReadonlyRules(rules.references)


def _block_texts(text: str, policy: CodePolicy) -> Iterator[Violation]:
    if policy.blocked_texts:
        code = without_text(text)
        for pattern in policy.blocked_texts:
            if pattern in code:
                yield Violation("pattern", f"Blocked pattern: '{pattern}'")


def _compile(text: str) -> list[Violation]:
    from defserve.guard.code.restricted.compiling import complaints

    return [Violation("restricted", message, line) for line, message in quietly(lambda: complaints(ast.parse(text)))]


def _hints(policy: CodePolicy, violations: list[Violation]) -> dict[str, Any]:
    """What helps to correct these violations, and no more: a model pays for every word."""
    rules = {violation.rule for violation in violations}
    hints = policy.hints()
    if IMPORT not in rules:
        hints = {name: value for name, value in hints.items() if not name.endswith("_imports")}
    else:
        tried = {name.partition(".")[0] for v in violations for name in QUOTED.findall(v.message) if v.rule == IMPORT}
        hints["blocked_imports"] = [name for name in hints["blocked_imports"] if name in tried | policy.blocked_modules]
    if policy.strict and any(v.rule not in PLAIN and not v.message.startswith(INVALID) for v in violations):
        hints |= RESTRICTIONS
    if policy.level == "readonly":
        hints["readonly"] = READONLY
    return hints


def quietly(work: Callable[[], T]) -> T:
    """Do the work, even if the process turns warnings (an odd escape in a string) into errors."""
    try:
        return work()
    except SyntaxError:
        if not any(action == "error" for action, *_ in warnings.filters):
            raise
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return work()
