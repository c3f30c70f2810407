"""The headers of one request, and how they must agree with its body (2026-07-28: Streamable HTTP). No I/O."""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from defserve.base.caches import remember_short
from defserve.wire.jsonvalue import is_object

BLANKS = b" \t"

VERSION = "MCP-Protocol-Version"
METHOD = "Mcp-Method"
NAME = "Mcp-Name"

# Method → the parameter that Mcp-Name repeats.
NAMED_BY = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}

SENTINEL, SENTINEL_END = "=?base64?", "?="

# The largest integer that a double holds exactly, so that every proxy reads the same number.
SAFE_INTEGER = 2**53 - 1

_INTEGER = re.compile(r"(-?[0-9]{1,16})(?:\.0+)?")
_ZERO_WEIGHT = re.compile(r"0(?:\.0*)?")
_WEIGHT = re.compile(r"0?\.[0-9]{1,9}")


class Headers:
    """The headers of an ASGI scope, by name in any case, without the blanks around the values.

    httptools leaves trailing blanks and h11 does not. RFC 9110 §5.5 says to remove them.
    """

    __slots__ = ("_values", "_repeated")

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        pairs = list(raw)
        values = dict(pairs)
        # ASGI servers write names in lower case. Checking all at once is faster than lowering each.
        if not b"".join(values).islower():
            values = {name.lower(): value for name, value in pairs}
        self._values = values
        self._repeated = _repeated(pairs) if len(values) != len(pairs) else None

    def get(self, name: str) -> str | None:
        """The value, or None. A header that came more than once is joined by commas (RFC 9110 §5.3)."""
        key = _key(name)
        value = self._values.get(key)
        if value is None:
            return None
        if self._repeated is not None and key in self._repeated:
            return ", ".join(self._repeated[key])
        return value.strip(BLANKS).decode("latin-1")

    def all(self, name: str) -> list[str]:
        """Every value with this name, in order."""
        key = _key(name)
        if self._repeated is not None and key in self._repeated:
            return list(self._repeated[key])
        value = self._values.get(key)
        return [] if value is None else [value.strip(BLANKS).decode("latin-1")]


@lru_cache(maxsize=256)
def _key(name: str) -> bytes:
    return name.lower().encode("latin-1")


def _repeated(pairs: list[tuple[bytes, bytes]]) -> dict[bytes, list[str]]:
    values: dict[bytes, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name.lower(), []).append(value.strip(BLANKS).decode("latin-1"))
    return {name: several for name, several in values.items() if len(several) > 1}


@remember_short(256)
def prefers_events(accept: str | None) -> bool:
    """Whether an Accept header names both forms, and the stream of events before JSON."""
    names = [entry.partition(";")[0].strip() for entry in (accept or "").lower().split(",")]
    both = "text/event-stream" in names and "application/json" in names
    return both and names.index("text/event-stream") < names.index("application/json")


@remember_short(256)
def names_json(accept: str | None) -> bool:
    """Whether an Accept header asks for JSON by name. Browsers do not: they take anything, and show it to people."""
    return accept is not None and "application/json" in accept.lower() and accepts(accept, "application/json")


@remember_short(256)
def accepts(accept: str | None, media: str) -> bool:
    """Whether an Accept header allows `media` (lower case). The most specific range decides. No header allows all."""
    if accept is None:
        return True
    ranges = ("*/*", f"{media.partition('/')[0]}/*", media)
    best, accepted = -1, False
    for entry in accept.lower().split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        if name not in ranges or (rank := ranges.index(name)) < best:
            continue
        accepted = _weighs(parameters) or (rank == best and accepted)
        best = rank
    return accepted


@remember_short(256)
def wants_page(accept: str | None) -> bool:
    """Whether an Accept header asks for HTML by name, as browsers do: not for events, and not rather for JSON."""
    if accept is None or "text/html" not in (text := accept.lower()):
        return False
    weights: dict[str, float] = {}
    for entry in text.split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        weights[name] = max(weights.get(name, 0.0), _weight(parameters))
    html, events, json = (weights.get(f, 0.0) for f in ("text/html", "text/event-stream", "application/json"))
    return html > 0 and not events and html >= json


def _weighs(parameters: list[str]) -> bool:
    return _weight(parameters) > 0


def _weight(parameters: list[str]) -> float:
    """The weight of a media range. One that cannot be read counts as none given."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            value = value.strip()
            if _ZERO_WEIGHT.fullmatch(value) is not None:
                return 0.0
            return float(value) if _WEIGHT.fullmatch(value) is not None else 1.0
    return 1.0


@remember_short(256)
def is_json(content_type: str | None) -> bool:
    """Whether a Content-Type is exactly application/json, in UTF-8 if it names a charset.

    It is strict because a page of another site may send other types without asking first.
    """
    # A comma means a second Content-Type, which would be read as parameters of the first.
    if content_type is None or "," in content_type:
        return False
    media, *parameters = (part.strip(" \t") for part in content_type.lower().split(";"))
    return media == "application/json" and all(map(_is_harmless, parameters))


def _is_harmless(parameter: str) -> bool:
    name, equals, value = parameter.partition("=")
    if name == "charset":
        return value in ("utf-8", '"utf-8"')
    return not parameter or bool(name and equals)


def decode_value(value: str) -> str:
    """The text that a header value stands for: itself, unless it is wrapped as `=?base64?…?=`.

    Raises ValueError if the wrapped part is not canonical Base64 of UTF-8.
    """
    wrapped = value.startswith(SENTINEL) and value.endswith(SENTINEL_END)
    if not wrapped or len(value) < len(SENTINEL) + len(SENTINEL_END):
        return value
    payload = value[len(SENTINEL) : -len(SENTINEL_END)].encode("ascii")
    decoded = a2b_base64(payload)
    # The decoder is lenient. If a value had several spellings, a proxy could read another value than we do.
    if b2a_base64(decoded, newline=False) != payload:
        raise ValueError("not canonical Base64")
    return decoded.decode()


def routing(headers: Headers) -> tuple[str, str, str | None] | None:
    """Version, method and name, if each header comes once and can be decoded."""
    version, method, name = (headers.all(each) for each in (VERSION, METHOD, NAME))
    if len(version) != 1 or len(method) != 1 or len(name) > 1:
        return None
    try:
        return version[0], method[0], decode_value(name[0]) if name else None
    except ValueError:
        return None


def routing_mismatch(headers: Headers, method: str, params: Mapping[str, Any], version: str) -> str | None:
    """Why the headers do not match the body in version, method or name: the text of the refusal (-32020), or None.

    `version` is the body's.
    """
    key = NAMED_BY.get(method)
    for name, expected, what in ((VERSION, version, "the version in params._meta"), (METHOD, method, "the method")):
        found = headers.all(name)
        if found != [expected]:
            return _absent_or_repeated(found, name) or f"{name} header does not match {what}"
    return None if key is None else _compared(headers.all(NAME), NAME, params.get(key), f"params.{key}")


def param_mismatch(
    headers: Headers, params: Mapping[str, Any], param_headers: Mapping[tuple[str, ...], str]
) -> str | None:
    """Like `routing_mismatch`, for arguments annotated with `x-mcp-header`. `param_headers` maps paths to headers."""
    for path, name in param_headers.items():
        value: Any = params.get("arguments")
        for key in path:
            value = value.get(key) if is_object(value) else None
        if text := _compared(headers.all(name), name, value, ".".join(("params.arguments", *path))):
            return text
    return None


def _compared(found: list[str], name: str, value: Any, what: str) -> str | None:
    if value is None or not isinstance(value, str | int | float):
        # Without a header, the check of the parameters explains a value of the wrong kind.
        return f"{name} header has no counterpart, since {what} has no such value" if found else None
    if isinstance(value, int | float) and abs(value) > SAFE_INTEGER:
        return f"{name} header cannot carry {what}: it is beyond ±(2^53-1)"
    if text := _absent_or_repeated(found, name):
        return text
    try:
        decoded = decode_value(found[0])
    except ValueError:
        return f"{name} header is not valid Base64 of UTF-8"
    return None if _equal(decoded, value) else f"{name} header does not match {what}"


def _absent_or_repeated(found: list[str], name: str) -> str | None:
    if not found:
        return f"{name} header is missing"
    return f"{name} header came more than once" if len(found) > 1 else None


def _equal(header: str, value: str | int | float) -> bool:
    if isinstance(value, str):
        return header == value
    if isinstance(value, bool):
        return header == ("true" if value else "false")
    number = _INTEGER.fullmatch(header)
    return number is not None and int(number[1]) == value
