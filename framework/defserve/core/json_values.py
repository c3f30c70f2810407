"""JSON values: their kinds and limits, and how instants and bytes are written in them. Every layer may use it."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Literal, TypeGuard

JsonSchema = dict[str, Any]


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether this is an object as an author may write it: any mapping."""
    return isinstance(value, Mapping)


def is_array(value: Any) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, list | tuple)


def as_list(value: Any) -> list[Any]:
    """The value of a keyword that may hold one thing or a list of them, as a list."""
    return list(value) if is_array(value) else [value]


def read_required_names(schema: Mapping[str, Any]) -> frozenset[str]:
    """The names in the `required` of a schema, to be asked for each of its properties.

    Who wrote the schema may be another server: its list may hold anything, and be as long as a message. Looking for
    each of many properties in it would be a product of both lengths.
    """
    names: Any = schema.get("required")
    return frozenset(name for name in names if isinstance(name, str)) if is_array(names) else frozenset()


def find_limit_violation(value: Any, depth: int, keys: int) -> str | None:
    """Why a message may not hold this decoded value: too deep, too wide, or an infinity in it. Else None."""
    # Classes are compared: `isinstance` with a union takes four times as long, and a peer can send millions of items.
    level: list[Any] = [value] if value.__class__ is dict or value.__class__ is list else []
    for _ in range(depth):
        below: list[Any] = []
        for container in level:
            items = container
            if container.__class__ is dict:
                if len(container) > keys:
                    return f"an object has more than {keys} members"
                items = container.values()
            for item in items:
                kind = item.__class__
                if kind is dict or kind is list:
                    below.append(item)
                elif kind is float and not isfinite(item):
                    return "a number is too large"
        if not below:
            return None
        level = below
    return f"nested deeper than {depth} levels"


def is_deeper_than(value: Any, depth: int) -> bool:
    """Whether arrays and objects are nested in more levels than that, the value itself included."""
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    while level and depth:
        inside = [container.values() if is_object(container) else container for container in level]
        level = [item for items in inside for item in items if item.__class__ is dict or item.__class__ is list]
        depth -= 1
    return bool(level)


def find_infinity(value: Any) -> tuple[str | int, ...] | None:
    """The path to a number in a decoded value that JSON cannot write, as `1e400` becomes one. None if there is none."""
    if value.__class__ is float:
        return None if isfinite(value) else ()
    ahead: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while ahead:
        path, container = ahead.pop()
        listed = container if is_array(container) else ()  # the value itself may be a scalar
        members: Any = container.items() if is_object(container) else enumerate(listed)
        for key, item in members:
            kind = item.__class__
            if kind is float:
                if not isfinite(item):
                    return (*path, key)
            elif kind is dict or kind is list:
                ahead.append(((*path, key), item))
    return None


def replace_surrogates(value: Any) -> Any:
    """The value with U+FFFD for each lone surrogate, which no JSON text can hold."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if is_object(value):
        return {replace_surrogates(k): replace_surrogates(v) for k, v in value.items()}
    if is_array(value):
        return [replace_surrogates(item) for item in value]
    return value


# -- Instants in messages: ISO 8601 in UTC, with `Z` (RFC 3339).


def format_timestamp(when: datetime, timespec: Literal["seconds", "milliseconds"] | None = None) -> str:
    """An instant as it is sent. Without a `timespec`, it has milliseconds if it has a fraction of a second."""
    timespec = timespec or ("milliseconds" if when.microsecond else "seconds")
    return when.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def format_unix_timestamp(seconds: float, timespec: Literal["seconds", "milliseconds"] | None = None) -> str:
    """The same for seconds since 1970."""
    return format_timestamp(datetime.fromtimestamp(seconds, UTC), timespec)


# -- base64url without padding (RFC 4648 §5, RFC 7515 §2), which the standard library has not. Every layer may use it.


def encode_base64url(raw: bytes) -> str:
    """The text of these bytes: letters, digits, `-` and `_`."""
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode_base64url(text: str) -> bytes:
    """The bytes of a text that `encode` gives. Raises ValueError for any other text.

    Python's decoder skips foreign characters and ignores trailing bits, so many texts would stand for the same bytes.
    """
    raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if encode_base64url(raw) != text:
        raise ValueError("not base64url")
    return raw
