"""MGP §4: the marks `@safe`, `@moderate` and `@dangerous`. Each leaves a `Security` on the function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from defserve.binding.functions import where
from defserve.errors import UsageError
from defserve.protocols.mgp.security.security import Security
from defserve.protocols.mgp.security.vocabulary import Risk

F = TypeVar("F", bound=Callable[..., Any])

MARK = "__defserve_security__"
REGISTERED = "__defserve_registered__"
DETAILS = ("effects", "validator", "reversible", "confirm")


@overload
def safe(function: F, /) -> F: ...
@overload
def safe(*permissions: str, **details: Any) -> Callable[[F], F]: ...
def safe(*permissions: Any, **details: Any) -> Any:
    """No side effects: runs without confirmation. Works bare and called."""
    return _mark("safe", permissions, details)


@overload
def moderate(function: F, /) -> F: ...
@overload
def moderate(*permissions: str, **details: Any) -> Callable[[F], F]: ...
def moderate(*permissions: Any, **details: Any) -> Any:
    """Limited side effects: `@moderate("network.outbound", effects=["network"])`."""
    return _mark("moderate", permissions, details)


@overload
def dangerous(function: F, /) -> F: ...
@overload
def dangerous(*permissions: str, **details: Any) -> Callable[[F], F]: ...
def dangerous(*permissions: Any, **details: Any) -> Any:
    """Effects on the system that cannot be taken back: confirmed before it runs, unless `confirm=False`."""
    return _mark("dangerous", permissions, details)


def _mark(risk: Risk, permissions: tuple[Any, ...], details: dict[str, Any]) -> Any:
    if len(permissions) == 1 and callable(permissions[0]) and not details:
        return _marked(permissions[0], risk, (), {})
    return lambda function: _marked(function, risk, permissions, details)  # pyright: ignore


def _marked(function: F, risk: Risk, permissions: tuple[Any, ...], details: dict[str, Any]) -> F:
    here = where(function)
    if REGISTERED in function.__dict__:
        raise UsageError(
            f"@{risk} comes after @server.tool has registered {function.__name__}",
            where=here,
            fix=f"swap the lines: @server.tool above, @{risk} right above the def",
        )
    if MARK in function.__dict__:
        raise UsageError(
            f"{function.__name__} is already marked {function.__dict__[MARK].risk_level}",
            where=here,
            fix="keep one of @safe, @moderate and @dangerous",
        )
    unknown = sorted(details.keys() - DETAILS)
    if unknown:
        raise UsageError(f"@{risk} has no option {unknown[0]!r}", where=here, fix=f"use some of {', '.join(DETAILS)}")
    function.__dict__[MARK] = Security(risk, permissions, where=here, **details)
    return function
