"""`OAuthProxy`: an authorization server for MCP clients: in front of a vendor that they cannot register with, for
people whom a company's identity provider vouches for, and for clients that act for themselves.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from defserve.auth.auth_options import Auth
from defserve.auth.dpop import DPoP
from defserve.auth.issuers import SendHttpRequest, send_http_request
from defserve.auth.oauth import ISSUER_METADATA_PATH, OPENID_METADATA_PATH, check_oauth_url
from defserve.auth.principals import MAX_PRINCIPAL_ID_LENGTH, Principal, is_token_principal_id, parse_scopes
from defserve.auth.proxy.assertions import (
    ID_JAG_PROFILE,
    JWT_BEARER_GRANT,
    IdentityAssertionVerifier,
    RegisteredClient,
    StatementSigner,
    TrustedIssuer,
    read_client_keys,
)
from defserve.auth.proxy.authorization_requests import RequestableAccess, ScopeRule, ScopesForUser, make_user_filter
from defserve.auth.proxy.clients import (
    CLIENT_AUTH_METHODS,
    SIGNED_CLIENT_AUTH_METHOD,
    ClientAssertionRule,
    ClientDirectory,
    ClientDocuments,
    FetchDocument,
    RedirectRule,
)
from defserve.auth.proxy.seals import TokenSealer
from defserve.auth.proxy.sign_in import ConsentQuestion, SignInFlow, make_refusal_page
from defserve.auth.proxy.site_messages import OAuthError, SignInRefused, SiteRequest, SiteResponse
from defserve.auth.proxy.tokens import ProxyTokens, UserGrants, VendorSignInRules, make_client_subject
from defserve.auth.proxy.vendors import Vendor, VendorLogin, resolve_vendor
from defserve.auth.signing_keys import ASYMMETRIC_ALGORITHMS
from defserve.auth.token_exchange import OnBehalfOf
from defserve.base.redaction import get_logger
from defserve.base.secret_references import read_secret_setting
from defserve.core.json_values import is_mapping
from defserve.errors import DefserveError, UsageError, explain_arguments
from defserve.stores.identity import ServerIdentity, make_server_store
from defserve.stores.store import Store, is_in_memory

VARIABLE: Final = "DEFSERVE_SECRET"
LASTS_SECONDS: Final = 30 * 86400.0


@explain_arguments
class OAuthProxy(Auth):
    """Lets MCP clients sign users in through a vendor such as Google, GitHub, Entra, Auth0, Okta or Keycloak.

    `vendor` is a name of the table, or a `Vendor`. Register an application there, with `callback_url` as its
    redirect, and give its `client_id` and `client_secret`. `url` is the public URL of this server's endpoint. `allow`
    says who may come in: e-mail addresses, `@domains`, logins or ids, a function of the user's claims, or `"*"` for
    everybody who has an account there. It is asked at the sign-in, at every renewal and while a token is used. Every
    token gets the `scopes`. Of the `optional_scopes`, a token gets those that the client asks for and that
    `scopes_for`, a function of the user's claims, sync or async, gives the user, at the sign-in and at every renewal.
    Either may be a mapping, which says in words what each scope means: the user reads them before saying yes.
    `redirect_schemes` are further schemes of native applications that may receive a sign-in.

    `issuers` are companies' identity providers, whose people come in without a further sign-in. `clients` are known to
    the operator; they may act for themselves. With either, there need not be a `vendor`. `dpop` and `targets` are as in
    `Auth`; to the issuers of targets, the vendor's token is shown, or a statement about the caller that this server
    signs with its `signing_key` (a private key in PEM; of several, the first signs, and all are published).

    Clients get tokens of this server; the vendor's stay here, sealed. With several processes, `store` is one that they
    share, and `secret` (or DEFSERVE_SECRET) the same text in each; of several secrets, the first seals. It,
    `client_secret` and `signing_key` may be references: `file:/run/secrets/NAME`, `command:op read op://VAULT/ITEM/FIELD`.
    """

    def __init__(
        self,
        vendor: str | Vendor | None = None,
        *,
        client_id: str = "",
        client_secret: str = "",
        url: str,
        allow: str | Sequence[str] | Callable[[Mapping[str, Any]], bool] = (),
        tenant: str = "",
        domain: str = "",
        issuer: str = "",
        scopes: Iterable[str] | Mapping[str, str] = (),
        optional_scopes: Iterable[str] | Mapping[str, str] = (),
        scopes_for: ScopesForUser | None = None,
        redirect_schemes: Iterable[str] = (),
        issuers: Sequence[TrustedIssuer] = (),
        clients: Sequence[RegisteredClient] = (),
        dpop: DPoP | None = None,
        targets: Mapping[str, OnBehalfOf] | None = None,
        signing_key: str | Sequence[str] | None = None,
        implies: Mapping[str, Iterable[str]] | None = None,
        permissions: Mapping[str, Iterable[str]] | None = None,
        store: str | Store = "memory:",
        secret: str | Sequence[str] | None = None,
        seconds: float = LASTS_SECONDS,
        send: SendHttpRequest = send_http_request,
        fetch: FetchDocument | None = None,
    ) -> None:
        if lacking := [name for name in ("jwt", "cryptography", "httpx2") if find_spec(name) is None]:
            raise UsageError(
                f"OAuthProxy needs {', '.join(lacking)}, which is not installed",
                fix='pip install "defserve[auth,client]"',
            )
        if vendor is None and not issuers and not clients:
            raise UsageError(
                "OAuthProxy lets nobody in: it has no vendor, no issuers and no clients",
                fix='name the vendor whose users sign in, such as "google", or give issuers=[…] or clients=[…]',
            )
        if vendor is not None and (not client_id or not client_secret):
            raise UsageError("OAuthProxy needs a client_id and a client_secret", fix="the vendor gives them")
        self.issuer = _base(url)
        self.callback_url = self.issuer + CALLBACK
        self._seals = seals = TokenSealer(_secrets(secret, is_shared=store != "memory:"))
        offered = RequestableAccess(url, parse_scopes(scopes), parse_scopes(optional_scopes))
        self._store = kept = make_server_store(store, None, what="OAuthProxy(store=…)")
        self._is_shared = not is_in_memory(kept)
        grants = UserGrants(kept)
        redirects = RedirectRule(redirect_schemes)
        # Some clients write a slash after an issuer without a path, or name the endpoint (RFC 7523 §3).
        audiences = (self.issuer, f"{self.issuer}/", self.issuer + TOKEN)
        directory = ClientDirectory(
            seals,
            ClientDocuments(fetch, redirects, read_client_keys),
            redirects,
            clients,
            ClientAssertionRule(audiences, grants.claim_first_use),
        )
        _check_given_scopes(offered, issuers, clients)
        _check_caller_names(self.issuer, clients)
        side = None
        if vendor is not None:
            known = resolve_vendor(vendor, {"tenant": tenant, "domain": domain, "issuer": issuer})
            login = VendorLogin(known, client_id, client_secret, self.callback_url, send=send)
            side = VendorSignInRules(login, make_user_filter(allow, known), ScopeRule(offered, scopes_for))
        signing_keys = [signing_key] if isinstance(signing_key, str) else list(signing_key or ())
        self._signer = StatementSigner(self.issuer, signing_keys) if signing_keys else None
        self.can_sign_statements = self._signer is not None
        identities = IdentityAssertionVerifier(issuers, self.issuer, url)
        self._tokens = ProxyTokens(self.issuer, offered, seals, grants, directory, side, identities, dpop)
        signing_in = side and SignInFlow(
            self.issuer,
            offered,
            seals=seals,
            clients=directory,
            consent=ConsentQuestion(
                self.issuer,
                self.issuer + CONSENT,
                side.login.vendor.title,
                seals,
                offered.optional,
                title=lambda: self.title,
                meanings=_read_meanings(scopes, optional_scopes),
            ),
            login=side.login,
            grants=grants,
            tokens=self._tokens,
            allows=side.allows,
            rule=side.rule,
            seconds=seconds,
        )
        super().__init__(
            self._tokens,
            resource=url,
            authorization_servers=[self.issuer],
            scopes=offered.scopes,
            implies=implies,
            permissions=permissions,
            dpop=dpop,
            targets=targets,
        )
        self.site = OAuthProxySite(self.issuer, offered, directory, signing_in, self._tokens, dpop, self._signer)
        self.site.is_kept_in_memory = not self._is_shared

    def bind_server(self, identity: ServerIdentity) -> None:
        super().bind_server(identity)
        self._store.bind_server(identity)
        self._seals.bind_server(identity)

    async def close(self) -> None:
        await super().close()
        await self._store.close()

    @property
    def kept_in_memory(self) -> str:
        return super().kept_in_memory if self._is_shared else "sign-ins (OAuthProxy(store=…, secret=…))"

    async def vendor_token(self, principal: Principal) -> str | None:
        """The vendor's own access token of a caller, for calls to the vendor in its name; None if there is none.

        It is renewed if it ends soon, where the vendor gave a refresh token. Raises ToolError if it has ended, and the
        vendor does not answer. Never give it to the caller: it is good for more than this server.
        """
        return await self._tokens.vendor_token(principal)

    async def find_subject_token(self, principal: Principal, token: str, target: OnBehalfOf) -> str | None:
        """A statement about the caller, for a target that wants one; or else the vendor's token, because no issuer
        knows those of this server."""
        if target.statement_audience:
            assert self._signer is not None
            return await self._signer.sign_statement(principal, target)
        return await self.vendor_token(principal)


def _read_meanings(*given: Iterable[str] | Mapping[str, str]) -> dict[str, str]:
    """What the author says of scopes that are given as a mapping."""
    meanings: dict[str, str] = {}
    for scopes in given:
        if is_mapping(scopes):
            meanings.update({scope: str(text) for scope, text in scopes.items()})
    return meanings


def _check_given_scopes(
    offered: RequestableAccess, issuers: Sequence[TrustedIssuer], clients: Sequence[RegisteredClient]
) -> None:
    """Raises UsageError for a scope that an issuer or a client may give or have, and that this server does not know."""
    known = (*offered.scopes, *offered.optional)
    for owner, scopes in (
        *((f"TrustedIssuer({each.issuer!r}, …)", each.scopes) for each in issuers),
        *((f"RegisteredClient({each.id!r}, …)", each.scopes) for each in clients),
    ):
        if unknown := [scope for scope in scopes or () if scope not in known]:
            raise UsageError(
                f"{owner} has the scope {unknown[0]!r}, which OAuthProxy does not know",
                fix="list it in OAuthProxy(scopes=…), which every token gets, or in optional_scopes=…",
            )


def _check_caller_names(issuer: str, clients: Sequence[RegisteredClient]) -> None:
    """Raises UsageError for a client that acts for itself and could not be called what its tokens say."""
    for each in clients:
        name = make_client_subject(issuer, each.id)
        if each.scopes is not None and not is_token_principal_id(name):
            raise UsageError(
                f"RegisteredClient({each.id!r}, scopes=…) would be the caller {name!r}, which is too long",
                fix=f"give it a shorter client_id: both together may have {MAX_PRINCIPAL_ID_LENGTH} characters",
            )


def _base(url: str) -> str:
    """The issuer of a server at this URL: all but the last part of its path."""
    parts = check_oauth_url(url, "the url")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').rpartition('/')[0]}"


def _secrets(given: str | Sequence[str] | None, *, is_shared: bool) -> list[bytes]:
    found = given or os.environ.get(VARIABLE)
    if found:
        texts = [found] if isinstance(found, str) else found
        return [read_secret_setting(text, "OAuthProxy(secret=…)").encode() for text in texts]
    if is_shared:
        raise UsageError(
            "OAuthProxy has a store that outlives this process, and no secret",
            fix=f"set {VARIABLE}, or give secret=…: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    return [secrets.token_bytes(32)]


# -- The endpoints and pages of the authorization server, by path, and what each answers.


log = get_logger("auth")

AUTHORIZE, CONSENT, CALLBACK = "/authorize", "/consent", "/callback"
TOKEN, REGISTER, REVOKE, KEYS = "/token", "/register", "/revoke", "/jwks"

_JSON: Final = (("content-type", "application/json"), ("cache-control", "no-store"), ("pragma", "no-cache"))

# No cookie counts at these endpoints, so a page of any site may use them as any program may.
_ANY_ORIGIN: Final = (
    ("access-control-allow-origin", "*"),
    ("access-control-allow-methods", "GET, POST, OPTIONS"),
    ("access-control-allow-headers", "authorization, content-type, dpop, mcp-protocol-version"),
    ("access-control-expose-headers", "dpop-nonce, retry-after, www-authenticate"),
)

Handler = Callable[[SiteRequest], Awaitable[SiteResponse]]


class Endpoint(NamedTuple):
    """What is served at a path: for which method, and whether pages of any site may ask."""

    method: str
    handler: Handler
    for_any_origin: bool


class OAuthProxySite:
    """All that is served beside the server. Paths are known with and without the path of the issuer."""

    is_kept_in_memory = False
    """Whether sign-ins are forgotten when this process ends."""

    def __init__(
        self,
        issuer: str,
        offered: RequestableAccess,
        clients: ClientDirectory,
        signing_in: SignInFlow | None,
        tokens: ProxyTokens,
        dpop: DPoP | None = None,
        signer: StatementSigner | None = None,
    ) -> None:
        self._issuer, self._offered, self._dpop, self._signer = issuer, offered, dpop, signer
        self._clients, self._tokens, self._has_pages = clients, tokens, signing_in is not None
        base = urlsplit(issuer).path
        endpoints = {AUTHORIZE: Endpoint("GET", _refuse_browser, False)}
        if signing_in is not None:
            endpoints = {
                AUTHORIZE: Endpoint("GET", signing_in.handle_authorize, False),
                CONSENT: Endpoint("POST", signing_in.handle_consent, False),
                CALLBACK: Endpoint("GET", signing_in.handle_callback, False),
                REGISTER: Endpoint("POST", self._register, True),
            }
        endpoints |= {
            TOKEN: Endpoint("POST", self._token, True),
            REVOKE: Endpoint("POST", self._revoke, True),
            KEYS: Endpoint("GET", self._keys, True),
            ISSUER_METADATA_PATH: Endpoint("GET", self._metadata, True),
            OPENID_METADATA_PATH: Endpoint("GET", self._metadata, True),
        }
        self._endpoints = {**endpoints, **{base + path: endpoint for path, endpoint in endpoints.items()}}
        self._endpoints |= {f"{path}{base}": endpoints[path] for path in (ISSUER_METADATA_PATH, OPENID_METADATA_PATH)}

    def is_site_path(self, path: str) -> bool:
        """Whether a path, below that of the server, is one of its pages or endpoints."""
        return path in self._endpoints

    async def answer_request(self, request: SiteRequest) -> SiteResponse:
        """Answer a request for one of them. They decide themselves who may use them, and from which origin."""
        endpoint = self._endpoints[request.path]
        shared = _ANY_ORIGIN if endpoint.for_any_origin else ()
        if request.method == "OPTIONS" and endpoint.for_any_origin:
            return SiteResponse(204, b"", shared)
        # What a page of any site may get has no effect, so HEAD does what GET does; the server leaves the body out.
        allowed = "GET, HEAD" if endpoint.for_any_origin and endpoint.method == "GET" else endpoint.method
        if request.method not in allowed.split(", "):
            words = f"Method not allowed: this path takes {allowed}".encode()
            return SiteResponse(405, words, [("allow", allowed), ("content-type", "text/plain"), *shared])
        try:
            answer = await endpoint.handler(request)
        except SignInRefused as refusal:
            return make_refusal_page(refusal.text, refusal.status)
        except OAuthError as error:
            more = (*error.headers, *((("www-authenticate", "Basic"),) if error.status == 401 else ()))
            return SiteResponse(error.status, _encode_json(error.fields), [*_JSON, *shared, *more])
        except DefserveError as error:
            log.error("%s cannot be answered: %s", request.path, error)
            said = {"error": "temporarily_unavailable", "error_description": "try again later"}
            return SiteResponse(503, _encode_json(said), [*_JSON, *shared, ("retry-after", "2")])
        return SiteResponse(answer.status, answer.body, [*answer.headers, *shared])

    async def _token(self, request: SiteRequest) -> SiteResponse:
        return SiteResponse(200, _encode_json(await self._tokens.answer_token_request(request)), _JSON)

    async def _register(self, request: SiteRequest) -> SiteResponse:
        return SiteResponse(201, _encode_json(self._clients.register(request.body)), _JSON)

    async def _revoke(self, request: SiteRequest) -> SiteResponse:
        await self._tokens.answer_revoke_request(request)
        return SiteResponse(200, b"{}", _JSON)

    async def _keys(self, request: SiteRequest) -> SiteResponse:
        """What its statements about callers are checked with. Nobody but this server reads its tokens."""
        keys = [] if self._signer is None else await self._signer.list_public_keys()
        return SiteResponse(200, _encode_json({"keys": keys}), _JSON)

    async def _metadata(self, request: SiteRequest) -> SiteResponse:
        """The metadata (RFC 8414 §2)."""
        methods, algorithms = [*CLIENT_AUTH_METHODS, SIGNED_CLIENT_AUTH_METHOD], list(ASYMMETRIC_ALGORITHMS)
        found: dict[str, Any] = {
            "issuer": self._issuer,
            # Also where nobody signs in there: some clients cannot read metadata without it.
            "authorization_endpoint": self._issuer + AUTHORIZE,
            "token_endpoint": self._issuer + TOKEN,
            "revocation_endpoint": self._issuer + REVOKE,
            "response_types_supported": ["code"] if self._has_pages else [],
            "response_modes_supported": ["query"],
            "grant_types_supported": list(self._tokens.grants),
            "token_endpoint_auth_methods_supported": methods,
            "token_endpoint_auth_signing_alg_values_supported": algorithms,
            "revocation_endpoint_auth_methods_supported": methods,
            "revocation_endpoint_auth_signing_alg_values_supported": algorithms,
            "code_challenge_methods_supported": ["S256"],
            "scopes_supported": [*self._offered.scopes, *self._offered.optional],
            "authorization_response_iss_parameter_supported": True,
            "client_id_metadata_document_supported": True,
            "protected_resources": [self._offered.resource],
        }
        if self._has_pages:
            found["registration_endpoint"] = self._issuer + REGISTER
        if JWT_BEARER_GRANT in self._tokens.grants:
            found["authorization_grant_profiles_supported"] = [ID_JAG_PROFILE]
        if self._dpop is not None:
            found["dpop_signing_alg_values_supported"] = algorithms
        if self._signer is not None:
            found["jwks_uri"] = self._issuer + KEYS
        if OPENID_METADATA_PATH in request.path:
            # Clients find an issuer with a path here, and want what an OpenID provider has to say.
            found |= {
                "jwks_uri": self._issuer + KEYS,
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256"],
            }
        return SiteResponse(
            200, _encode_json(found), [("content-type", "application/json"), ("cache-control", "max-age=300")]
        )


async def _refuse_browser(request: SiteRequest) -> SiteResponse:
    raise SignInRefused("People sign in here through the identity provider of their company, not on this page.")


def _encode_json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields).encode()
