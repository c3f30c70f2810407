"""The way of a browser: the client's request, the user's yes, the vendor, and back to the client with a code."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from defserve.auth.proxy.allowing import Allows
from defserve.auth.proxy.clients.directory import ClientDirectory
from defserve.auth.proxy.clients.documents import is_document_url
from defserve.auth.proxy.consent.asking import SECONDS, Consent
from defserve.auth.proxy.consent.page import leaving_page, problem_page
from defserve.auth.proxy.errors import OAuthError, SignInRefused
from defserve.auth.proxy.fields import form_of, query_of
from defserve.auth.proxy.grants import Grants, UserGrant, new_id
from defserve.auth.proxy.requests import AuthorizationRequest, Offered, checked_request
from defserve.auth.proxy.scope_rule import ScopeRule
from defserve.auth.proxy.seals import Seals
from defserve.auth.proxy.tokens import UNCONFIRMED, UNCONFIRMED_SECONDS, ProxyTokens
from defserve.auth.proxy.vendors.login import SignedIn, VendorLogin
from defserve.auth.site import SiteAnswer, SiteRequest

log = logging.getLogger("defserve.auth")

_COOKIE: Final = "signin-"
_NO_CLIENT: Final = (
    "The client that sent you here is not known to this server. Remove the server there, and add it again."
)
_NO_DOCUMENT: Final = (
    "This server cannot read what the client that sent you here says of itself, at {host}. Try again in a while. "
    "If that does not help, ask who runs this server: its log says why."
)
_NO_REDIRECT: Final = "The client that sent you here asks for an answer at an address that it did not register."
_NOT_BEGUN: Final = "This sign-in was not begun in this browser, or has taken too long. Start again in your client."


class SigningIn:
    """`/authorize`, `/consent` and `/callback`."""

    def __init__(
        self,
        issuer: str,
        offered: Offered,
        *,
        seals: Seals,
        clients: ClientDirectory,
        consent: Consent,
        login: VendorLogin,
        grants: Grants,
        tokens: ProxyTokens,
        allows: Allows,
        rule: ScopeRule,
        seconds: float,
    ) -> None:
        self._issuer, self._offered, self._seals, self._clients = issuer, offered, seals, clients
        self._consent, self._login, self._grants, self._tokens = consent, login, grants, tokens
        self._allows, self._rule, self._seconds = allows, rule, seconds

    async def authorize(self, asked: SiteRequest) -> SiteAnswer:
        """A client has sent a user here. Raises SignInRefused."""
        if asked.headers.get("sec-fetch-dest", "document") != "document":
            # Frames and pictures of other pages could only fill the browser with cookies.
            raise SignInRefused("A sign-in has to be opened as a page of its own.", 403)
        try:
            fields = query_of(asked)
            client = await self._clients.find(fields.get("client_id", ""), asked.address)
        except OAuthError as error:
            raise SignInRefused(f"The request is not good: {error.description}.") from None
        if client is None:
            id = fields.get("client_id", "")
            raise SignInRefused(_NO_DOCUMENT.format(host=urlsplit(id).hostname) if is_document_url(id) else _NO_CLIENT)
        redirect = client.redirect(fields.get("redirect_uri"))
        if redirect is None:
            raise SignInRefused(_NO_REDIRECT)
        try:
            request = checked_request(client, redirect, fields, self._offered)
            if fields.get("prompt") != "consent" and self._consent.is_remembered(asked, client, request):
                url, cookie = await self._leave(request)
                return redirected(url, [cookie])
            return self._consent.page(client, request)
        except OAuthError as error:
            state = fields.get("state")
            known = AuthorizationRequest(client.key, redirect, state, "", (), self._offered.resource)
            text = f"The client's request is not good: {error.description}."
            if error.error == "temporarily_unavailable":
                text = "The sign-in is not available at the moment."
            return problem_page(text, known.location(self._issuer, **error.fields))

    async def decide(self, asked: SiteRequest) -> SiteAnswer:
        """The user has answered. Raises SignInRefused."""
        try:
            form = form_of(asked)
        except OAuthError as error:
            raise SignInRefused(f"The answer is not good: {error.description}.") from None
        request, is_allowed, cookies = self._consent.decision(asked, form)
        if not is_allowed:
            said = {"error": "access_denied", "error_description": "the user has refused"}
            return leaving_page(request.location(self._issuer, **said), cookies)
        try:
            url, cookie = await self._leave(request)
        except OAuthError as error:
            return leaving_page(request.location(self._issuer, **error.fields), cookies)
        return leaving_page(url, [*cookies, cookie])

    async def come_back(self, asked: SiteRequest) -> SiteAnswer:
        """The vendor has sent the user back. Raises SignInRefused."""
        try:
            fields = query_of(asked)
        except OAuthError as error:
            raise SignInRefused(f"The answer is not good: {error.description}.") from None
        id = fields.get("state", "")
        name = f"{_COOKIE}{id[:16]}"
        found = self._seals.open("signin", self._consent.cookies.read(asked.headers, name))
        # The cookie shows that this browser's user has said yes. Anybody can have the address with the state.
        if found is None or not id or found[0] != id or not await self._grants.is_first("signin", id, SECONDS):
            raise SignInRefused(_NOT_BEGUN, 403)
        request, cookies = AuthorizationRequest.opened(found[1]), [self._consent.cookies.dropped(name)]
        try:
            code = await self._code(request, id, fields)
        except OAuthError as error:
            # What a client may be told here (RFC 6749 §4.1.2.1) has no `invalid_grant`.
            failed = OAuthError("access_denied", error.description) if error.error == "invalid_grant" else error
            return redirected(request.location(self._issuer, **failed.fields), cookies)
        return redirected(request.location(self._issuer, code=code), cookies)

    async def _leave(self, request: AuthorizationRequest) -> tuple[str, tuple[str, str]]:
        """The vendor's address, and the cookie that lets this browser come back. Raises OAuthError."""
        id = secrets.token_urlsafe(32)
        sealed = self._seals.seal("signin", [id, request], seconds=SECONDS)
        cookie = self._consent.cookies.kept(f"{_COOKIE}{id[:16]}", sealed, SECONDS, "Lax")
        return await self._login.address(id, self._verifier(id)), cookie

    async def _code(self, request: AuthorizationRequest, id: str, fields: Mapping[str, str]) -> str:
        await self._login.check_issuer(fields.get("iss"))
        if "error" in fields:
            raise OAuthError("access_denied", "the sign-in was refused")
        user = await self._login.signed_in(fields.get("code", ""), id, self._verifier(id))
        grant = await self._grant(request, user)
        await self._grants.begin(grant)
        return self._tokens.code(grant, request)

    async def _grant(self, request: AuthorizationRequest, user: SignedIn) -> UserGrant:
        claims, now = user.claims, time.time()
        if not self._allows(claims):
            log.warning("%s may not use this server: it is not on the list of OAuthProxy(allow=…)", claims["sub"])
            raise OAuthError("access_denied", "this account may not use this server")
        until = now + self._seconds
        if not await self._login.can_confirm(user.tokens):
            until = min(until, now + UNCONFIRMED_SECONDS)
            log.warning(UNCONFIRMED, self._login.vendor.title, UNCONFIRMED_SECONDS / 3600)
        return UserGrant(
            new_id(),
            request.client,
            claims["sub"],
            await self._rule.grant_scopes(claims, request.scopes),
            request.resource,
            claims,
            self._seals.seal("vendor", user.tokens),
            until,
            confirmed=now,
        )

    def _verifier(self, id: str) -> str:
        """The verifier that belongs to a state. It is made anew when it is needed, by any process."""
        return self._seals.mark("verifier", id)


def redirected(url: str, cookies: list[tuple[str, str]] | None = None) -> SiteAnswer:
    headers = [("location", url), ("cache-control", "no-store"), ("referrer-policy", "no-referrer"), *(cookies or ())]
    return SiteAnswer(302, b"", headers)
