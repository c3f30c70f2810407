"""Asks the user, and makes sure that the answer is the user's: given on our page, in the browser that was asked."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Final, NamedTuple

from defserve.auth.proxy.clients.client import OAuthClient
from defserve.auth.proxy.clients.redirects import is_native
from defserve.auth.proxy.consent.cookies import LONGEST, ConsentCookies
from defserve.auth.proxy.consent.page import Question, consent_page
from defserve.auth.proxy.errors import OAuthError, SignInRefused
from defserve.auth.proxy.requests import AuthorizationRequest
from defserve.auth.proxy.seals import Seals
from defserve.auth.site import SiteAnswer, SiteRequest

SECONDS: Final = 600.0
REMEMBERED_SECONDS: Final = 30 * 86400.0
_STALE: Final = "This page is too old, or was opened in another browser. Start again in your client."


class ConsentDecision(NamedTuple):
    """The user's answer to a request."""

    request: AuthorizationRequest
    is_allowed: bool
    cookies: list[tuple[str, str]]


class Consent:
    """The question to the user, and its answer."""

    def __init__(self, issuer: str, action: str, vendor: str, seals: Seals, optional: Collection[str] = ()) -> None:
        self.cookies = ConsentCookies(issuer)
        self._origin = "/".join(issuer.split("/")[:3])
        self._action, self._vendor, self._seals, self._optional = action, vendor, seals, optional

    def page(self, client: OAuthClient, request: AuthorizationRequest) -> SiteAnswer:
        """The page. Its answer must come with the cookie that goes with it. Raises OAuthError."""
        id = secrets.token_urlsafe(24)
        sealed = self._seals.seal("consent", [id, request], seconds=SECONDS)
        if len(sealed) > LONGEST:
            raise OAuthError("invalid_request", "state and redirect_uri are too long together")
        cookie = self.cookies.kept(_name("consent", id), id, SECONDS, "Strict")
        may_remember = _may_remember(client, request)
        question = Question(client, request, self._vendor, sealed, may_remember, self._optional)
        return consent_page(question, self._action, [cookie])

    def decision(self, asked: SiteRequest, form: Mapping[str, str]) -> ConsentDecision:
        """What the user has decided. Raises SignInRefused if it cannot be told that the user has."""
        origin, site = asked.headers.get("origin"), asked.headers.get("sec-fetch-site")
        if origin not in (None, self._origin) or site not in (None, "same-origin"):
            raise SignInRefused("Another site has sent this answer. Start again in your client.", 403)
        found = self._seals.open("consent", form.get("request", ""))
        if found is None:
            raise SignInRefused(_STALE)
        id, request = found[0], AuthorizationRequest.opened(found[1])
        if not hmac.compare_digest(self.cookies.read(asked.headers, _name("consent", id)).encode(), id.encode()):
            raise SignInRefused(_STALE, 403)
        is_allowed = form.get("decision") == "allow"
        cookies = [self.cookies.dropped(_name("consent", id))]
        if is_allowed and form.get("remember") == "yes" and not is_native(request.redirect):
            sealed = self._seals.seal("remembered", _what(request), seconds=REMEMBERED_SECONDS)
            cookies.append(self.cookies.kept(_remembered(request), sealed, REMEMBERED_SECONDS, "Lax"))
        return ConsentDecision(request, is_allowed, cookies)

    def is_remembered(self, asked: SiteRequest, client: OAuthClient, request: AuthorizationRequest) -> bool:
        """Whether this browser's user has allowed exactly this before, and asked not to be asked again."""
        if not _may_remember(client, request):
            return False
        kept = self._seals.open("remembered", self.cookies.read(asked.headers, _remembered(request)))
        return kept == _what(request)


def _may_remember(client: OAuthClient, request: AuthorizationRequest) -> bool:
    # Any program on the user's machine may show the id of a native client (RFC 8252 §8.6), and anyone registers.
    return bool(client.document) and not is_native(request.redirect)


def _what(request: AuthorizationRequest) -> list[object]:
    return [request.client, request.redirect, sorted(request.scopes), request.resource]


def _remembered(request: AuthorizationRequest) -> str:
    return f"allowed-{sha256(request.client.encode()).hexdigest()[:16]}"


def _name(what: str, id: str) -> str:
    return f"{what}-{sha256(id.encode()).hexdigest()[:16]}"
