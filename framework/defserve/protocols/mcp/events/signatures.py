"""Signed requests of webhooks, as Standard Webhooks has them: secrets, signing, and checking what was received.

    webhook-id: evt_…            webhook-timestamp: 1767225600            webhook-signature: v1,<base64> [v1,<base64> …]

A signature is HMAC-SHA256 over `<id>.<timestamp>.<body>`. There are several while a secret is replaced. Who receives
tries each of its own secrets, refuses what is old, and takes each id once.
"""

from __future__ import annotations

import binascii
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Final

SECRET_PREFIX: Final = "whsec_"
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 24, 64
MAX_SECRET_LENGTH: Final = len(SECRET_PREFIX) + 4 * ((MAX_SECRET_BYTES + 2) // 3)

ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER = "webhook-id", "webhook-timestamp", "webhook-signature"
SIGNATURE_VERSION: Final = "v1"
MAX_SIGNATURES: Final = 16

MAX_AGE_SECONDS: Final = 300
"""A receiver refuses what is older, or as much ahead of its clock."""


class BadSignature(Exception):
    """A request that a receiver must refuse. The text says why."""


def make_webhook_secret() -> str:
    """A new secret, for who subscribes."""
    return SECRET_PREFIX + b64encode(secrets.token_bytes(32)).decode()


def parse_webhook_secret(text: object) -> bytes:
    """The key in a secret. Raises ValueError, which never repeats the secret."""
    if not isinstance(text, str) or not text.startswith(SECRET_PREFIX) or len(text) > MAX_SECRET_LENGTH:
        raise ValueError(f"a secret begins with {SECRET_PREFIX} and has at most {MAX_SECRET_LENGTH} characters")
    try:
        key = b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"a secret is {SECRET_PREFIX} and base64") from None
    if not MIN_SECRET_BYTES <= len(key) <= MAX_SECRET_BYTES:
        raise ValueError(f"a secret has {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes in base64")
    return key


def sign_webhook(keys: Iterable[bytes], id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of a request, signed with each key."""
    signatures = " ".join(_sign(key, id, str(timestamp), body) for key in keys)
    return {ID_HEADER: id, TIMESTAMP_HEADER: str(timestamp), SIGNATURE_HEADER: signatures}


def verify_webhook(keys: Iterable[bytes], headers: Mapping[str, str], body: bytes, now: float) -> str:
    """The id of a request that was received: it is genuine and fresh. Names of headers are in lower case.

    Raises BadSignature. Whether the id came before is up to the caller.
    """
    id, timestamp = headers.get(ID_HEADER, ""), headers.get(TIMESTAMP_HEADER, "")
    signatures = headers.get(SIGNATURE_HEADER, "").split(" ")
    if not id or not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 16):
        raise BadSignature("the headers of a signed request are missing")
    if abs(now - int(timestamp)) > MAX_AGE_SECONDS:
        raise BadSignature(f"it was signed more than {MAX_AGE_SECONDS} seconds ago, or ahead")
    expected = [_sign(key, id, timestamp, body).encode() for key in keys]
    given = [each.encode("utf-8", "surrogatepass") for each in signatures[:MAX_SIGNATURES]]
    if not any(hmac.compare_digest(one, other) for one in expected for other in given):
        raise BadSignature("no signature is good")
    return id


def _sign(key: bytes, id: str, timestamp: str, body: bytes) -> str:
    digest = hmac.digest(key, f"{id}.{timestamp}.".encode("utf-8", "surrogatepass") + body, "sha256")
    return f"{SIGNATURE_VERSION},{b64encode(digest).decode()}"
