"""What an authorization server of our own serves beside the endpoint: requests and answers, without any transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl

MAX_SITE_BODY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class SiteRequest:
    """One request for a page or an endpoint. Header names are in lower case; several values are joined by `, `."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    address: str = ""
    """Where it comes from: one text for all addresses of a machine."""
    network: str = ""
    """The same, to count what fails; empty if many callers share the address."""


@dataclass(frozen=True, slots=True)
class SiteResponse:
    """The whole answer."""

    status: int
    body: bytes = b""
    headers: Sequence[tuple[str, str]] = ()


# -- What an OAuth client is answered if its request is refused (RFC 6749 §4.1.2.1, §5.2; RFC 7591 §3.2.2).


STATUS: Final = {"invalid_client": 401, "temporarily_unavailable": 503, "server_error": 500}


class OAuthError(Exception):
    """A refusal: the error's name, and words for whoever develops the client. They never hold what was sent."""

    def __init__(self, error: str, description: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(description)
        self.error, self.description, self.headers = error, description, headers

    @property
    def status(self) -> int:
        return STATUS.get(self.error, 400)

    @property
    def fields(self) -> dict[str, str]:
        return {"error": self.error, "error_description": self.description}


class TooManyTries(OAuthError):
    """A refusal of whoever has tried too often, and may try again in so many seconds."""

    def __init__(self, description: str, seconds: float) -> None:
        wait = int(seconds) + 1
        super().__init__("temporarily_unavailable", f"{description}. Wait {wait} s", [("retry-after", str(wait))])

    @property
    def status(self) -> int:
        return 429


class SignInRefused(Exception):
    """A refusal that must not be sent to the client, because it is not certain who the client is. A page says it."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.text, self.status = text, status


# -- The fields of a query or a form. Each may come once: who checks one and who uses one must see the same.


MAX_FIELDS: Final = 64


def parse_request_form(request: SiteRequest) -> dict[str, str]:
    """Raises OAuthError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise OAuthError("invalid_request", "send application/x-www-form-urlencoded")
    try:
        return parse_urlencoded_fields(request.body.decode("utf-8"))
    except UnicodeDecodeError:
        raise OAuthError("invalid_request", "the form is not UTF-8") from None


def require_form_field(fields: Mapping[str, str], name: str) -> str:
    """Raises OAuthError if it is missing or empty."""
    if not (value := fields.get(name)):
        raise OAuthError("invalid_request", f"{name} is missing")
    return value


def parse_urlencoded_fields(text: str) -> dict[str, str]:
    """Raises OAuthError."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError:
        raise OAuthError("invalid_request", "the parameters cannot be read") from None
    found = dict(pairs)
    if len(found) != len(pairs):
        raise OAuthError("invalid_request", "a parameter comes twice")
    return found
