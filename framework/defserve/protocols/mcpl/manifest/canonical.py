"""RFC 8785: the canonical text of a JSON value. The same value has the same bytes in every language.

Numbers are written as ECMAScript writes doubles, and members are sorted by their UTF-16 code units. Python's own
encoder does neither.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import Any, Final

from defserve.wire.jsonvalue import is_array, is_object

_ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')
_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_CONSTANTS: Final = {None: "null", True: "true", False: "false"}


def canonical(value: Any) -> bytes:
    """The canonical text. Raises ValueError for what has none: NaN, infinities, lone surrogates, other types."""
    return _text(value).encode()


def number(value: float) -> str:
    """A number as ECMAScript's Number::toString writes it. An integer past 2^53 becomes the nearest double."""
    try:
        given = float(value)
    except OverflowError:
        given = float("inf")
    if not isfinite(given):
        raise ValueError(f"{value!r:.40} is not a number of JSON")
    if given == 0:
        return "0"  # also for -0
    sign, magnitude = ("-", -given) if given < 0 else ("", given)
    # `repr` has the shortest digits that lead back to the same double, as ECMAScript wants. Only its layout differs.
    mantissa, _, exponent = repr(magnitude).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    return sign + _laid_out(digits, point)


def _laid_out(digits: str, point: int) -> str:
    """The digits of 0.DIGITS × 10^point, by the rules of Number::toString."""
    count = len(digits)
    if count <= point <= 21:
        return digits + "0" * (point - count)
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    mantissa = digits if count == 1 else f"{digits[0]}.{digits[1:]}"
    return f"{mantissa}e{'+' if point > 0 else '-'}{abs(point - 1)}"


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return _CONSTANTS[value]
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int | float):
        return number(value)
    if is_array(value):
        return f"[{','.join(map(_text, value))}]"
    if is_object(value):
        members = sorted(value.items(), key=lambda member: member[0].encode("utf-16-be"))
        return f"{{{','.join(f'{_string(name)}:{_text(item)}' for name, item in members)}}}"
    raise ValueError(f"{type(value).__name__} has no form in JSON")


def _string(value: str) -> str:
    value.encode()  # a lone surrogate raises UnicodeEncodeError, which is a ValueError
    return f'"{_ESCAPED.sub(_escape, value)}"'


def _escape(found: re.Match[str]) -> str:
    return _SHORT.get(found[0]) or f"\\u{ord(found[0]):04x}"
