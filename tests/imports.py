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
    known, root = modules(package), package.name
    # A name in a string is also a lazy import: `import_module("defserve.x")`, or a table. A logger only looks like one.
    named = re.compile(rf"(?<!getLogger\()([\"'])({root}(?:\.\w+)+)(?::\w+)?\1")
    for source, path in known.items():
        text = path.read_text(encoding="utf-8") + "\n"
        code = TRIPLE_QUOTED.sub(lambda quoted: "\n" * quoted[0].count("\n"), text)
        typing = [found.span() for found in TYPE_CHECKING.finditer(code)]
        found = [(place, name) for place, node in _statements(code) for name in _imported(node, source, path, root)]
        found += [(name.start(), name[2]) for name in named.finditer(code) if name[2] not in GROUPS]
        for place, name in sorted(found):
            target = _module(name, known, root)
            if target is not None and target != source:
                only_types = any(begin < place < end for begin, end in typing)
                yield Edge(source, target, code.count("\n", 0, place) + 1, only_types)


# To parse the whole package takes seconds.
TRIPLE_QUOTED = re.compile(r"(\"\"\"|''')(?:\\.|(?!\1)[^\\])*+\1", re.DOTALL)
TYPE_CHECKING = re.compile(r"^([ \t]*)if TYPE_CHECKING\b[^\n]*\n(?:\1[ \t][^\n]*\n|\n)+", re.MULTILINE)
STATEMENT = re.compile(
    r"^[ \t]*(from[ \t]+[.\w]+[ \t]+import[ \t]+(?:\([^)]*\)|[^\n(]+)|import[ \t]+[^\n]+)", re.MULTILINE
)


def import_statements(text: str) -> list[ast.stmt]:
    """Those of a module, at any depth."""
    return [node for _, node in _statements(TRIPLE_QUOTED.sub("", text))]


def _statements(code: str) -> Iterator[tuple[int, ast.stmt]]:
    for found in STATEMENT.finditer(code):
        yield found.start(1), ast.parse(found[1]).body[0]


def _imported(node: ast.stmt, source: str, path: Path, root: str) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            here = [root, *source.split(".")] if source else [root]
            above = here[: len(here) - level + (path.name == "__init__.py")] if level else []
            base = ".".join([*above, *([module] if module else [])])
            return [f"{base}.{alias.name}" for alias in names]
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
