"""Values of a program, measured and written as JSON text. Only the process that owns the interpreter has them.

How it works: whatever a program holds once and names often is small in memory and may be endless as a text. So a value
is measured first and written then, and only the text, of a size that was agreed, goes to the server.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from pathlib import PurePath
from typing import Any, NamedTuple, cast

from pydantic_core import PydanticSerializationError, from_json, to_json

from defserve.core.json_values import is_array, is_object

# The same as in `job`, which is not imported here.
MAX_REPR = 1_000


class EncodedValue(NamedTuple):
    """A value as text, or what is to be said of it."""

    status: str
    text: bytes = b""
    is_repr: bool = False
    error: str | None = None


def encode_sandbox_value(value: Any, most: int) -> EncodedValue:
    """The value that a program ended with, in at most so many bytes. A set is an array; what else is not JSON is
    written as its `repr`."""
    if measure_min_text_bytes(value, most) > most:
        return EncodedValue("output")
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, default=_list_set).encode("utf-8")
        if len(text) > most:
            return EncodedValue("output")
        from_json(text)  # the server reads it so, which is stricter
        return EncodedValue("ok", text)
    except (TypeError, ValueError, RecursionError):
        return _represent(value)


def _list_set(value: Any) -> list[Any]:
    if not isinstance(value, set | frozenset):
        raise TypeError
    members = list(cast("Collection[Any]", value))
    try:
        return sorted(members)
    except TypeError:
        return members


def _represent(value: Any) -> EncodedValue:
    try:
        return EncodedValue("ok", json.dumps(repr(value)[:MAX_REPR]).encode(), is_repr=True)
    except RecursionError:
        return EncodedValue("error", error="the program's value is nested too deeply or is not JSON")
    except ValueError as error:  # an integer with too many digits
        return EncodedValue("error", error=f"the value has no text: ValueError: {error}")


class UnencodableArguments(Exception):
    """Arguments that no message could hold. The program sees an exception of this kind."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.message = kind, message


def encode_arguments(name: str, given: dict[str, Any], most: int, depth: int) -> bytes:
    """The arguments of a call, in at most so many bytes and levels. Raises BadArguments."""
    too_long = UnencodableArguments("ValueError", f"the arguments of {name} are longer than {most} bytes")
    if measure_min_text_bytes(given, most) > most:
        raise too_long
    if (odd := _find_unsupported(given, depth)) is not None:
        raise UnencodableArguments("TypeError", f"an argument of {name} is {odd}, and arguments are JSON")
    try:
        data = to_json(given, inf_nan_mode="constants")
        from_json(data, allow_inf_nan=False)
    except (PydanticSerializationError, ValueError) as error:
        raise UnencodableArguments("ValueError", f"the arguments of {name} are not JSON: {error}") from None
    if len(data) > most:
        raise too_long
    return data


def _find_unsupported(value: Any, depth: int) -> str | None:
    """What the first value is that JSON does not know. Of the code's objects only texts cross, which are no data."""
    waiting: list[tuple[Any, int]] = [(value, 0)]
    for one, level in waiting:
        if level > depth:
            return f"nested more than {depth} levels deep"
        if is_object(one):
            keys: list[Any] = list(one)
            if odd := [key for key in keys if not isinstance(key, str)]:
                return f"a dict with the key {repr(odd[0])[:MAX_REPR]}"
            waiting += [(inner, level + 1) for inner in one.values()]
        elif is_array(one):
            waiting += [(inner, level + 1) for inner in one]
        elif not (one is None or isinstance(one, str | bool | int | float)):
            return f"of type {type(one).__name__}"
    return None


def measure_min_text_bytes(value: Any, most: int) -> int:
    """The least that a value of a program takes as text, in bytes. It stops counting above `most`.

    What a program holds once and names often crosses once, and takes its place in a text each time: forty lists, each
    with the one before in it twice, would be a trillion. Whatever keeps, copies or writes a value measures it first.
    """
    size, waiting = 0, [value]
    while waiting and size <= most:
        one = waiting.pop()
        if isinstance(one, str | bytes):
            size += len(one) + 2
            continue
        inner = _list_parts(one)
        size += 1 + (one.bit_length() // 4 if isinstance(one, int) else 0)
        # Each part takes a byte at least: what is over without a look at them is not listed either.
        if size + len(waiting) + len(inner) > most:
            return most + 1
        waiting += inner
    return size


def _list_parts(value: Any) -> Collection[Any]:
    """What a value consists of, as far as its text shows it."""
    if isinstance(value, dict):
        return [*cast("dict[Any, Any]", value).keys(), *cast("dict[Any, Any]", value).values()]
    if isinstance(value, list | tuple | set | frozenset):
        return cast("Collection[Any]", value)
    if isinstance(value, BaseException):
        return value.args
    if isinstance(value, PurePath):
        return (str(value),)
    # Where Monty was not imported, nothing is of its types.
    monty = sys.modules.get("pydantic_monty")
    return [value.attributes] if monty is not None and isinstance(value, monty.MontyClassProxy) else ()
