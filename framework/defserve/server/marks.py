"""Marks on functions without a server (`@tool`, `@resource`, `@prompt`, `@completion`), for `server.include`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from defserve.errors import UsageError

if TYPE_CHECKING:
    from typing import Unpack

    from defserve.server.options import PromptFields, ResourceFields, ToolFields

F = TypeVar("F", bound=Callable[..., Any])
ATTRIBUTE = "__defserve_marks__"


class Mark:
    """What a function wants to become: a kind, its positional arguments, its options."""

    __slots__ = ("kind", "arguments", "options")

    def __init__(self, kind: str, arguments: tuple[str, ...], options: dict[str, Any]) -> None:
        self.kind, self.arguments, self.options = kind, arguments, options


# used bare: @tool
@overload
def tool(function: F, /) -> F: ...
# used with options: @tool(timeout=3)
@overload
def tool(**options: Unpack[ToolFields]) -> Callable[[F], F]: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """Mark a function as a tool for `server.include`."""
    return _marking("tool", (), options)(function) if function is not None else _marking("tool", (), options)


def resource(uri: str, /, **options: Unpack[ResourceFields]) -> Callable[[F], F]:
    """Mark a function as a resource for `server.include`."""
    if callable(uri):
        raise UsageError("@resource needs a URI", fix='write @resource("config://app")')
    return _marking("resource", (uri,), dict(options))


# used bare: @prompt
@overload
def prompt(function: F, /) -> F: ...
# used with options: @prompt(title="…")
@overload
def prompt(**options: Unpack[PromptFields]) -> Callable[[F], F]: ...
def prompt(function: Any = None, /, **options: Any) -> Any:
    """Mark a function as a prompt for `server.include`."""
    return _marking("prompt", (), options)(function) if function is not None else _marking("prompt", (), options)


def completion(target: str, argument: str, /) -> Callable[[F], F]:
    """Mark a function as completing an argument, for `server.include`."""
    return _marking("completion", (target, argument), {})


def _marking(kind: str, arguments: tuple[str, ...], options: dict[str, Any]) -> Callable[[F], F]:
    def mark(function: F) -> F:
        if not callable(function):
            raise UsageError(f"@{kind} marks functions, not {function!r}", fix=f'options have names: @{kind}(name="…")')
        try:
            marks: list[Mark] = function.__dict__.setdefault(ATTRIBUTE, [])
        except AttributeError:
            raise UsageError(
                f"{function!r} cannot carry a mark", fix=f"register it directly: server.{kind}(…)"
            ) from None
        marks.append(Mark(kind, arguments, options))
        return function

    return mark


def marked(target: Any) -> Iterator[tuple[Callable[..., Any], Mark]]:
    """The marked functions of a module, an object (bound to it), or a function, in order of definition."""
    if callable(target) and hasattr(target, ATTRIBUTE):
        yield from ((target, mark) for mark in getattr(target, ATTRIBUTE))
        return
    if isinstance(target, ModuleType | type):
        functions = list(vars(target).values())
    else:
        names = _attributes(target.__class__)
        functions = [getattr(target, name) for name in names]
    for function in functions:
        for mark in getattr(function, ATTRIBUTE, ()) if callable(function) else ():
            yield function, mark


def _attributes(cls: type[Any]) -> list[str]:
    """The marked attributes of a class, its bases' first. Looked up on the class, so that no property runs."""
    names = dict.fromkeys(name for kind in reversed(cls.__mro__) for name in vars(kind))
    return [name for name in names if hasattr(getattr(cls, name, None), ATTRIBUTE)]
