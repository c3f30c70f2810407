"""The fields of a query or a form. Each may come once: who checks one and who uses one must see the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

from defserve.auth.proxy.errors import OAuthError
from defserve.auth.site import SiteRequest

MOST_FIELDS: Final = 64


def query_of(request: SiteRequest) -> dict[str, str]:
    """Raises OAuthError."""
    return _fields(request.query)


def form_of(request: SiteRequest) -> dict[str, str]:
    """Raises OAuthError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise OAuthError("invalid_request", "send application/x-www-form-urlencoded")
    try:
        return _fields(request.body.decode("utf-8"))
    except UnicodeDecodeError:
        raise OAuthError("invalid_request", "the form is not UTF-8") from None


def needed(fields: Mapping[str, str], name: str) -> str:
    """Raises OAuthError if it is missing or empty."""
    if not (value := fields.get(name)):
        raise OAuthError("invalid_request", f"{name} is missing")
    return value


def _fields(text: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except ValueError:
        raise OAuthError("invalid_request", "the parameters cannot be read") from None
    found = dict(pairs)
    if len(found) != len(pairs):
        raise OAuthError("invalid_request", "a parameter comes twice")
    return found
