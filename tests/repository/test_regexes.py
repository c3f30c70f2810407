"""No regular expression of the package can take for ever: whoever sends the text could stop the server with it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.repository.backtracking import problem
from tests.rows import for_each_row

PACKAGE = Path(__file__).parents[2] / "framework" / "defserve"
FUNCTIONS = frozenset("compile match fullmatch search sub subn split findall finditer".split())
USES = re.compile(r"\bre\.[a-z]")
FLAGS = re.compile(r"re\.[A-Z]+(?: \| re\.[A-Z]+)*")

# Files that make patterns at run time → those patterns.
MADE: Mapping[str, Callable[[Any], Iterable[str | re.Pattern[Any]]]] = {
    "base/redaction.py": lambda module: [
        module._SECRET_NAME,
        module._COUNTED,
        *(look.pattern for look in module._LOOKS),
    ],
    "binding/signature.py": lambda module: [pattern for style in module._STYLES.values() for pattern in style],
    "guard/shell/judgement.py": lambda module: [
        pattern
        for _, valued, first in module._LIMITS.values()
        for pattern in (*valued.values(), *([first] if first is not None else []))
    ],
    "guard/shell/kinds.py": lambda module: [
        inspect.getclosurevars(kind.check).nonlocals.get("pattern", "") for kind in module.KINDS.values()
    ],
    "guard/shell/languages.py": lambda module: [
        r"/((?:[^\\/]|\\.)*)/((?:[^\\/]|\\.)*)/",
        f"[gpiImM0-9]*{module._SED_END}",
    ],
    "kernel/config/settings.py": lambda module: [".+", *_keywords("pattern", "kernel/config/settings.py")],
    "kernel/client_import.py": lambda module: [module.VARIABLE_NAME_PATTERN, module.HEADER_NAME_PATTERN],
    "openapi/tool.py": lambda module: [module._match_escaped('u/0"\\\\\\u002fé\U0001f600')],
    "protocols/mcp/numbered_errors.py": lambda module: [rule for rule, _ in module.SUGGESTION_RULES],
    "search/ranking.py": lambda module: [pattern for pattern, _ in module._DATA_PATTERNS],
    "tooling/lint/wording_rules.py": lambda module: [pattern for _, pattern in (*module.ORDERS, *module.INJECTIONS)],
    "tooling/packaging/privacy.py": lambda module: [
        *(pattern for _, pattern, _ in module._patterns()),
        *(form.pattern for form in module.FORMS.values()),
    ],
    # Only compiled, never matched; matched against a single character; of the words to hide; by a template of ours.
    "binding/patterns.py": lambda module: [],
    "kernel/config/entries.py": lambda module: [],
    "server/openapi_document.py": lambda module: module.CATEGORIES.values(),
    "tooling/project_template.py": lambda module: [],
}
# jsonschema and pydantic match patterns of a schema. Where their validators are made → why that cannot take for ever.
VALIDATORS: Mapping[str, str] = {
    "binding/explicit_schema.py": "its validators match with the linear engine",
    "binding/core_schemas.py": "the core schema of an annotation, whose patterns were looked at",
    "binding/models.py": "as above",
    "binding/patterns.py": "the linear engine itself",
    "binding/arguments.py": "as above",
    "protocols/mcpl/state/states.py": "its patterns are looked at",
    "protocols/mgp/events.py": "checks what the author emits",
    "tooling/packaging/project_documents.py": "the schema is a file of the package, the text is the author's",
}
MAKERS = re.compile(
    r"\bDraft(?:\d+Validator)?\(|validator_for\(|jsonschema\.validate\(|TypeAdapter(?:\[\w+\])?\(|SchemaValidator\("
)
# How a pattern begins → why it may be quadratic.
ALLOWED: Mapping[str, str] = {
    r"\{\{\s*(.+?)\s*\}\}": "the text is a template of our own",
    r"\b(ignore|disregard|forget|override)\b": "each repetition is bounded; the text is the author's",
    r"\b(do not|don't|never|without)\b": "each repetition is bounded; the text is the author's",
    r"\b(before|after|instead of)\b": "each repetition is bounded; the text is the author's",
    r'unknown argument (?P<name>".*")': "the text is our own, and a name in it is shortened",
    r"rel\s*=\s*": "the text has at most 500 characters",
}


def patterns() -> Iterator[tuple[str, str | bytes, int]]:
    """Each with its place and flags."""
    for path in sorted(PACKAGE.rglob("*.py")):
        source, name = path.read_text(encoding="utf-8"), path.relative_to(PACKAGE).as_posix()
        for node in _nodes_of_calls(source):
            if not (isinstance(node, ast.Call) and isinstance(called := node.func, ast.Attribute) and node.args):
                continue
            if isinstance(called.value, ast.Name) and called.value.id == "re" and called.attr in FUNCTIONS:
                others = [ast.unparse(one) for one in (*node.args[1:], *(word.value for word in node.keywords))]
                flags = sum(int(eval(one)) for one in others if FLAGS.fullmatch(one))
                pattern = _value(node.args[0], name)
                if pattern is not None:
                    yield f"{name}:{node.lineno}", pattern, flags
                else:
                    assert name in MADE, f"{name}:{node.lineno}: name the patterns in MADE"
    for name, made in MADE.items():
        for one in made(_module(name)):
            compiled = re.compile(one)
            yield name, compiled.pattern, compiled.flags & ~re.UNICODE


def _nodes_of_calls(source: str) -> Iterator[ast.AST]:
    """Of the statements of a file only those that name a function of `re`: to walk through all is slow."""
    if USES.search(source):
        lines = source.splitlines()
        for statement in ast.parse(source).body:
            first = min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", []))])
            if any(USES.search(line) for line in lines[first - 1 : statement.end_lineno]):
                yield from ast.walk(statement)


def _value(expression: ast.expr, name: str) -> Any:
    """The value of an expression in a file. None if it needs more than the names of the file."""
    if isinstance(expression, ast.Constant):
        return expression.value
    try:
        return eval(ast.unparse(expression), _module(name).__dict__)
    except NameError:
        return None


def _keywords(word: str, name: str) -> Iterator[str]:
    for node in ast.walk(ast.parse((PACKAGE / name).read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == word:
            yield str(_value(node.value, name))


def _module(name: str) -> Any:
    return import_module("defserve." + name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))


def test_no_pattern_backtracks_for_ever():
    found = list(patterns())
    assert len(found) > 300
    used: set[str] = set()
    slow: list[str] = []
    judge = cache(problem)
    for where, pattern, flags in found:
        how = judge(pattern, flags)
        known = [begin for begin in ALLOWED if isinstance(pattern, str) and pattern.startswith(begin)]
        used.update(known)
        if how and not (known and how == "quadratic"):
            slow.append(f"{where}: {how}: {pattern!r}")
    assert slow == [], "make repetitions possessive (*+, ++), or alternatives disjoint"
    assert used == set(ALLOWED)


def test_a_schema_that_is_not_ours_is_checked_in_one_place():
    made = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if MAKERS.search(path.read_text(encoding="utf-8"))
    }
    assert made == set(VALIDATORS), "use find_errors of binding/explicit_schema.py, or say here why it is safe"


@for_each_row(
    ("pattern", "expected"),
    [
        (r"(a*)*b", "exponential"),
        (r"(?:[a-z]+ ?)+:", "exponential"),
        (r"(?:a|a)*b", "exponential"),
        (r"(?:a(?:x?|y?))*b", "exponential"),
        (r"(?i)(?:ab|AB)*c", "exponential"),
        (r"(?=(?:a+)+b)x", "exponential"),
        (r"(?:\d+,?){1,40};", "exponential"),
        (r"(?:pid(?:=[\w %]*)?[ ])*", "exponential"),
        ("(\"\"\"|''')(?:\\\\.|.)*?\\1", "exponential"),
        (r"/(?:[^/\[\]]|\[\^?(?:[^\]/])+\])*/", "exponential"),
        (r"a*a*b", "quadratic"),
        (r".*foo.*x", "quadratic"),
        (r"\s*\w*\s*;", "quadratic"),
        (r"(?:a*a*b)*+", "quadratic"),
        (r"(?>ab)*(?>ab)*c", "quadratic"),
        (rb":[ \t]*([^\r\n]*?)[ \t]*", "quadratic"),
        (r"(?:[a-z]++ ?)*+:", None),
        (r"[a-z]+(?: [a-z]+)*:", None),
        (r"(?:pid(?:=[\w %]*+)?[,])*", None),
        (r'"(?:[^"\\]|\\.)*"', None),
        (r"a*+a*b", None),
        (r"\d{1,3}\d{1,3}", None),
        (r"(?:a(?!b)|ab)*$", None),
    ],
)
def test_how_long_a_pattern_can_take_is_known(pattern: str | bytes, expected: str | None):
    assert problem(pattern) == expected
