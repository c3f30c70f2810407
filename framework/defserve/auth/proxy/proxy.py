"""`OAuthProxy`: an authorization server for MCP clients, in front of a vendor that they cannot register with."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final

from defserve.auth.issuers.fetching import Send, send
from defserve.auth.options import Auth
from defserve.auth.principals import Principal, checked_scopes
from defserve.auth.proxy.allowing import allows_of
from defserve.auth.proxy.clients.directory import ClientDirectory
from defserve.auth.proxy.clients.documents import ClientDocuments, FetchDocument
from defserve.auth.proxy.clients.redirects import RedirectRule
from defserve.auth.proxy.consent.asking import Consent
from defserve.auth.proxy.grants import Grants
from defserve.auth.proxy.requests import Offered
from defserve.auth.proxy.scope_rule import ScopeRule, ScopesFor
from defserve.auth.proxy.seals import Seals
from defserve.auth.proxy.signing_in import SigningIn
from defserve.auth.proxy.site import CALLBACK, CONSENT, ProxySite
from defserve.auth.proxy.tokens import ProxyTokens
from defserve.auth.proxy.vendors.login import VendorLogin
from defserve.auth.proxy.vendors.table import Vendor, vendor_of
from defserve.auth.urls import checked_url
from defserve.errors import UsageError
from defserve.stores.identity import ServerIdentity, server_store
from defserve.stores.memory import is_in_memory
from defserve.stores.store import Store

VARIABLE: Final = "DEFSERVE_SECRET"
LASTS_SECONDS: Final = 30 * 86400.0


class OAuthProxy(Auth):
    """Lets MCP clients sign users in through a vendor such as Google, GitHub, Entra, Auth0, Okta or Keycloak.

    `vendor` is a name of the table, or a `Vendor`. Register an application there, with `callback_url` as its
    redirect, and give its `client_id` and `client_secret`. `url` is the public URL of this server's endpoint. `allow`
    says who may come in: e-mail addresses, `@domains`, logins or ids, a function of the user's claims, or `"*"` for
    everybody who has an account there. It is asked at the sign-in, at every renewal and while a token is used. Every
    token gets the `scopes`. Of the `optional_scopes`, a token gets those that the client asks for and that
    `scopes_for`, a function of the user's claims, sync or async, gives the user, at the sign-in and at every renewal.
    `redirect_schemes` are further schemes of native applications that may receive a sign-in.

    Clients get tokens of this server; the vendor's stay here, sealed. With several processes, `store` is one that they
    share, and `secret` (or DEFSERVE_SECRET) the same text in each; of several secrets, the first seals.
    """

    def __init__(
        self,
        vendor: str | Vendor,
        *,
        client_id: str,
        client_secret: str,
        url: str,
        allow: str | Sequence[str] | Callable[[Mapping[str, Any]], bool],
        tenant: str = "",
        domain: str = "",
        issuer: str = "",
        scopes: Iterable[str] = (),
        optional_scopes: Iterable[str] = (),
        scopes_for: ScopesFor | None = None,
        redirect_schemes: Iterable[str] = (),
        implies: Mapping[str, Iterable[str]] | None = None,
        permissions: Mapping[str, Iterable[str]] | None = None,
        store: str | Store = "memory:",
        secret: str | Sequence[str] | None = None,
        seconds: float = LASTS_SECONDS,
        send: Send = send,
        fetch: FetchDocument | None = None,
    ) -> None:
        _check_needs(client_id, client_secret)
        known = vendor_of(vendor, {"tenant": tenant, "domain": domain, "issuer": issuer})
        self.issuer = _base(url)
        self.callback_url = self.issuer + CALLBACK
        self._seals = seals = Seals(_secrets(secret, is_shared=store != "memory:"))
        offered = Offered(url, checked_scopes(scopes), checked_scopes(optional_scopes))
        rule = ScopeRule(offered, scopes_for)
        self._store = kept = server_store(store, None, what="OAuthProxy(store=…)")
        self._is_shared = not is_in_memory(kept)
        grants = Grants(kept)
        redirects = RedirectRule(redirect_schemes)
        clients = ClientDirectory(seals, ClientDocuments(fetch, redirects), redirects)
        login = VendorLogin(known, client_id, client_secret, self.callback_url, send=send)
        allows = allows_of(allow, known)
        self._tokens = ProxyTokens(self.issuer, url, seals, grants, clients, login, allows, rule)
        signing_in = SigningIn(
            self.issuer,
            offered,
            seals=seals,
            clients=clients,
            consent=Consent(self.issuer, self.issuer + CONSENT, known.title, seals, offered.optional),
            login=login,
            grants=grants,
            tokens=self._tokens,
            allows=allows,
            rule=rule,
            seconds=seconds,
        )
        super().__init__(
            self._tokens,
            resource=url,
            authorization_servers=[self.issuer],
            scopes=offered.scopes,
            implies=implies,
            permissions=permissions,
        )
        self.site = ProxySite(self.issuer, offered, clients, signing_in, self._tokens)

    def bind_server(self, identity: ServerIdentity) -> None:
        super().bind_server(identity)
        self._store.bind_server(identity)
        self._seals.bind_server(identity)

    @property
    def kept_in_memory(self) -> str:
        return super().kept_in_memory if self._is_shared else "sign-ins (OAuthProxy(store=…, secret=…))"

    async def vendor_token(self, principal: Principal) -> str | None:
        """The vendor's own access token of a caller, for calls to the vendor in its name; None if there is none.

        Never give it to the caller: it is good for more than this server.
        """
        return await self._tokens.vendor_token(principal)


def _check_needs(client_id: str, client_secret: str) -> None:
    """Raises UsageError for what is not installed or not given."""
    if lacking := [name for name in ("jwt", "cryptography", "httpx2") if find_spec(name) is None]:
        raise UsageError(
            f"OAuthProxy needs {', '.join(lacking)}, which is not installed", fix='pip install "defserve[auth,client]"'
        )
    if not client_id or not client_secret:
        raise UsageError("OAuthProxy needs a client_id and a client_secret", fix="the vendor gives them")


def _base(url: str) -> str:
    """The issuer of a server at this URL: all but the last part of its path."""
    parts = checked_url(url, "the url")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').rpartition('/')[0]}"


def _secrets(given: str | Sequence[str] | None, *, is_shared: bool) -> list[bytes]:
    found = given or os.environ.get(VARIABLE)
    if found:
        return [text.encode() for text in ([found] if isinstance(found, str) else found)]
    if is_shared:
        raise UsageError(
            "OAuthProxy has a store that outlives this process, and no secret",
            fix=f"set {VARIABLE}, or give secret=…: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    return [secrets.token_bytes(32)]
