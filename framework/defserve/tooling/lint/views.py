"""Rules about views: what their HTML reaches, and whether it is there. The HTML is found by reading the source."""

from __future__ import annotations

import ast
import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any, Final

from defserve.tooling.lint.definitions import Definition, Definitions
from defserve.tooling.lint.finding import LintFinding, about

# Not loaded by a browser: comments, the targets of links, and the names of namespaces.
_HARMLESS: Final = re.compile(r"<!--.*?-->|<a\s[^>]*>|https?://www\.w3\.org/\S*", re.IGNORECASE | re.DOTALL)
_REACHED: Final = re.compile(
    r"""(?P<scheme>https?|wss?)://(?P<host>[a-z0-9.-]+(?::\d+)?)|(?:src|href)\s*=\s*["']?//(?P<bare>[a-z0-9.-]+(?::\d+)?)""",
    re.IGNORECASE,
)
_ENDINGS: Final = (".html", ".htm")
LONGEST: Final = 4 * 1024 * 1024


def unnamed_origins(found: Definitions) -> Iterator[LintFinding]:
    for item in found.items:
        if item.origins is None:
            continue
        reached = {origin: None for html in _pages(item) for origin in _origins(html)}
        for origin in reached:
            if not any(_names(named, origin) for named in item.origins):
                yield about(
                    item,
                    f"its HTML has {origin}, which no csp names: hosts block it",
                    f'name it, @server.app(…, csp={{"connect": ["{origin}"]}}) or "resource", or put the file inline',
                )


def missing_files(found: Definitions) -> Iterator[LintFinding]:
    for item in found.items:
        for file in _files(item) if item.origins is not None else ():
            if not file.is_file():
                yield about(
                    item, f"there is no file {str(file)!r}", "a relative path starts beside the file of the function"
                )


def _origins(html: str) -> Iterator[str]:
    for match in _REACHED.finditer(_HARMLESS.sub("", html)):
        scheme = match["scheme"] or "https"
        yield f"{scheme}://{match['host'] or match['bare']}".lower().rstrip(".")


def _names(named: str, origin: str) -> bool:
    named = named.lower()
    start, wildcard, domain = named.partition("*.")
    return origin.startswith(start) and origin.endswith(f".{domain}") if wildcard else named == origin


def _pages(item: Definition) -> Iterator[str]:
    """The HTML that a view can return, as far as it is known without running it."""
    for text in _texts(item.function):
        if "<" in text:
            yield text
    for file in _files(item):
        try:
            if file.stat().st_size <= LONGEST:
                yield file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue


def _files(item: Definition) -> Iterator[Path]:
    folder = Path(inspect.getsourcefile(item.function) or ".").parent if inspect.isfunction(item.function) else Path()
    for text in _texts(item.function):
        if text.lower().endswith(_ENDINGS) and "<" not in text and os.linesep not in text:
            yield folder / text


def _texts(function: Any) -> Iterator[str]:
    """The texts in a function, and those of its module that it names."""
    try:
        (written,) = ast.parse(dedent(inspect.getsource(function))).body
    except (TypeError, OSError, SyntaxError, ValueError):
        return  # there is no source, or it cannot be parsed alone
    body = written.body if isinstance(written, ast.FunctionDef | ast.AsyncFunctionDef) else []
    for node in (node for statement in body for node in ast.walk(statement)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Name) and isinstance(text := function.__globals__.get(node.id), str):
            yield text
