"""The endpoints and pages of the authorization server, by path, and what each answers."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from defserve.auth.oauth.well_known import ISSUER, OPENID
from defserve.auth.proxy.clients.client import GRANTS, METHODS
from defserve.auth.proxy.clients.directory import ClientDirectory
from defserve.auth.proxy.consent.page import refusal_page
from defserve.auth.proxy.errors import OAuthError, SignInRefused
from defserve.auth.proxy.requests import Offered
from defserve.auth.proxy.signing_in import SigningIn
from defserve.auth.proxy.tokens import ProxyTokens
from defserve.auth.site import SiteAnswer, SiteRequest
from defserve.errors import DefserveError

log = logging.getLogger("defserve.auth")

AUTHORIZE, CONSENT, CALLBACK = "/authorize", "/consent", "/callback"
TOKEN, REGISTER, REVOKE, KEYS = "/token", "/register", "/revoke", "/jwks"

_JSON: Final = (("content-type", "application/json"), ("cache-control", "no-store"), ("pragma", "no-cache"))
# No cookie counts at these endpoints, so a page of any site may use them as any program may.
_ANY_ORIGIN: Final = (
    ("access-control-allow-origin", "*"),
    ("access-control-allow-methods", "GET, POST, OPTIONS"),
    ("access-control-allow-headers", "authorization, content-type, mcp-protocol-version"),
)

Handler = Callable[[SiteRequest], Awaitable[SiteAnswer]]


class Endpoint(NamedTuple):
    """What is served at a path: for which method, and whether pages of any site may ask."""

    method: str
    handler: Handler
    for_any_origin: bool


class ProxySite:
    """All that is served beside the server. Paths are known with and without the path of the issuer."""

    def __init__(
        self, issuer: str, offered: Offered, clients: ClientDirectory, signing_in: SigningIn, tokens: ProxyTokens
    ) -> None:
        self._issuer, self._offered = issuer, offered
        self._clients, self._signing_in, self._tokens = clients, signing_in, tokens
        base = urlsplit(issuer).path
        endpoints = {
            AUTHORIZE: Endpoint("GET", signing_in.authorize, False),
            CONSENT: Endpoint("POST", signing_in.decide, False),
            CALLBACK: Endpoint("GET", signing_in.come_back, False),
            TOKEN: Endpoint("POST", self._token, True),
            REGISTER: Endpoint("POST", self._register, True),
            REVOKE: Endpoint("POST", self._revoke, True),
            KEYS: Endpoint("GET", self._keys, True),
            ISSUER: Endpoint("GET", self._metadata, True),
            OPENID: Endpoint("GET", self._metadata, True),
        }
        self._endpoints = {**endpoints, **{base + path: endpoint for path, endpoint in endpoints.items()}}
        self._endpoints |= {f"{path}{base}": endpoints[path] for path in (ISSUER, OPENID)}

    def serves(self, path: str) -> bool:
        return path in self._endpoints

    async def answer(self, request: SiteRequest) -> SiteAnswer:
        endpoint = self._endpoints[request.path]
        shared = _ANY_ORIGIN if endpoint.for_any_origin else ()
        if request.method == "OPTIONS" and endpoint.for_any_origin:
            return SiteAnswer(204, b"", shared)
        if request.method != endpoint.method:
            words = f"Method not allowed: this path takes {endpoint.method}".encode()
            return SiteAnswer(405, words, [("allow", endpoint.method), ("content-type", "text/plain"), *shared])
        try:
            answer = await endpoint.handler(request)
        except SignInRefused as refusal:
            return refusal_page(refusal.text, refusal.status)
        except OAuthError as error:
            more = (("www-authenticate", "Basic"),) if error.status == 401 else ()
            return SiteAnswer(error.status, _encoded(error.fields), [*_JSON, *shared, *more])
        except DefserveError as error:
            log.error("%s cannot be answered: %s", request.path, error)
            said = {"error": "temporarily_unavailable", "error_description": "try again later"}
            return SiteAnswer(503, _encoded(said), [*_JSON, *shared, ("retry-after", "2")])
        return SiteAnswer(answer.status, answer.body, [*answer.headers, *shared])

    async def _token(self, request: SiteRequest) -> SiteAnswer:
        return SiteAnswer(200, _encoded(await self._tokens.exchange(request)), _JSON)

    async def _register(self, request: SiteRequest) -> SiteAnswer:
        return SiteAnswer(201, _encoded(self._clients.register(request.body)), _JSON)

    async def _revoke(self, request: SiteRequest) -> SiteAnswer:
        await self._tokens.revoke(request)
        return SiteAnswer(200, b"{}", _JSON)

    async def _keys(self, request: SiteRequest) -> SiteAnswer:
        """Nobody but this server reads its tokens, so there are no keys."""
        return SiteAnswer(200, _encoded({"keys": []}), _JSON)

    async def _metadata(self, request: SiteRequest) -> SiteAnswer:
        found = self._described()
        if OPENID in request.path:
            # Clients find an issuer with a path here, and want what an OpenID provider has to say.
            found |= {
                "jwks_uri": self._issuer + KEYS,
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256"],
            }
        return SiteAnswer(
            200, _encoded(found), [("content-type", "application/json"), ("cache-control", "max-age=300")]
        )

    def _described(self) -> dict[str, Any]:
        """The metadata (RFC 8414 §2)."""
        return {
            "issuer": self._issuer,
            "authorization_endpoint": self._issuer + AUTHORIZE,
            "token_endpoint": self._issuer + TOKEN,
            "registration_endpoint": self._issuer + REGISTER,
            "revocation_endpoint": self._issuer + REVOKE,
            "response_types_supported": ["code"],
            "response_modes_supported": ["query"],
            "grant_types_supported": list(GRANTS),
            "token_endpoint_auth_methods_supported": list(METHODS),
            "revocation_endpoint_auth_methods_supported": list(METHODS),
            "code_challenge_methods_supported": ["S256"],
            "scopes_supported": [*self._offered.scopes, *self._offered.optional],
            "authorization_response_iss_parameter_supported": True,
            "client_id_metadata_document_supported": True,
            "protected_resources": [self._offered.resource],
        }


def _encoded(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields).encode()
