"""The name of a tool for each operation: from its `operationId`, or else from method and path."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from defserve.openapi.documents.operations import METHODS, Operation
from defserve.openapi.naming.words import LONGEST, joined, unrepeated, words

_NOISE: Final = frozenset({"controller", "api", "v1", "v2", "v3", "rest"})
_VERSION: Final = re.compile(r"v[0-9]+")


def names_of(operations: Sequence[Operation]) -> list[str]:
    """A name for each operation, all different. Operations that share one are told apart by what differs."""
    first = [preferred(operation) for operation in operations]
    shared = {name for name, uses in Counter(first).items() if uses > 1}
    routes = Counter((operation.path, operation.id) for operation in operations)
    taken = {name for name in first if name not in shared}
    found: list[str] = []
    for operation, name in zip(operations, first, strict=True):
        if name in shared:
            is_of_many = routes[operation.path, operation.id] > 1 and _without_route(operation) != operation.id
            own = joined(_with_method(operation, words(name))) if is_of_many else ""
            name = own if own and own not in taken else _free(operation, name, taken)
            taken.add(name)
        found.append(name)
    return found


def preferred(operation: Operation) -> str:
    """The name that an operation would have if it were alone."""
    found = unrepeated(words(_without_route(operation))) if operation.id else []
    if len(found) > 2 and found[0] not in ("get", "list"):
        found = [word for word in found if word != "controller"]
    return joined(found) or joined(from_route(operation)) or operation.method


def _without_route(operation: Operation) -> str:
    """The `operationId` without the path and the method that FastAPI and others add to it.

    If a function serves several methods, FastAPI gives all of them one id, with a method that changes between starts.
    """
    id = operation.id or ""
    for method in METHODS:
        route = re.sub(r"\W", "_", f"{operation.path}_{method}")
        if id.lower().endswith(route.lower()) and len(id) > len(route):
            return id[: -len(route)]
    return id


def from_route(operation: Operation) -> list[str]:
    """GET /users/{id}/posts → get, users, posts, by, id."""
    static: list[str] = []
    variables: list[str] = []
    for segment in operation.path.partition("?")[0].split("/"):
        if segment.startswith("{"):
            variables += [segment.strip("{}")]
        elif segment and not _VERSION.fullmatch(segment) and segment.lower() not in _NOISE:
            static += words(segment)
    ends_in_variable = operation.path.rstrip("/").endswith("}")
    by = ["by", *words(variables[-1])] if variables and ends_in_variable else []
    return unrepeated([operation.method, *static, *by])


def _with_method(operation: Operation, own: list[str]) -> list[str]:
    return [operation.method, *own] if operation.method not in own else []


_MORE: Final[tuple[Callable[[Operation, list[str]], list[str]], ...]] = (
    lambda operation, own: [*words(operation.tags[0]), *own] if operation.tags else [],
    _with_method,
    lambda operation, own: from_route(operation),
    lambda operation, own: (
        [*own, "by", *words(operation.path.rpartition("{")[2].partition("}")[0])] if "{" in operation.path else []
    ),
    lambda operation, own: [operation.method, *words(operation.path)],
)
"""How operations of one name are told apart, in this order."""


def _free(operation: Operation, name: str, taken: set[str]) -> str:
    if name not in taken:
        return name
    own = words(name)
    for more in _MORE:
        other = joined(unrepeated(more(operation, own)))
        if other and other not in taken:
            return other
    for number in count(2):
        tail = f"_{number}"
        if (other := joined(own, LONGEST - len(tail)) + tail) not in taken:
            return other
    raise AssertionError
