"""The package as a graph: which of our modules imports which, wherever the import hides, and the circles in it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1] / "framework" / "defserve"

# Groups of entry points look like modules, and are none.
GROUPS = ("defserve.servers",)

Graph = Mapping[str, Collection[str]]


class Edge(NamedTuple):
    """`source` imports `target`, both as dotted names below the package."""

    source: str
    target: str
    line: int
    only_types: bool = False
    """Whether the import stands under `if TYPE_CHECKING`."""


def modules(package: Path) -> dict[str, Path]:
    """Dotted name below the package → file. The package itself is the empty name."""
    return {
        ".".join(path.relative_to(package).with_suffix("").parts).removesuffix("__init__").rstrip("."): path
        for path in sorted(package.rglob("*.py"))
    }


@cache
def edges(package: Path) -> tuple[Edge, ...]:
    """Every import of one of our modules by another: statements at any depth, and module names in strings."""
    return tuple(_edges(package))


def _edges(package: Path) -> Iterator[Edge]:
    known = modules(package)
    for source, path in known.items():
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        # Only where a string could name a module, not a logger, are expressions looked at: they are most of a tree.
        has_names = re.search(rf"(?<!getLogger\()[\"']{package.name}\.", text)
        nodes = list(ast.walk(tree) if has_names else statements(tree))
        typing, loggers = set(_under_type_checking(nodes)), set(_names_of_loggers(nodes))
        is_package, root = path.name == "__init__.py", package.name
        for node in nodes:
            if not isinstance(node, ast.Import | ast.ImportFrom | ast.Constant) or id(node) in loggers:
                continue
            for name in _imported(node, source, is_package, root):
                target = _module(name, known, root)
                if target is not None and target != source:
                    yield Edge(source, target, getattr(node, "lineno", 0), id(node) in typing)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        found = getattr(node, name, ())
        for statement in found if isinstance(found, list) else ():
            yield statement
            yield from statements(statement)


def _under_type_checking(nodes: Iterable[ast.AST]) -> Iterator[int]:
    for node in nodes:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for statement in node.body:
                yield from (id(inner) for inner in ast.walk(statement))


def _names_of_loggers(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """A logger is called like a module, and imports none."""
    for node in nodes:
        if isinstance(node, ast.Call) and "getLogger" in (getattr(node.func, "attr", ""), getattr(node.func, "id", "")):
            yield from map(id, node.args)


def _imported(node: ast.AST, source: str, is_package: bool, root: str) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            here = [root, *source.split(".")] if source else [root]
            above = here[: len(here) - level + is_package] if level else []
            base = ".".join([*above, *([module] if module else [])])
            return [f"{base}.{alias.name}" for alias in names]
        case ast.Constant(value=str(text)) if re.fullmatch(rf"{root}(\.\w+)+(:\w+)?", text) and text not in GROUPS:
            # Also a lazy import: `import_module("defserve.x")`, or a table of such names.
            return [text.partition(":")[0]]
        case _:
            return []


def _module(name: str, known: Mapping[str, Path], root: str) -> str | None:
    """The module of ours that `name` (a module, or something inside one) comes from."""
    first, _, below = name.partition(".")
    if first != root:
        return None
    while below not in known:
        below = below.rpartition(".")[0]
    return below


def graph(found: Iterable[Edge], name: Callable[[str], str | None] = lambda module: module) -> dict[str, set[str]]:
    """The edges between what `name` makes of modules. None leaves a module out."""
    made: dict[str, set[str]] = {}
    for edge in found:
        source, target = name(edge.source), name(edge.target)
        if source is not None and target is not None and source != target:
            made.setdefault(source, set()).add(target)
    return made


def knots(of: Graph) -> list[set[str]]:
    """Sets of nodes that all reach one another, the largest first."""
    reached = {node: _reachable(of, node) for node in of}
    found: list[set[str]] = []
    for node in of:
        if node in reached[node] and not any(node in knot for knot in found):
            found.append({other for other in reached[node] if node in reached.get(other, ())})
    return sorted(found, key=len, reverse=True)


def _reachable(of: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        for target in of.get(ahead.pop(), ()):
            if target not in seen:
                seen.add(target)
                ahead.append(target)
    return seen


def circle(of: Graph, knot: set[str]) -> str:
    """A shortest way round inside a knot, to read: `a → b → a`."""
    ways: list[list[str]] = []
    for start in sorted(knot):
        ahead, seen = [[start]], {start}
        while ahead:
            way = ahead.pop(0)
            if start in of.get(way[-1], ()):
                ways.append([*way, start])
                break
            for target in sorted(knot.intersection(of.get(way[-1], ())) - seen):
                seen.add(target)
                ahead.append([*way, target])
    return " → ".join(min(ways, key=len))
