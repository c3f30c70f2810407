"""Marks on functions without a server (`@tool`, `@resource`, `@prompt`, `@completion`), for `server.include`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from defserve.errors import UsageError
from defserve.server.decorators import caller, decorate, need_uri

if TYPE_CHECKING:
    from typing import Unpack

    from defserve.server.options import AppFields, PromptFields, ResourceFields, ToolFields

F = TypeVar("F", bound=Callable[..., Any])
ATTRIBUTE = "__defserve_marks__"


class Mark:
    """What a function is to become: a kind, its positional arguments, its options."""

    __slots__ = ("kind", "arguments", "options")

    def __init__(self, kind: str, arguments: tuple[str, ...], options: dict[str, Any]) -> None:
        self.kind, self.arguments, self.options = kind, arguments, options

    def put_on(self, function: Any) -> None:
        """Raises UsageError if it is not a function, or cannot carry a mark."""
        if isinstance(function, staticmethod | classmethod):
            function = function.__func__  # pyright: ignore  (a class gives the function in it)
        try:
            if not callable(function):
                raise UsageError(
                    f"@{self.kind} marks functions, not {function!r}", where=caller(), fix="put it above a def"
                )
            function.__dict__.setdefault(ATTRIBUTE, []).append(self)
        except AttributeError:
            raise UsageError(
                f"{function!r} cannot carry a mark", fix=f"register it directly: server.{self.kind}(…)"
            ) from None


# used bare: @tool
@overload
def tool(function: F, /) -> F: ...
# used with options: @tool(timeout=3)
@overload
def tool(**options: Unpack[ToolFields]) -> Callable[[F], F]: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """Mark a function as a tool for `server.include`."""
    return decorate("tool", Mark("tool", (), options).put_on, function)


def resource(uri: str, /, **options: Unpack[ResourceFields]) -> Callable[[F], F]:
    """Mark a function as a resource for `server.include`."""
    need_uri("resource", uri)
    return decorate("resource", Mark("resource", (uri,), dict(options)).put_on)


def app(uri: str, /, **options: Unpack[AppFields]) -> Callable[[F], F]:
    """Mark a function as a view for `server.include`."""
    need_uri("app", uri, "ui://name/view")
    return decorate("app", Mark("app", (uri,), dict(options)).put_on)


# used bare: @prompt
@overload
def prompt(function: F, /) -> F: ...
# used with options: @prompt(title="…")
@overload
def prompt(**options: Unpack[PromptFields]) -> Callable[[F], F]: ...
def prompt(function: Any = None, /, **options: Any) -> Any:
    """Mark a function as a prompt for `server.include`."""
    return decorate("prompt", Mark("prompt", (), options).put_on, function)


def completion(target: str, argument: str, /) -> Callable[[F], F]:
    """Mark a function that completes an argument, for `server.include`."""
    return decorate("completion", Mark("completion", (target, argument), {}).put_on)


def marked(target: Any) -> Iterator[tuple[Callable[..., Any], Mark]]:
    """The marked functions of a module, an object (bound to it), or a function, in order of definition."""
    if callable(target) and hasattr(target, ATTRIBUTE):
        functions = [target]
    elif isinstance(target, ModuleType):
        functions = list(vars(target).values())
    elif isinstance(target, type):
        functions = [_given_by(target, value) for value in vars(target).values()]
    else:
        functions = [getattr(target, name) for name in _marked_names(target.__class__)]
    for function in functions:
        for mark in getattr(function, ATTRIBUTE, ()) if callable(function) else ():
            yield function, mark


def _given_by(cls: type[Any], value: Any) -> Any:
    """What `Class.name` gives, without running a property."""
    return value.__get__(None, cls) if isinstance(value, staticmethod | classmethod) else value  # pyright: ignore


def _marked_names(cls: type[Any]) -> list[str]:
    """The marked attributes of a class, those of its bases first. Looked up on the class, so that no property runs."""
    names = dict.fromkeys(name for kind in reversed(cls.__mro__) for name in vars(kind))
    return [name for name in names if hasattr(getattr(cls, name, None), ATTRIBUTE)]
