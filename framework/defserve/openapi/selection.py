"""Choosing operations: by tag, path, method, `operationId` or tool name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from defserve.errors import UsageError
from defserve.openapi.documents.operations import METHODS, Operation

Pattern: TypeAlias = str | Callable[[Operation], bool]
"""`tag:users`, `/users/*`, `GET`, `GET /users/*`, or an operationId or tool name (`list_*`); or a function."""


def matches(pattern: Pattern, operation: Operation, name: str) -> bool:
    """Whether a pattern means an operation, whose tool has this name."""
    if not isinstance(pattern, str):
        return bool(pattern(operation))
    kind, _, rest = pattern.partition(":")
    if kind == "tag":
        return any(fnmatchcase(tag.lower(), rest.strip().lower()) for tag in operation.tags)
    method, _, path = pattern.partition(" ")
    if method.lower() in METHODS and (method.isupper() or path.startswith("/")):
        return operation.method == method.lower() and (not path or _fits(path.strip(), operation.path))
    if pattern.startswith("/"):
        return _fits(pattern, operation.path)
    return fnmatchcase(name, pattern) or (operation.id is not None and fnmatchcase(operation.id, pattern))


def _fits(pattern: str, path: str) -> bool:
    # A variable is written in braces in the document; fnmatch knows no braces, only brackets.
    return fnmatchcase(path, pattern.replace("[", "[[]"))


def chosen(operation: Operation, name: str, include: Sequence[Pattern] | None, exclude: Sequence[Pattern]) -> bool:
    """Whether an operation is served: some pattern of `include` (if there is any) means it, and none of `exclude`."""
    wanted = include is None or any(matches(pattern, operation, name) for pattern in include)
    return wanted and not any(matches(pattern, operation, name) for pattern in exclude)


def patterns_of(given: Any, option: str) -> tuple[Pattern, ...]:
    """What `include=` or `exclude=` was given. Raises UsageError for anything but patterns."""
    found: tuple[Any, ...] = (given,) if isinstance(given, str) or callable(given) else tuple(given)
    for pattern in found:
        if not isinstance(pattern, str) and not callable(pattern):
            raise UsageError(
                f"{option}={pattern!r} is not a pattern", fix=f'write {option}=["tag:users", "GET /users/*"]'
            )
    return found
