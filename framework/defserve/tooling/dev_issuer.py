"""An OpenID provider for one's own machine: a person picks a user from a list, and no password is asked.

For development alone. It listens on loopback, sends people only to programs on this machine, keeps everything in
memory, and takes every client id with every secret. `OAuthProxy("oidc", issuer=…)` takes it for a real provider.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from html import escape
from importlib.util import find_spec
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from defserve.auth.oauth import OPENID_METADATA_PATH, decode_client_basic_auth, is_loopback, make_pkce_challenge
from defserve.auth.principals import is_token_principal_id
from defserve.auth.proxy.clients import RedirectRule
from defserve.auth.proxy.site_messages import (
    MAX_SITE_BODY_BYTES,
    OAuthError,
    SignInRefused,
    SiteRequest,
    SiteResponse,
    parse_request_form,
    parse_urlencoded_fields,
    require_form_field,
)
from defserve.errors import UsageError
from defserve.limits import Limits
from defserve.serve.session_opener import serve_on_loopback
from defserve.serve.sockets import Receive, Scope, Send

DEV_ISSUER_WARNING: Final = (
    "FOR DEVELOPMENT ONLY: anybody on this machine can sign in as any of these users, without a password."
)
CODE_SECONDS: Final = 60.0
TOKEN_SECONDS: Final = 3600
MAX_KEPT: Final = 1000
"""Of each kind: sign-ins that were begun, codes, and tokens. The oldest is forgotten."""
ALGORITHM: Final = "RS256"

AUTHORIZE, TOKEN, USER, KEYS = "/authorize", "/token", "/user", "/keys"

_JSON: Final = (("content-type", "application/json"), ("cache-control", "no-store"))
_PAGE_HEADERS: Final = (
    ("content-type", "text/html; charset=utf-8"),
    ("content-security-policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "same-origin"),
    ("cache-control", "no-store"),
)
_PAGE: Final = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:4rem auto;padding:0 1rem}}
button{{font:inherit;display:block;margin:.6rem 0;padding:.5rem 1.4rem}}strong{{color:#a00}}</style></head>
<body><h1>{title}</h1><p><strong>{warning}</strong></p>{body}</body></html>"""


class _Begun(NamedTuple):
    """A sign-in of a client: for whom the code, and later the tokens, are."""

    client: str
    redirect: str
    state: str
    challenge: str
    nonce: str
    user: str = ""
    until: float = 0.0


class DevIssuer:
    """Signs in `users`: e-mail addresses, or other names. `issuer` is its address without a slash at the end."""

    def __init__(self, users: Sequence[str], issuer: str = "", *, clock: Callable[[], float] = time.time) -> None:
        if lacking := [name for name in ("jwt", "cryptography") if find_spec(name) is None]:
            raise UsageError(
                f"the issuer needs {', '.join(lacking)}, which is not installed", fix='pip install "defserve[auth]"'
            )
        for user in users:
            if not is_token_principal_id(user):
                raise UsageError(f"{user!r} cannot be a user", fix="name users such as ann@example.com")
        self.users, self.issuer, self._clock = list(dict.fromkeys(users)), issuer, clock
        from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key

        # Servers keep keys by their ids: after a restart, a key of another id is fetched at once.
        self._key, self._key_id = generate_private_key(65537, 2048), secrets.token_hex(4)
        self._asked: dict[str, _Begun] = {}
        self._codes: dict[str, _Begun] = {}
        self._access: dict[str, _Begun] = {}
        self._refresh: dict[str, _Begun] = {}
        self._endpoints: dict[tuple[str, str], Callable[[SiteRequest], SiteResponse]] = {
            ("GET", OPENID_METADATA_PATH): self._describe,
            ("GET", KEYS): self._show_keys,
            ("GET", AUTHORIZE): self._ask_user,
            ("POST", AUTHORIZE): self._send_back,
            ("POST", TOKEN): self._issue_tokens,
            ("GET", USER): self._describe_user,
        }

    def answer_request(self, request: SiteRequest) -> SiteResponse:
        """The answer to a request. Pages of other sites cannot reach it by a name of their own (DNS rebinding)."""
        host = request.headers.get("host", "")
        if host != urlsplit(self.issuer).netloc:
            return _make_page(403, "Wrong address", f"<p>Open {escape(self.issuer)}.</p>")
        endpoint = self._endpoints.get((request.method, request.path))
        if endpoint is None:
            users = "".join(f"<li>{escape(user)}</li>" for user in self.users)
            return _make_page(404, "An issuer for development", f"<p>Its users:</p><ul>{users}</ul>")
        try:
            return endpoint(request)
        except SignInRefused as refusal:
            return _make_page(refusal.status, "This sign-in cannot go on", f"<p>{escape(refusal.text)}</p>")
        except OAuthError as error:
            return _make_json(error.fields, error.status)

    def _describe(self, request: SiteRequest) -> SiteResponse:
        return _make_json(
            {
                "issuer": self.issuer,
                "authorization_endpoint": self.issuer + AUTHORIZE,
                "token_endpoint": self.issuer + TOKEN,
                "userinfo_endpoint": self.issuer + USER,
                "jwks_uri": self.issuer + KEYS,
                "response_types_supported": ["code"],
                "grant_types_supported": ["authorization_code", "refresh_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": [ALGORITHM],
                "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
                "code_challenge_methods_supported": ["S256"],
                "scopes_supported": ["openid", "profile", "email", "offline_access"],
                "authorization_response_iss_parameter_supported": True,
            }
        )

    def _show_keys(self, request: SiteRequest) -> SiteResponse:
        from jwt.algorithms import RSAAlgorithm

        key: dict[str, Any] = RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        return _make_json({"keys": [{**key, "kid": self._key_id, "use": "sig", "alg": ALGORITHM}]})

    # -- the browser -------------------------------------------------------------------------------------

    def _ask_user(self, request: SiteRequest) -> SiteResponse:
        """The page on which a person picks a user. Raises SignInRefused."""
        try:
            fields = parse_urlencoded_fields(request.query)
            redirect, client = require_form_field(fields, "redirect_uri"), require_form_field(fields, "client_id")
            challenge = require_form_field(fields, "code_challenge")
        except OAuthError as error:
            raise SignInRefused(f"The request is not good: {error.description}.") from None
        if fields.get("response_type") != "code" or fields.get("code_challenge_method") != "S256":
            raise SignInRefused("The request is not good: it needs response_type=code and PKCE with S256.")
        if not _is_on_this_machine(redirect):
            raise SignInRefused(
                "This issuer sends people only to programs on this machine, and the server calls itself "
                f"{urlsplit(redirect).hostname}. Give the server a url such as http://127.0.0.1:8000/mcp."
            )
        id = secrets.token_urlsafe(24)
        _keep(self._asked, id, _Begun(client, redirect, fields.get("state", ""), challenge, fields.get("nonce", "")))
        buttons = "".join(f'<button name="user" value="{escape(user)}">{escape(user)}</button>' for user in self.users)
        form = f'<form method="post" action="{AUTHORIZE}"><input type="hidden" name="request" value="{id}">{buttons}'
        return _make_page(200, "Sign in as", f"{form}</form>")

    def _send_back(self, request: SiteRequest) -> SiteResponse:
        """Send the browser back to the server, with a code for the user who was picked. Raises SignInRefused."""
        if request.headers.get("origin", self.issuer) != self.issuer:
            raise SignInRefused("Pick a user on the page of this issuer.", 403)
        try:
            form = parse_request_form(request)
        except OAuthError as error:
            raise SignInRefused(f"The answer is not good: {error.description}.") from None
        begun = self._asked.pop(form.get("request", ""), None)
        if begun is None or form.get("user") not in self.users:
            raise SignInRefused("This sign-in is not known, or was used. Start again in your client.")
        code = secrets.token_urlsafe(24)
        _keep(self._codes, code, begun._replace(user=form["user"], until=self._clock() + CODE_SECONDS))
        back = urlencode({"code": code, "state": begun.state, "iss": self.issuer})
        to = f"{begun.redirect}{'&' if '?' in begun.redirect else '?'}{back}"
        return SiteResponse(302, b"", (("location", to), ("cache-control", "no-store")))

    # -- the server --------------------------------------------------------------------------------------

    def _issue_tokens(self, request: SiteRequest) -> SiteResponse:
        """Raises OAuthError."""
        form = parse_request_form(request)
        client = _get_client(request, form)
        match require_form_field(form, "grant_type"):
            case "authorization_code":
                begun = self._codes.pop(require_form_field(form, "code"), None)
                is_good = (
                    begun is not None
                    and begun.redirect == form.get("redirect_uri")
                    and begun.challenge == make_pkce_challenge(form.get("code_verifier", ""))
                    and self._clock() < begun.until
                )
            case "refresh_token":
                begun, is_good = self._refresh.pop(require_form_field(form, "refresh_token"), None), True
            case _:
                raise OAuthError("unsupported_grant_type", "use authorization_code or refresh_token")
        if begun is None or not is_good or begun.client != client:
            raise OAuthError("invalid_grant", "this code or token is not good, was used, or is another client's")
        access, refresh = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        _keep(self._access, access, begun._replace(until=self._clock() + TOKEN_SECONDS))
        _keep(self._refresh, refresh, begun)
        return _make_json(
            {
                "access_token": access,
                "token_type": "Bearer",
                "expires_in": TOKEN_SECONDS,
                "refresh_token": refresh,
                "id_token": self._sign_id_token(begun),
            }
        )

    def _sign_id_token(self, begun: _Begun) -> str:
        import jwt

        now = int(self._clock())
        claims = {"iss": self.issuer, "aud": begun.client, "iat": now, "exp": now + TOKEN_SECONDS}
        if begun.nonce:
            claims["nonce"] = begun.nonce
        return jwt.encode({**claims, **_make_claims(begun.user)}, self._key, ALGORITHM, headers={"kid": self._key_id})

    def _describe_user(self, request: SiteRequest) -> SiteResponse:
        """Raises OAuthError."""
        begun = self._access.get(request.headers.get("authorization", "").removeprefix("Bearer "))
        if begun is None or begun.until <= self._clock():
            return _make_json({"error": "invalid_token"}, 401)
        return _make_json(_make_claims(begun.user))


def _make_claims(user: str) -> dict[str, Any]:
    """What is said of a user: the whole name is its id. An e-mail address counts as verified."""
    email = {"email": user, "email_verified": True} if "@" in user else {}
    return {"sub": user, "name": user.partition("@")[0], "preferred_username": user, **email}


def _get_client(request: SiteRequest, form: Mapping[str, str]) -> str:
    """The id of the client that asks. Any secret will do, and none will not. Raises OAuthError."""
    shown = request.headers.get("authorization")
    try:
        id, secret = decode_client_basic_auth(shown) if shown else (form.get("client_id"), form.get("client_secret"))
    except ValueError:
        id = secret = None
    if not id or not secret:
        raise OAuthError("invalid_client", "send a client id and a client secret; any will do")
    return id


def _is_on_this_machine(uri: str) -> bool:
    # The rule refuses what a browser reads in another way than we do: after a backslash, `@` belongs to the path.
    if not RedirectRule().is_allowed_redirect(uri):
        return False
    parts = urlsplit(uri)
    return parts.scheme in ("http", "https") and is_loopback(parts.hostname or "")


def _keep(kept: dict[str, _Begun], name: str, value: _Begun) -> None:
    kept[name] = value
    if len(kept) > MAX_KEPT:
        del kept[next(iter(kept))]


def _make_page(status: int, title: str, body: str) -> SiteResponse:
    html = _PAGE.format(title=title, warning=DEV_ISSUER_WARNING, body=body)
    return SiteResponse(status, html.encode(), _PAGE_HEADERS)


def _make_json(fields: Mapping[str, Any], status: int = 200) -> SiteResponse:
    return SiteResponse(status, json.dumps(fields).encode(), _JSON)


# -- The issuer at an address of this machine.


@asynccontextmanager
async def serve_dev_issuer(users: Sequence[str], port: int = 0) -> AsyncGenerator[DevIssuer]:
    """An issuer on loopback while the block runs. Raises UsageError if it cannot listen."""
    issuer = DevIssuer(users)
    async with serve_on_loopback(_make_app(issuer), Limits(), port=port) as address:
        issuer.issuer = address.rstrip("/")
        yield issuer


def _make_app(issuer: DevIssuer) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body, is_more = b"", True
        while is_more and len(body) <= MAX_SITE_BODY_BYTES:
            part = await receive()
            body, is_more = body + part.get("body", b""), part.get("more_body", False)
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        query = scope.get("query_string", b"").decode("latin-1")
        answer = issuer.answer_request(
            SiteRequest(scope["method"], scope["path"], query, headers, body[:MAX_SITE_BODY_BYTES])
        )
        sent = [(name.encode(), value.encode("latin-1", "replace")) for name, value in answer.headers]
        sent.append((b"content-length", str(len(answer.body)).encode()))
        await send({"type": "http.response.start", "status": answer.status, "headers": sent})
        await send({"type": "http.response.body", "body": answer.body})

    return app
