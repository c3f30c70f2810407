"""What all decorators share: they work bare and with options, and their errors name the author's line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from defserve.errors import UsageError

if TYPE_CHECKING:
    from types import FrameType

    from defserve.protocols.mcp.items import ItemOptions

Options = TypeVar("Options", bound="ItemOptions")


def decorate(name: str, declare: Callable[[Any], object], function: Any = None) -> Any:
    """Declare `function` and return it unchanged; without one, return the decorator that does so.

    `name` is how the author writes the decorator. Raises UsageError for a string in place of the function.
    """
    if isinstance(function, str):
        raise UsageError(
            f"@{name}({function!r}): options have names", where=caller(), fix=f'@{name}(name="{function}")'
        )

    def decorator(function: Any) -> Any:
        declare(function)
        return function

    return decorator(function) if function is not None else decorator


def need_uri(name: str, uri: Any, example: str = "config://app") -> None:
    """Raises UsageError for a resource decorator without a URI."""
    if callable(uri):
        from defserve.binding.functions import where

        raise UsageError(f"@{name} needs a URI", where=where(uri), fix=f'write @{name}("{example}")')


def read_options(kind: type[Options], given: Mapping[str, Any], function: Any) -> Options:
    """The options that an author gave for a function. Raises UsageError for one that does not exist."""
    try:
        return kind(**given)
    except TypeError:
        from dataclasses import fields

        from defserve.binding.functions import name_of, where
        from defserve.server.elsewhere import DECLARED
        from defserve.server.options import refuse_unknown

        subject = f"{name_of(function)}: {kind.__name__.removesuffix('Options').lower()}"
        refuse_unknown(given, [field.name for field in fields(kind)], subject, where(function), DECLARED)
        raise


def caller() -> str:
    """`file.py:12` of the author's line that called into `defserve.server`."""
    from defserve.binding.functions import place

    frame = _author_frame()
    return place(frame.f_code.co_filename, frame.f_lineno)


def from_caller(path: str | os.PathLike[str]) -> str:
    """A path that starts, if it is relative, in the folder of the author's file that called into `defserve.server`."""
    file = _author_frame().f_code.co_filename
    return os.path.join(os.path.dirname(file) if os.path.exists(file) else "", path)


def _author_frame() -> FrameType:
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("defserve.server."):
        frame = frame.f_back
    return frame
