"""Integers past 2^53 in a state. A host written in JavaScript would change them without a word.

They are refused, or kept and sent as text, by the author's choice.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, TypeAlias

from pydantic_core import from_json, to_json

from defserve.wire.jsonvalue import is_array, is_object

BigIntegers: TypeAlias = Literal["refuse", "text"]

SAFE: Final = 2**53
# The shortest number past 2^53 has sixteen digits, so most states need not be parsed.
_LONG: Final = re.compile(rb"[0-9]{16}")


def big_integer(text: bytes) -> str | None:
    """Where the JSON text has an integer past 2^53, as a JSON pointer; None if it has none."""
    return _place(from_json(text), "") if _LONG.search(text) else None


def with_texts(text: bytes) -> bytes:
    """The JSON text with its integers past 2^53 as strings."""
    return to_json(_as_text(from_json(text))) if big_integer(text) is not None else text


def _is_big(value: Any) -> bool:
    return type(value) is int and abs(value) > SAFE


def _place(value: Any, path: str) -> str | None:
    if is_object(value):
        below = ((f"{path}/{name}", item) for name, item in value.items())
    elif is_array(value):
        below = ((f"{path}/{index}", item) for index, item in enumerate(value))
    else:
        return path if _is_big(value) else None
    return next((found for place, item in below if (found := _place(item, place)) is not None), None)


def _as_text(value: Any) -> Any:
    if is_object(value):
        return {name: _as_text(item) for name, item in value.items()}
    if is_array(value):
        return [_as_text(item) for item in value]
    return str(value) if _is_big(value) else value
