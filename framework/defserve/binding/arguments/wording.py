"""How a problem is worded for a model: paths, values cut short, and one phrase for each kind of error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import pydantic_core

from defserve.base.hidden_characters import replace_hidden
from defserve.wire.jsonvalue import is_array, is_object

SHOWN = 40
_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "a boolean"),
    ((int, float), "a number"),
    (str, "a string"),
    ((list, tuple), "an array"),
    (dict, "an object"),
    (type(None), "null"),
)

# pydantic error type -> the JSON type that was wanted.
EXPECTED: dict[str, str] = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "integer"),
    **dict.fromkeys(("float_type", "float_parsing", "decimal_type", "decimal_parsing", "complex_type"), "number"),
    "finite_number": "number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "boolean"),
    **dict.fromkeys(("string_type", "string_sub_type", "string_unicode", "bytes_type"), "string"),
    **dict.fromkeys(
        ("list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type", "iteration_error"), "array"
    ),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type"), "object"),
    "none_required": "null",
    **dict.fromkeys(("date_type", "date_parsing", "date_from_datetime_parsing"), "date (YYYY-MM-DD)"),
    **dict.fromkeys(("datetime_type", "datetime_parsing", "datetime_from_date_parsing"), "date and time (ISO 8601)"),
    **dict.fromkeys(("time_type", "time_parsing"), "time (HH:MM:SS)"),
    **dict.fromkeys(("time_delta_type", "time_delta_parsing"), "duration (ISO 8601)"),
    **dict.fromkeys(("uuid_type", "uuid_parsing"), "UUID"),
    **dict.fromkeys(("url_type", "url_parsing"), "URL"),
    "path_type": "path",
}

_Context = dict[str, Any]

# pydantic error type -> the rule that was broken.
BROKEN: dict[str, Callable[[_Context], str]] = {
    "greater_than_equal": lambda c: f"must be at least {c['ge']}",
    "greater_than": lambda c: f"must be greater than {c['gt']}",
    "less_than_equal": lambda c: f"must be at most {c['le']}",
    "less_than": lambda c: f"must be less than {c['lt']}",
    "multiple_of": lambda c: f"must be a multiple of {c['multiple_of']}",
    "string_too_short": lambda c: f"must have at least {counted(c['min_length'], 'character')}",
    "string_too_long": lambda c: f"must have at most {counted(c['max_length'], 'character')}",
    "bytes_too_short": lambda c: f"must have at least {counted(c['min_length'], 'byte')}",
    "bytes_too_long": lambda c: f"must have at most {counted(c['max_length'], 'byte')}",
    "too_short": lambda c: f"must have at least {counted(c['min_length'], c['noun'])}",
    "too_long": lambda c: f"must have at most {counted(c['max_length'], c['noun'])}",
    "string_pattern_mismatch": lambda c: f"must match the pattern {c['pattern']}",
    "literal_error": lambda c: f"expected {_quoted(c['expected'])}",
    "enum": lambda c: f"expected {_quoted(c['expected'])}",
    "union_tag_invalid": lambda c: f"expected {_quoted(alternatives(c['expected_tags'].split(', ')))}",
}


def counted(number: Any, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def alternatives(options: Iterable[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    distinct = list(dict.fromkeys(options))
    return " or ".join(filter(None, (", ".join(distinct[:-1]), distinct[-1]))) if distinct else ""


def spell_path(path: Sequence[str | int]) -> str:
    """`items[0].qty`; a key that is not an identifier is quoted: `headers["x y"]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.replace("-", "_").isidentifier() and len(step) <= 2 * SHOWN:
            text += f".{step}" if text else step
        else:
            text += f"[{shown(step)}]"
    return text


def shown(value: Any) -> str:
    """A value as JSON, cut to about forty characters."""
    # Only the beginning is encoded: a value may be megabytes.
    if isinstance(value, str) or is_array(value):
        value = value[: SHOWN + 1]
    elif is_object(value):
        value = dict(islice(value.items(), SHOWN))
    try:
        text = pydantic_core.to_json(value, inf_nan_mode="constants").decode()
    except (ValueError, RecursionError, UnicodeError):
        text = ascii(value) if isinstance(value, str) else kind_of(value)
    text = replace_hidden(text[: SHOWN + 3], lambda _: "\N{REPLACEMENT CHARACTER}")
    return text if len(text) <= SHOWN + 2 else text[: SHOWN - 1] + "…"


def kind_of(value: Any) -> str:
    """What kind of JSON value this is, for values that must not be shown."""
    return next((name for kind, name in _KINDS if isinstance(value, kind)), "something else")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`unknown argument "limt"; did you mean "limit"?`"""
    from difflib import get_close_matches

    names = list(known)
    problem = f"unknown argument {shown(name)}"
    if close := get_close_matches(name[:200], names, n=1):
        return f'{problem}; did you mean "{close[0]}"?'
    if not names:
        return f"{problem}; there are none"
    return f"{problem}; known: {', '.join(names[:20])}{', …' if len(names) > 20 else ''}"


def _quoted(text: str) -> str:
    """Python's list of choices in JSON's spelling."""
    return re.sub(r"(?<!['\w])(True|False|None)(?!['\w])", lambda found: _WORDS[found[0]], text).replace("'", '"')


_WORDS = {"True": "true", "False": "false", "None": "null"}
