"""Names that models can use: of tools and of their arguments. Unique, at most 64 characters, readable."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain, count
from typing import Final

from defserve.openapi.operations import HTTP_METHODS, Operation

_NOISE: Final = frozenset({"controller", "api", "v1", "v2", "v3", "rest"})
_VERSION: Final = re.compile(r"v[0-9]+")


def name_operations(operations: Sequence[Operation]) -> list[str]:
    """A name for each operation, all different. Operations that share one are told apart by what differs."""
    first = [make_preferred_name(operation) for operation in operations]
    shared = {name for name, uses in Counter(first).items() if uses > 1}
    routes = Counter((operation.path, operation.id) for operation in operations)
    taken = {name for name in first if name not in shared}
    found: list[str] = []
    for operation, name in zip(operations, first, strict=True):
        if name in shared:
            is_of_many = routes[operation.path, operation.id] > 1 and _without_route(operation) != operation.id
            own = join_name_words(_with_method(operation, split_name_words(name))) if is_of_many else ""
            name = own if own and own not in taken else _free(operation, name, taken)
            taken.add(name)
        found.append(name)
    return found


def make_preferred_name(operation: Operation) -> str:
    """The name that an operation would have if it were alone."""
    found = drop_repeated_words(split_name_words(_without_route(operation))) if operation.id else []
    if len(found) > 2 and found[0] not in ("get", "list"):
        found = [word for word in found if word != "controller"]
    return join_name_words(found) or join_name_words(from_route(operation)) or operation.method


def _without_route(operation: Operation) -> str:
    """The `operationId` without the path and the method that FastAPI and others add to it.

    If a function serves several methods, FastAPI gives all of them one id, with a method that changes between starts.
    """
    id = operation.id or ""
    for method in HTTP_METHODS:
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
            static += split_name_words(segment)
    ends_in_variable = operation.path.rstrip("/").endswith("}")
    by = ["by", *split_name_words(variables[-1])] if variables and ends_in_variable else []
    return drop_repeated_words([operation.method, *static, *by])


def _with_method(operation: Operation, own: list[str]) -> list[str]:
    return [operation.method, *own] if operation.method not in own else []


_MORE: Final[tuple[Callable[[Operation, list[str]], list[str]], ...]] = (
    lambda operation, own: [*split_name_words(operation.tags[0]), *own] if operation.tags else [],
    _with_method,
    lambda operation, own: from_route(operation),
    lambda operation, own: (
        [*own, "by", *split_name_words(operation.path.rpartition("{")[2].partition("}")[0])]
        if "{" in operation.path
        else []
    ),
    lambda operation, own: [operation.method, *split_name_words(operation.path)],
)
"""How operations of one name are told apart, in this order."""


def _free(operation: Operation, name: str, taken: set[str]) -> str:
    if name not in taken:
        return name
    own = split_name_words(name)
    for more in _MORE:
        other = join_name_words(drop_repeated_words(more(operation, own)))
        if other and other not in taken:
            return other
    tails = (f"_{number}" for number in count(2))
    numbered = (join_name_words(own, MAX_NAME - len(tail)) + tail for tail in tails)
    return next(other for other in numbered if other not in taken)


# -- The names of arguments. Model APIs take letters, digits, `_`, `.` and `-`, at most 64 of them.


_ODD: Final = re.compile(r"[^A-Za-z0-9_.-]+")


def make_argument_name(name: str, place: str, taken: set[str]) -> str:
    """`filter[name]` → `filter_name`. If a name is taken, its place is put before it: `query_id`."""
    plain = _ODD.sub("_", name).strip("_")[: MAX_NAME - 12] or place
    candidates = chain((plain, f"{place}_{plain}"), (f"{plain}_{number}" for number in count(2)))
    return next(candidate for candidate in candidates if candidate not in taken)


# -- Identifiers taken apart into words, and put together again.


MAX_NAME: Final = 64
"""Several model APIs take no longer names."""

_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SPLIT: Final = re.compile(r"[^A-Za-z0-9]+")


def split_name_words(text: str) -> list[str]:
    """`UsersController_findAll` → users, controller, find, all."""
    plain = unicodedata.normalize("NFKD", text[:500]).encode("ascii", "ignore").decode()
    return [word.lower() for part in _SPLIT.split(plain) for word in _CAMEL.split(part) if word]


def drop_repeated_words(found: Sequence[str]) -> list[str]:
    """Without a run of words that follows itself: navigate, post, navigate, post → navigate, post."""
    kept = list(found)
    size = len(kept) // 2
    while size:
        at = 0
        while at + 2 * size <= len(kept):
            if kept[at : at + size] == kept[at + size : at + 2 * size]:
                del kept[at + size : at + 2 * size]
            else:
                at += 1
        size = min(size - 1, len(kept) // 2)
    return kept


def join_name_words(found: Sequence[str], most: int = MAX_NAME) -> str:
    """The words as one name, shortened to fit by leaving out words from the middle."""
    kept = list(found)
    while len("_".join(kept)) > most and len(kept) > 2:
        del kept[len(kept) // 2]
    return "_".join(kept)[:most].strip("_")
