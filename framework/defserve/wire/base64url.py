"""base64url without padding (RFC 4648 §5, RFC 7515 §2), which the standard library has not. Every layer may use it."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode


def encode(raw: bytes) -> str:
    """The text of these bytes: letters, digits, `-` and `_`."""
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    """The bytes of a text that `encode` gives. Raises ValueError for any other text.

    Python's decoder skips foreign characters and ignores trailing bits, so many texts would stand for the same bytes.
    """
    raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if encode(raw) != text:
        raise ValueError("not base64url")
    return raw
