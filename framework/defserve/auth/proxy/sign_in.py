"""The way of a browser: the client's request, the user's yes, the vendor, and back to the client with a code.

No other site can show the page that asks the user in a frame, press its button, or finish a sign-in that another
browser began.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from html import escape
from typing import Final, Literal
from urllib.parse import urlsplit

from defserve.auth.proxy.authorization_requests import (
    AuthorizationRequest,
    RequestableAccess,
    ScopeRule,
    UserFilter,
    parse_authorization_request,
)
from defserve.auth.proxy.clients import (
    ClientDirectory,
    OAuthClient,
    describe_redirect,
    is_document_url,
    is_native_redirect,
)
from defserve.auth.proxy.seals import TokenSealer
from defserve.auth.proxy.site_messages import (
    OAuthError,
    SignInRefused,
    SiteRequest,
    SiteResponse,
    parse_request_form,
    parse_urlencoded_fields,
)
from defserve.auth.proxy.tokens import (
    MAX_UNCONFIRMED_SECONDS,
    UNCONFIRMED_WARNING,
    ProxyTokens,
    UserGrant,
    UserGrants,
    make_random_id,
)
from defserve.auth.proxy.vendors import SignedInUser, VendorLogin
from defserve.base.html_pages import make_html_headers, render_html_page
from defserve.base.redaction import get_logger

log = get_logger("auth")

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


class SignInFlow:
    """`/authorize`, `/consent` and `/callback`."""

    def __init__(
        self,
        issuer: str,
        offered: RequestableAccess,
        *,
        seals: TokenSealer,
        clients: ClientDirectory,
        consent: ConsentQuestion,
        login: VendorLogin,
        grants: UserGrants,
        tokens: ProxyTokens,
        allows: UserFilter,
        rule: ScopeRule,
        seconds: float,
    ) -> None:
        self._issuer, self._offered, self._seals, self._clients = issuer, offered, seals, clients
        self._consent, self._login, self._grants, self._tokens = consent, login, grants, tokens
        self._allows, self._rule, self._seconds = allows, rule, seconds

    async def handle_authorize(self, asked: SiteRequest) -> SiteResponse:
        """A client has sent a user here. Raises SignInRefused."""
        if asked.headers.get("sec-fetch-dest", "document") != "document":
            # Frames and pictures of other pages could only fill the browser with cookies.
            raise SignInRefused("A sign-in has to be opened as a page of its own.", 403)
        try:
            fields = parse_urlencoded_fields(asked.query)
            client = await self._clients.find_client(fields.get("client_id", ""), asked.address)
        except OAuthError as error:
            raise SignInRefused(f"The request is not good: {error.description}.") from None
        if client is None:
            id = fields.get("client_id", "")
            raise SignInRefused(_NO_DOCUMENT.format(host=urlsplit(id).hostname) if is_document_url(id) else _NO_CLIENT)
        redirect = client.choose_redirect(fields.get("redirect_uri"))
        if redirect is None:
            raise SignInRefused(_NO_REDIRECT)
        try:
            request = parse_authorization_request(client, redirect, fields, self._offered)
            if fields.get("prompt") != "consent" and self._consent.is_remembered(asked, client, request):
                url, cookie = await self._leave(request)
                return make_redirect(url, [cookie])
            return self._consent.render_page(client, request)
        except OAuthError as error:
            known = AuthorizationRequest(client.key, redirect, fields.get("state"), "", (), self._offered.resource)
            text = f"The client's request is not good: {error.description}."
            if error.error == "temporarily_unavailable":
                text = "The sign-in is not available at the moment."
            return problem_page(text, known.location(self._issuer, **error.fields))

    async def handle_consent(self, asked: SiteRequest) -> SiteResponse:
        """The user has answered. Raises SignInRefused."""
        try:
            form = parse_request_form(asked)
        except OAuthError as error:
            raise SignInRefused(f"The answer is not good: {error.description}.") from None
        request, is_allowed, cookies = self._consent.parse_decision(asked, form)
        if not is_allowed:
            said = {"error": "access_denied", "error_description": "the user has refused"}
            return leaving_page(request.location(self._issuer, **said), cookies)
        try:
            url, cookie = await self._leave(request)
        except OAuthError as error:
            return leaving_page(request.location(self._issuer, **error.fields), cookies)
        return leaving_page(url, [*cookies, cookie])

    async def handle_callback(self, asked: SiteRequest) -> SiteResponse:
        """The vendor has sent the user back. Raises SignInRefused."""
        try:
            fields = parse_urlencoded_fields(asked.query)
        except OAuthError as error:
            raise SignInRefused(f"The answer is not good: {error.description}.") from None
        id = fields.get("state", "")
        name = f"{_COOKIE}{id[:16]}"
        found = self._seals.open("signin", self._consent.cookies.read_cookie(asked.headers, name))
        # The cookie shows that this browser's user has said yes. Anybody can have the address with the state.
        if found is None or not id or found[0] != id:
            raise SignInRefused(_NOT_BEGUN, 403)
        # What ends in nothing needs no memory: anybody can begin sign-ins, and give them up.
        if "error" not in fields and not await self._grants.claim_first_use("signin", id, SECONDS):
            raise SignInRefused(_NOT_BEGUN, 403)
        request, cookies = AuthorizationRequest.from_json(found[1]), [self._consent.cookies.make_expired_cookie(name)]
        try:
            code = await self._code(request, id, fields)
        except OAuthError as error:
            # What a client may be told here (RFC 6749 §4.1.2.1) has no `invalid_grant`.
            failed = OAuthError("access_denied", error.description) if error.error == "invalid_grant" else error
            return make_redirect(request.location(self._issuer, **failed.fields), cookies)
        return make_redirect(request.location(self._issuer, code=code), cookies)

    async def _leave(self, request: AuthorizationRequest) -> tuple[str, tuple[str, str]]:
        """The vendor's address, and the cookie that lets this browser come back. Raises OAuthError."""
        id = secrets.token_urlsafe(32)
        sealed = self._seals.seal("signin", [id, request], seconds=SECONDS)
        cookie = self._consent.cookies.make_cookie(f"{_COOKIE}{id[:16]}", sealed, SECONDS, "Lax")
        return await self._login.make_sign_in_url(id, self._verifier(id)), cookie

    async def _code(self, request: AuthorizationRequest, id: str, fields: Mapping[str, str]) -> str:
        await self._login.check_issuer(fields.get("iss"))
        if "error" in fields:
            raise OAuthError("access_denied", "the sign-in was refused")
        user = await self._login.finish_sign_in(fields.get("code", ""), id, self._verifier(id))
        grant = await self._grant(request, user)
        await self._grants.add_grant(grant)
        return self._tokens.issue_code(grant, request)

    async def _grant(self, request: AuthorizationRequest, user: SignedInUser) -> UserGrant:
        claims, now = user.claims, time.time()
        if not self._allows(claims):
            log.warning("%s may not use this server: it is not on the list of OAuthProxy(allow=…)", claims["sub"])
            raise OAuthError("access_denied", "this account may not use this server")
        until = now + self._seconds
        if not await self._login.can_reconfirm_users(user.tokens):
            until = min(until, now + MAX_UNCONFIRMED_SECONDS)
            log.warning(UNCONFIRMED_WARNING, self._login.vendor.title, MAX_UNCONFIRMED_SECONDS / 3600)
        return UserGrant(
            make_random_id(),
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
        return self._seals.compute_mac("verifier", id)


def make_redirect(url: str, cookies: list[tuple[str, str]] | None = None) -> SiteResponse:
    headers = [("location", url), ("cache-control", "no-store"), ("referrer-policy", "no-referrer"), *(cookies or ())]
    return SiteResponse(302, b"", headers)


# -- Asks the user, and makes sure that the answer is the user's: given on our page, in the browser that was asked.


SECONDS: Final = 600.0
REMEMBERED_SECONDS: Final = 30 * 86400.0
_STALE: Final = "This page is too old, or was opened in another browser. Start again in your client."


class ConsentQuestion:
    """The question to the user, and its answer."""

    def __init__(
        self,
        issuer: str,
        action: str,
        vendor: str,
        seals: TokenSealer,
        optional: Collection[str] = (),
        *,
        title: Callable[[], str] = str,
        meanings: Mapping[str, str] | None = None,
    ) -> None:
        self.cookies = ConsentCookies(issuer)
        self._origin = "/".join(issuer.split("/")[:3])
        self._action, self._vendor, self._seals, self._optional = action, vendor, seals, optional
        self._title, self._meanings = title, meanings or {}

    def render_page(self, client: OAuthClient, request: AuthorizationRequest) -> SiteResponse:
        """The page. Its answer must come with the cookie that goes with it. Raises OAuthError."""
        id = secrets.token_urlsafe(24)
        sealed = self._seals.seal("consent", [id, request], seconds=SECONDS)
        if len(sealed) > MAX_COOKIE_LENGTH:
            raise OAuthError("invalid_request", "state and redirect_uri are too long together")
        cookie = self.cookies.make_cookie(_name("consent", id), id, SECONDS, "Strict")
        question = Question(
            client,
            request,
            self._vendor,
            sealed,
            _may_remember(client, request),
            self._optional,
            self._title(),
            self._meanings,
        )
        return consent_page(question, self._action, [cookie])

    def parse_decision(
        self, asked: SiteRequest, form: Mapping[str, str]
    ) -> tuple[AuthorizationRequest, bool, list[tuple[str, str]]]:
        """The request, whether the user allows it, and the cookies of the answer.

        Raises SignInRefused if it cannot be told that the user has decided.
        """
        origin, site = asked.headers.get("origin"), asked.headers.get("sec-fetch-site")
        if origin not in (None, self._origin) or site not in (None, "same-origin"):
            raise SignInRefused("Another site has sent this answer. Start again in your client.", 403)
        found = self._seals.open("consent", form.get("request", ""))
        if found is None:
            raise SignInRefused(_STALE)
        id, request = found[0], AuthorizationRequest.from_json(found[1])
        if not hmac.compare_digest(self.cookies.read_cookie(asked.headers, _name("consent", id)).encode(), id.encode()):
            raise SignInRefused(_STALE, 403)
        is_allowed = form.get("decision") == "allow"
        cookies = [self.cookies.make_expired_cookie(_name("consent", id))]
        if is_allowed and form.get("remember") == "yes" and not is_native_redirect(request.redirect):
            sealed = self._seals.seal("remembered", _what(request), seconds=REMEMBERED_SECONDS)
            cookies.append(self.cookies.make_cookie(_make_consent_name(request), sealed, REMEMBERED_SECONDS, "Lax"))
        return request, is_allowed, cookies

    def is_remembered(self, asked: SiteRequest, client: OAuthClient, request: AuthorizationRequest) -> bool:
        """Whether this browser's user has allowed exactly this before, and asked not to be asked again."""
        cookie = self.cookies.read_cookie(asked.headers, _make_consent_name(request))
        return _may_remember(client, request) and self._seals.open("remembered", cookie) == _what(request)


def _may_remember(client: OAuthClient, request: AuthorizationRequest) -> bool:
    # Any program on the user's machine may show the id of a native client (RFC 8252 §8.6), and anyone registers.
    return bool(client.document) and not is_native_redirect(request.redirect)


def _what(request: AuthorizationRequest) -> list[object]:
    return [request.client, request.redirect, sorted(request.scopes), request.resource]


def _make_consent_name(request: AuthorizationRequest) -> str:
    return f"allowed-{sha256(request.client.encode()).hexdigest()[:16]}"


def _name(what: str, id: str) -> str:
    return f"{what}-{sha256(id.encode()).hexdigest()[:16]}"


# -- The pages that a user sees: the question, and what went wrong. They load nothing and run no script.


@dataclass(frozen=True, slots=True)
class Question:
    """What the user is asked: whether this client may sign in to this server, through this vendor.

    `optional` are the scopes that not every user has: who signs in is known only afterwards. `title` is what people
    call the server, and `meanings` what its author says of scopes.
    """

    client: OAuthClient
    request: AuthorizationRequest
    vendor: str
    sealed: str
    may_remember: bool
    optional: Collection[str] = ()
    title: str = ""
    meanings: Mapping[str, str] = field(default_factory=dict[str, str])


def consent_page(question: Question, action: str, cookies: Sequence[tuple[str, str]]) -> SiteResponse:
    """The page that asks the user. Nothing that a client says of itself can be taken for our own words."""
    client, request = question.client, question.request
    always = [scope for scope in request.scopes if scope not in question.optional]
    optional = [scope for scope in request.scopes if scope in question.optional]
    name = f"<strong><bdi>{escape(client.name)}</bdi></strong>" if client.name else "A client without a name"
    title = f"<strong>{escape(question.title)}</strong><br>" if question.title else ""
    rows = [
        ("Server", f"{title}{escape(request.resource)}"),
        ("The client calls itself", name),
        ("The client's address", escape(client.document) if client.document else "none: anyone can use any name"),
        ("It receives your access at", f"<strong>{escape(describe_redirect(request.redirect))}</strong>"),
        ("It gets", _list_scopes(always, question.meanings) or "Access to this server"),
    ]
    if optional:
        about = "Also, if your account has it"
        rows.append((about, _list_scopes(optional, question.meanings)))
    listed = "".join(f"<dt>{about}</dt><dd>{text}</dd>" for about, text in rows)
    remember = (
        '<p><label><input type="checkbox" name="remember" value="yes"> Do not ask again for this client in this '
        "browser</label></p>"
    )
    form = (
        f'<form method="post" action="{escape(action)}"><input type="hidden" name="request" value="{question.sealed}">'
        f"{remember if question.may_remember else ''}"
        '<div class="acts"><button class="yes" name="decision" value="allow">Allow</button>'
        '<button name="decision" value="refuse">Refuse</button></div></form>'
    )
    note = f'<p class="end">Next, you sign in with {escape(question.vendor)}. Allow this only if you started it.</p>'
    heading = f"Allow access to {escape(question.title) or 'this server'}?"
    return _page(200, heading, f'<dl class="facts">{listed}</dl>{form}{note}', cookies)


# A scope that every server of defserve knows → what it allows, for a person.
SCOPE_MEANINGS: Final = {
    "tools:list": "See all tools of this server",
    "metrics:read": "Read how often its tools are used",
    "admin:read": "Look into the server: tools, figures, logs",
    "admin:write": "Change how the server runs",
    "tool:invoke:*": "Use every tool",
    "tool:read:*": "See every tool",
}
# The same for a scope that names a tool.
TOOL_SCOPE_MEANINGS: Final = {"tool:invoke:": "Use the tool {}", "tool:read:": "See the tool {}"}


def _list_scopes(scopes: Sequence[str], meanings: Mapping[str, str]) -> str:
    """Scopes as a list: what each means, if that is known, and its name."""
    known = {scope: explain_scope(scope, meanings) for scope in scopes}
    rows = [
        f"<li>{escape(meaning)}<span><code>{escape(scope)}</code></span>" if meaning else f"<li>{escape(scope)}"
        for scope, meaning in known.items()
    ]
    return f"<ul>{''.join(rows)}</ul>" if rows else ""


def explain_scope(scope: str, meanings: Mapping[str, str]) -> str:
    """What a scope means: in the author's words, or ours for those that we know; empty if nobody says."""
    if said := meanings.get(scope) or SCOPE_MEANINGS.get(scope):
        return said
    found = next((prefix for prefix in TOOL_SCOPE_MEANINGS if scope.startswith(prefix)), None)
    return TOOL_SCOPE_MEANINGS[found].format(scope.removeprefix(found)) if found is not None else ""


def leaving_page(url: str, cookies: Sequence[tuple[str, str]] = ()) -> SiteResponse:
    """Sends the browser on. Not by a redirect: browsers apply `form-action` to every address that a form leads to."""
    go = f'<meta http-equiv="refresh" content="0;url={escape(url)}">'
    return _page(200, "One moment", f'<p><a href="{escape(url)}">Continue</a></p>', cookies, go)


def make_refusal_page(text: str, status: int = 400) -> SiteResponse:
    return _page(status, "This sign-in cannot go on", f"<p>{escape(text)}</p>", ())


def problem_page(text: str, url: str) -> SiteResponse:
    """Says what is wrong with a client's request, which the user can take back to the client.

    Nobody is sent there at once: anybody can register any address, and make a link to this server that leads to it.
    """
    link = f'<p><a href="{escape(url)}">Go back to {escape(describe_redirect(url))}</a></p>'
    return _page(400, "This sign-in cannot go on", f"<p>{escape(text)}</p>{link}", ())


def _page(status: int, title: str, body: str, cookies: Sequence[tuple[str, str]], head: str = "") -> SiteResponse:
    html = render_html_page(title, f"<div class=narrow><h1>{title}</h1>{body}</div>", head=head)
    # With `no-referrer`, browsers would call the origin of our own form `null`. Clients on the web open these pages in
    # a window that comes back to them and tells the one that opened it. A policy for openers would part the two.
    headers = make_html_headers(form_action="'self'", referrer="same-origin", opener="unsafe-none")
    return SiteResponse(status, html, [("content-type", "text/html; charset=utf-8"), *headers, *cookies])


# -- Cookies of the sign-in: only this server reads them, and only over https, except on this machine.


MAX_COOKIE_LENGTH: Final = 3900
_PAIR: Final = re.compile(r"([A-Za-z0-9_-]+)=([A-Za-z0-9_-]*)")


class ConsentCookies:
    """Writes and reads cookies for an issuer with this URL."""

    def __init__(self, issuer: str) -> None:
        self._is_https = issuer.startswith("https:")
        # Browsers accept this prefix only from the host itself, over https, for every path.
        self._prefix = "__Host-defserve-" if self._is_https else "defserve-"

    def make_cookie(
        self, name: str, value: str, seconds: float, same_site: Literal["Strict", "Lax"]
    ) -> tuple[str, str]:
        """The header that keeps a value in the browser."""
        secure = "; Secure" if self._is_https else ""
        text = f"{self._prefix}{name}={value}; Path=/; Max-Age={int(seconds)}; HttpOnly; SameSite={same_site}{secure}"
        return "set-cookie", text

    def make_expired_cookie(self, name: str) -> tuple[str, str]:
        return self.make_cookie(name, "", 0, "Lax")

    def read_cookie(self, headers: Mapping[str, str], name: str) -> str:
        """The value that the browser shows; empty if there is none, or more than one."""
        pairs = (_PAIR.fullmatch(part.strip()) for part in headers.get("cookie", "").split(";"))
        found = [pair[2] for pair in pairs if pair is not None and pair[1] == self._prefix + name]
        return found[0] if len(found) == 1 else ""
