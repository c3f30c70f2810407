"""Arguments that clients repeat as HTTP headers (2026-07-28: `x-mcp-header` in an input schema)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from defserve.wire.jsonvalue import is_array, is_object

ANNOTATION = "x-mcp-header"
PREFIX = "Mcp-Param-"
TYPES = ("string", "integer", "boolean")

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")

# Keywords that hold schemas. What is not here (`default`, `examples`, `enum`, …) is data, and may look like anything.
_ONE = frozenset(
    (
        "items contains additionalItems unevaluatedItems additionalProperties unevaluatedProperties propertyNames "
        "not if then else contentSchema"
    ).split()
)
_SEVERAL = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
_BY_NAME = frozenset(("patternProperties", "dependentSchemas", "$defs", "definitions"))

Path = tuple[str, ...]


def param_headers(schema: dict[str, Any]) -> dict[Path, str]:
    """The path of each annotated argument → the full name of its header, such as `Mcp-Param-Region`.

    Raises ValueError for an annotation that would make a client drop the whole tool.
    """
    found: dict[Path, str] = {}
    owners: dict[str, Path] = {}
    for path, position in _positions(schema):
        if ANNOTATION not in position:
            continue
        if not path:
            raise ValueError(
                f"{ANNOTATION} {position[ANNOTATION]!r} is where clients do not look: "
                "put it on a property that is reached from the root through `properties` alone"
            )
        token = _token(".".join(path), position)
        if (owner := owners.setdefault(token.lower(), path)) != path:
            raise ValueError(
                f"{ANNOTATION} {token!r} is on both {'.'.join(owner)} and {'.'.join(path)}; "
                "letter case makes no difference"
            )
        found[path] = PREFIX + token
    return found


def _token(where: str, position: dict[str, Any]) -> str:
    token, kind = position[ANNOTATION], position.get("type")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise ValueError(f"{where}: {ANNOTATION} {token!r} is not a header name (a non-empty RFC 9110 token)")
    if kind not in TYPES:
        raise ValueError(f"{where}: {ANNOTATION} is for a string, integer or boolean, and its type is {kind!r}")
    return token


def _positions(root: dict[str, Any]) -> Iterator[tuple[Path | None, dict[str, Any]]]:
    """Every schema inside `root`, with its path through `properties`, or None where another keyword was crossed."""
    waiting: list[tuple[Path | None, Any]] = [((), root)]
    for path, position in waiting:
        if not is_object(position):
            continue
        yield path, position
        for keyword, value in position.items():
            if keyword == "properties" and is_object(value):
                waiting += [(None if path is None else (*path, name), inner) for name, inner in value.items()]
            elif keyword in _SEVERAL and is_array(value):
                waiting += [(None, inner) for inner in value]
            elif keyword in _BY_NAME and is_object(value):
                waiting += [(None, inner) for inner in value.values()]
            elif keyword in _ONE:
                waiting.append((None, value))
