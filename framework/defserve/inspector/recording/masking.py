"""Messages and headers without their secrets, for the page and for whatever is copied from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import from_json

from defserve.redaction import MASK, is_secret_name, redact_text
from defserve.wire.jsonvalue import is_array, is_object

# They have the name of a secret, and are none: they say which call a notice belongs to, or which page comes next.
PLAIN: Final = frozenset(("progressToken", "maxTokens", "tokens"))
LONGEST: Final = 4 * 1024 * 1024


def masked_message(body: bytes) -> Any:
    """A message as JSON data with its secrets masked. What is not JSON, or was cut, is a text."""
    try:
        return masked(from_json(body))
    except ValueError:
        return redact_text(body.decode(errors="replace"), limit=LONGEST, multiline=True)


def masked(value: Any) -> Any:
    """The same value; texts and numbers under a secret name are masked, and what looks like a secret in a text is."""
    if is_object(value):
        return {name: MASK if _hides(name, each) else masked(each) for name, each in value.items()}
    if is_array(value):
        return [masked(each) for each in value]
    return _text(value) if isinstance(value, str) else value


def masked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers with the values of secret ones masked, but for their last two characters where they are long."""
    return {name: _end_of(value) if is_secret_name(name) else value for name, value in headers.items()}


def _hides(name: str, value: Any) -> bool:
    # A schema may describe a field called "password". What hides is a value, not an object that describes one.
    return (
        name not in PLAIN
        and isinstance(value, str | int | float)
        and not isinstance(value, bool)
        and (is_secret_name(name))
    )


def _text(text: str) -> str:
    # Pictures and sounds come as long texts without a blank: they are not searched.
    return text if len(text) > 4096 and " " not in text[:4096] else redact_text(text, limit=LONGEST, multiline=True)


def _end_of(value: str) -> str:
    return f"{value[:4]}…{value[-2:]}" if len(value) >= 24 and " " not in value else MASK
