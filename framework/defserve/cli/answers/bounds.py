"""The bounds of a form's field: in words beside the question, and checked before an answer is sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from defserve.cli.screen.counts import counted

Field = Mapping[str, Any]

FORMATS: Final[Mapping[str, tuple[str, re.Pattern[str]]]] = {
    "email": ("an email address", re.compile(r"[^@\s]+@[^@\s]+")),
    "uri": ("an address such as https://example.com", re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+")),
    "date": ("a date such as 2026-07-28", re.compile(r"\d{4}-\d\d-\d\d")),
    "date-time": ("a time such as 2026-07-28T12:00:00Z", re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d\S*")),
}
"""Format → what to type, and roughly what that looks like: the server looks closely."""


def bounds_of(field: Field) -> str:
    """What an answer must keep to, in words: `1 to 10`, `at most 80 characters`. Empty if it may be anything."""
    return ", ".join(words for words, _ in _rules(field))


def bound_problem(value: Any, field: Field) -> str | None:
    """What to type instead of a value that is out of bounds; None if it is fine."""
    return next((words for words, fits in _rules(field) if not fits(value)), None)


def _rules(field: Field) -> list[tuple[str, Callable[[Any], bool]]]:
    kind = field.get("type")
    if kind in ("integer", "number"):
        return _number(field)
    if kind == "array":
        return _counted(field, "minItems", "maxItems", "item")
    if kind != "string":
        return []
    rules = _counted(field, "minLength", "maxLength", "character")
    if (known := FORMATS.get(str(field.get("format")))) is not None:
        words, pattern = known
        rules.insert(0, (words, lambda value: pattern.fullmatch(value) is not None))
    return rules


def _number(field: Field) -> list[tuple[str, Callable[[Any], bool]]]:
    low, high = _figure(field, "minimum"), _figure(field, "maximum")
    rules: list[tuple[str, Callable[[Any], bool]]] = []
    if low is not None and high is not None:
        rules.append((f"{low} to {high}", lambda value: low <= value <= high))
    elif low is not None:
        rules.append((f"at least {low}", lambda value: value >= low))
    elif high is not None:
        rules.append((f"at most {high}", lambda value: value <= high))
    above, below = _figure(field, "exclusiveMinimum"), _figure(field, "exclusiveMaximum")
    if above is not None:
        rules.append((f"more than {above}", lambda value: value > above))
    if below is not None:
        rules.append((f"less than {below}", lambda value: value < below))
    return rules


def _counted(field: Field, least: str, most: str, thing: str) -> list[tuple[str, Callable[[Any], bool]]]:
    low, high = _figure(field, least) or 0, _figure(field, most)
    if high is not None and low:
        words = counted(high, thing) if low == high else f"{low} to {counted(high, thing)}"
    elif high is not None:
        words = f"at most {counted(high, thing)}"
    elif low:
        words = f"at least {counted(low, thing)}"
    else:
        return []
    return [(words, lambda value: low <= len(value) and (high is None or len(value) <= high))]


def _figure(field: Field, name: str) -> int | float | None:
    """A bound, if it is a number. A server may send anything."""
    value = field.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
