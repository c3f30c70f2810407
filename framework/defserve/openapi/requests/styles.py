"""How parameters are written (OpenAPI 3.1 §4.8.12.3): matrix, label, form, simple, delimited and deepObject."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

from defserve.errors import BadArguments, Problem
from defserve.openapi.documents.operations import Parameter
from defserve.wire.jsonvalue import is_array, is_object

_RESERVED: Final = ":/?@!$'()*,;"
"""What `allowReserved` leaves as it is. Without `#`, `&`, `=` and `+`, which would begin something else."""
_DELIMITERS: Final = {"spaceDelimited": "%20", "pipeDelimited": "%7C"}


def text_of(value: Any) -> str:
    """A JSON value as it stands in a URL."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e16:
        return str(int(value))  # an integer may come as 3.0
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def content_of(media: str, value: Any, *, ascii_only: bool = False) -> str:
    """The value of a parameter that has a media type of its own."""
    is_json = media.partition(";")[0].strip().lower().endswith(("/json", "+json", "*"))
    return json.dumps(value, ensure_ascii=ascii_only) if is_json else text_of(value)


def encoded(value: Any, safe: str = "") -> str:
    # A lone surrogate has no form in UTF-8.
    return quote(text_of(value).encode("utf-8", "replace"), safe=safe)


def query_pairs(parameter: Parameter, value: Any) -> Iterator[str]:
    """The `name=value` texts of a query parameter, encoded."""
    safe = _RESERVED if parameter.allow_reserved else ""
    name = encoded(parameter.name, "[]")
    if parameter.media is not None:
        yield f"{name}={encoded(content_of(parameter.media, value), safe)}"
    elif is_array(value):
        items = [encoded(item, safe) for item in value]
        if parameter.explode or parameter.style == "deepObject":
            yield from (f"{name}={item}" for item in items)
        elif items:
            yield f"{name}={_DELIMITERS.get(parameter.style, ',').join(items)}"
    elif is_object(value):
        if parameter.style == "deepObject":
            yield from _deep(name, value, safe)
        elif parameter.explode:
            yield from (f"{encoded(key, '[]')}={encoded(item, safe)}" for key, item in value.items())
        elif value:
            flat = [encoded(part, safe) for pair in value.items() for part in pair]
            yield f"{name}={_DELIMITERS.get(parameter.style, ',').join(flat)}"
    else:
        yield f"{name}={encoded(value, safe)}"


def _deep(name: str, value: Any, safe: str) -> Iterator[str]:
    """`filter[author][name]=x`. Deeper than one level is not in the standard, and common."""
    for key, item in value.items():
        inner = f"{name}[{encoded(key)}]"
        if is_object(item):
            yield from _deep(inner, item, safe)
        elif is_array(item):
            yield from (f"{inner}[]={encoded(each, safe)}" for each in item)
        else:
            yield f"{inner}={encoded(item, safe)}"


def in_path(parameter: Parameter, value: Any, argument: str, *, slashes: bool) -> str:
    """The text of a path parameter, which cannot be more than its part of the path. Raises BadArguments."""
    values: list[Any] = [value]
    if is_array(value):
        values = list(value)
    elif is_object(value):
        values = [part for pair in value.items() for part in pair]
    texts = [text_of(item) for item in values]
    for text in texts:
        if problem := _leaves_segment(text, slashes):
            raise BadArguments((Problem(argument, problem),))
    if not "".join(texts):
        raise BadArguments((Problem(argument, "must not be empty: it is a part of the address"),))
    return _written(parameter, value)


def _leaves_segment(text: str, slashes: bool) -> str | None:
    # Many servers decode a path before they look at it, some of them twice.
    meant = text
    for _ in range(3):
        from urllib.parse import unquote

        meant = unquote(meant)
    parts = meant.replace("\\", "/").split("/")
    if any(part.strip() in (".", "..") for part in parts) or any(
        part.partition(";")[0] in (".", "..") for part in parts
    ):
        return "must not be . or .., which name other addresses"
    if len(parts) > 1 and not slashes:
        return "must not hold a slash, which begins another part of the address"
    if slashes and ("" in parts[:-1] or "\\" in meant):
        return "must be a relative path with single slashes"
    if any(ord(character) < 32 or character == "\x7f" for character in meant):
        return "must not hold control characters"
    return None


def _written(parameter: Parameter, value: Any) -> str:
    if parameter.media is not None:
        return encoded(content_of(parameter.media, value))
    name, explode, style = encoded(parameter.name), parameter.explode, parameter.style
    if style == "matrix":
        if is_array(value):
            items = [encoded(item) for item in value]
            return "".join(f";{name}={item}" for item in items) if explode else f";{name}={','.join(items)}"
        if is_object(value) and explode:
            return "".join(f";{encoded(key)}={encoded(item)}" for key, item in value.items())
        return f";{name}={simple(value, explode)}"
    if style == "label":
        return "." + simple(value, explode).replace(",", "." if explode else ",")
    return simple(value, explode)


def simple(value: Any, explode: bool, safe: str = "") -> str:
    """Values separated by commas: `a,b`, `k,v` or, exploded, `k=v`."""
    if is_array(value):
        return ",".join(encoded(item, safe) for item in value)
    if is_object(value):
        between = "=" if explode else ","
        return ",".join(f"{encoded(key, safe)}{between}{encoded(item, safe)}" for key, item in value.items())
    return encoded(value, safe)


def in_header(parameter: Parameter, value: Any, argument: str) -> str:
    """The value of a header. Raises BadArguments for one that would begin another header."""
    if parameter.media is not None:
        text = content_of(parameter.media, value, ascii_only=True)
    elif is_array(value):
        text = ",".join(map(text_of, value))
    elif is_object(value):
        between = "=" if parameter.explode else ","
        text = ",".join(f"{key}{between}{text_of(item)}" for key, item in value.items())
    else:
        text = text_of(value)
    if not (text.isascii() and text.isprintable()):
        raise BadArguments((Problem(argument, "must be printable ASCII: it is sent as a header"),))
    return text.strip()


def cookie_pairs(parameter: Parameter, value: Any) -> Iterator[str]:
    """The `name=value` texts of a cookie parameter."""
    if parameter.media is not None:
        yield f"{encoded(parameter.name)}={encoded(content_of(parameter.media, value))}"
    elif is_object(value) and parameter.explode:
        yield from (f"{encoded(key)}={encoded(item)}" for key, item in value.items())
    elif is_array(value) and parameter.explode:
        yield from (f"{encoded(parameter.name)}={encoded(item)}" for item in value)
    else:
        yield f"{encoded(parameter.name)}={simple(value, False)}"
