"""The rules about `await`: `ctx.ask(…)` alone does nothing, and `await ctx.log.info(…)` fails."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from textwrap import dedent
from typing import Any, Final

from defserve.context import Context
from defserve.tooling.lint.definitions import Definitions
from defserve.tooling.lint.finding import LintFinding, about

VERBS: Final = {name for name, verb in vars(Context).items() if inspect.iscoroutinefunction(inspect.unwrap(verb))}
"""The methods of a Context that must be awaited."""
TELLING: Final = ("progress", "emit")
"""The methods of a Context that give nothing to await, as do all of its `log`."""

Def = ast.FunctionDef | ast.AsyncFunctionDef
# Where a value is used as it is. As an argument of a call it may still be awaited.
USES: Final = (
    ast.Expr,
    ast.Return,
    ast.If,
    ast.While,
    ast.IfExp,
    ast.BoolOp,
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
    ast.FormattedValue,
    ast.Attribute,
    ast.Subscript,
)


def forgotten(found: Definitions) -> Iterator[LintFinding]:
    for item in found.items:
        for verb, line, is_async in _unawaited(item.function):
            problem, fix = f"{verb}(…) is not awaited, so it does nothing", f"write await {verb}(…)"
            if not is_async:
                fix = f"in a plain def, write {verb.partition('.')[0]}.wait({verb}(…)), or make it async def"
            where = f"{item.where.rpartition(':')[0]}:{line}" if item.where else ""
            yield about(item, problem, fix)._replace(where=where)


def needless(found: Definitions) -> Iterator[LintFinding]:
    for item in found.items:
        written, first = _source(item.function)
        if written is None:
            continue
        contexts = _contexts(written)
        for node in _own(written):
            if isinstance(node, ast.Await) and isinstance(node.value, ast.Call) and _tells(node.value.func, contexts):
                verb = ast.unparse(node.value.func)
                where = f"{item.where.rpartition(':')[0]}:{first + node.lineno - 1}" if item.where else ""
                problem = f"{verb}(…) gives nothing to await, so this line fails"
                yield about(item, problem, f"write {verb}(…) without await")._replace(where=where)


def _unawaited(function: Any) -> Iterator[tuple[str, int, bool]]:
    """The call as it is written, its line, and whether it could be awaited there."""
    written, first = _source(function)
    if written is not None:
        for call in _forgotten_in(written, _contexts(written)):
            yield ast.unparse(call.func), first + call.lineno - 1, isinstance(written, ast.AsyncFunctionDef)


def _source(function: Any) -> tuple[Def | None, int]:
    """The function as it is written, and its first line. None if there is no source, or it cannot be parsed alone."""
    try:
        lines, first = inspect.getsourcelines(function)
        (written,) = ast.parse(dedent("".join(lines))).body
    except (TypeError, OSError, SyntaxError, ValueError):
        return None, 0
    return (written if isinstance(written, Def) else None), first


def _contexts(written: Def) -> set[str]:
    """The names of the parameters that are annotated as a Context."""
    arguments = (*written.args.args, *written.args.kwonlyargs)
    return {one.arg for one in arguments if one.annotation and "Context" in ast.unparse(one.annotation)}


def _forgotten_in(written: Def, contexts: set[str]) -> Iterator[ast.Call]:
    own = list(_own(written))
    handed_on = {name for node in own for name in _handed_on(node)}
    for parent in own:
        # What is assigned to a name can still be awaited.
        kept = parent.targets if isinstance(parent, ast.Assign) else ()
        lost = bool(kept) and all(isinstance(name, ast.Name) and name.id not in handed_on for name in kept)
        if lost or isinstance(parent, USES):
            for child in ast.iter_child_nodes(parent):
                if isinstance(child, ast.Call) and _asks(child.func, contexts):
                    yield child


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below this one, except those of inner functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Def | ast.Lambda):
            yield child
            yield from _own(child)


def _handed_on(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Await):
        given: list[ast.expr] = [node.value]
    elif isinstance(node, ast.Call):
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
    else:
        return
    for value in given:
        yield from (name.id for name in ast.walk(value) if isinstance(name, ast.Name))


def _asks(verb: ast.expr, contexts: set[str]) -> bool:
    return (
        isinstance(verb, ast.Attribute)
        and verb.attr in VERBS
        and isinstance(verb.value, ast.Name)
        and verb.value.id in contexts
    )


def _tells(verb: ast.expr, contexts: set[str]) -> bool:
    if not isinstance(verb, ast.Attribute):
        return False
    of = verb.value
    if isinstance(of, ast.Attribute) and of.attr == "log":
        of = of.value
    elif verb.attr not in TELLING:
        return False
    return isinstance(of, ast.Name) and of.id in contexts
