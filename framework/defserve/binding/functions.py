"""Facts about a callable of any kind: function, method, partial, class or object with `__call__`."""

from __future__ import annotations

import collections.abc as abc
import functools
import inspect
import os
from typing import Any, get_origin

from defserve.binding.injection import Flow

# How a plain function answers, by its return annotation.
_ANSWERS: dict[Any, Flow] = {
    abc.Awaitable: "async",
    abc.Coroutine: "async",
    abc.AsyncIterator: "async_generator",
    abc.AsyncGenerator: "async_generator",
    abc.AsyncIterable: "async_generator",
    abc.Iterator: "generator",
    abc.Generator: "generator",
}


def name_of(function: Any) -> str:
    """The name of a function, of the function in a partial, or of a callable object's class."""
    function = behind_partials(function)
    return getattr(function, "__name__", None) or type(function).__name__


def where(function: Any) -> str:
    """`file.py:12`, relative to the working directory if below it; empty if there is no source."""
    code = getattr(inspect.unwrap(body_of(function)), "__code__", None)
    if code is not None:
        return place(code.co_filename, code.co_firstlineno)
    if not inspect.isclass(function):
        return ""
    try:
        return place(inspect.getfile(function), inspect.getsourcelines(function)[1])
    except (OSError, TypeError):
        return ""


def place(path: str, line: int) -> str:
    """`file.py:12`, relative to the working directory if below it."""
    return f"{path.removeprefix(os.getcwd() + os.sep)}:{line}"


def flow_of(function: Any, returns: Any = None) -> Flow:
    """How the function answers when it is called.

    A plain function may wrap a coroutine function (functools.wraps), or be annotated as returning an
    awaitable or an iterator. Then it answers like one.
    """
    body = body_of(function)
    if inspect.isasyncgenfunction(body):
        return "async_generator"
    if inspect.isgeneratorfunction(body):
        return "generator"
    if inspect.iscoroutinefunction(body) or inspect.iscoroutinefunction(inspect.unwrap(body)):
        return "async"
    return _ANSWERS.get(get_origin(returns), "sync")


def docstring_of(function: Any) -> str | None:
    function = behind_partials(function)
    if inspect.isroutine(function) or inspect.isclass(function):
        return function.__doc__
    return body_of(function).__doc__ or type(function).__doc__


def body_of(function: Any) -> Any:
    """The function whose body runs and whose annotations count."""
    function = behind_partials(function)
    if inspect.isroutine(function):
        return getattr(function, "__func__", function)
    if inspect.isclass(function):
        own = {name for base in function.__mro__ if base is not object for name in vars(base)}
        return inspect.getattr_static(function, "__init__" if "__init__" in own else "__new__")
    return type(function).__call__


def behind_partials(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func  # pyright: ignore[reportUnknownMemberType]
    return function  # pyright: ignore[reportUnknownVariableType]
