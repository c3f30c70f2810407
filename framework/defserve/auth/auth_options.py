"""The value of `Server(auth=…)`: who verifies tokens, which scopes every token needs, and where clients get one."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from defserve.auth.bearer_tokens import (
    MALFORMED_TOKEN,
    TokenRefused,
    TokenVerifier,
    bind_auth_part_to_server,
    check_verifier_available,
    close_auth_part,
    extract_bearer_token,
    get_token_check_function,
    make_credential_name,
)
from defserve.auth.issuers import Issuers, IssuerUnavailable
from defserve.auth.oauth import (
    UNAVAILABLE_DENIAL,
    AuthDenial,
    BearerError,
    ProofError,
    check_oauth_url,
    get_origin,
    list_resource_metadata_paths,
    make_bearer_denial,
    make_proof_denial,
)
from defserve.auth.principals import (
    ApiKeyPrincipal,
    Principal,
    convert_permissions_to_scopes,
    parse_scope_claim,
    parse_scopes,
)
from defserve.auth.rates import RefusalLog
from defserve.core.json_values import as_list, is_array, is_object
from defserve.errors import UsageError, explain_arguments

if TYPE_CHECKING:
    from defserve.auth.api_keys import ApiKeys
    from defserve.auth.bearer_tokens import DpopProofRequest
    from defserve.auth.dpop import DPoP
    from defserve.auth.proxy.oauth_proxy import OAuthProxySite
    from defserve.auth.token_exchange import OnBehalfOf, TokenExchanger
    from defserve.stores.identity import ServerIdentity


LOOK_SECONDS: Final = 1.0


@explain_arguments
class Auth:
    """How callers prove who they are.

    `resource` is the public URL of this server's endpoint, and `authorization_servers` are the issuers of its tokens.
    They default to the audience and the issuer that the verifier checks, if these are URLs. If one of the two is
    missing, no metadata is published, and clients must get their token in another way. Every token needs the `scopes`.
    `implies` says which scopes include others: `{"files:write": ["files:read"]}`. `permissions` says what scopes allow:
    `{"files:read": ["ToolInvoke(read_file)"]}`; then a token is good for these tools only, as an API key is. With
    `dpop`, tokens that are bound to a key are accepted with their proof; without, they are refused. Callers on stdio
    need no token, unless `in_messages` is set: then each request must carry one as
    `"auth": {"type": "bearer", "token": …}`. `targets` are other APIs, which tools call in the name of their caller
    (`ctx.token_for`).
    """

    admits_strangers = False
    """Whether a caller without a token is let in. It stays a stranger. A bad token is refused all the same."""

    title = ""
    """What people call the server that this belongs to. The server says it."""

    can_sign_statements = False
    """Whether it signs statements about callers, for the targets that want them."""

    site: OAuthProxySite | None = None
    """Pages and endpoints that are served beside the server, where it issues its tokens itself."""

    @property
    def kept_in_memory(self) -> str:
        """What several processes would have to share, and is kept in the memory of this one; empty if nothing is."""
        return "used DPoP proofs (DPoP(store=…))" if self.dpop is not None and not self.dpop.is_shared else ""

    def __init__(
        self,
        verifier: TokenVerifier | Sequence[TokenVerifier],
        *,
        resource: str = "",
        authorization_servers: Iterable[str] = (),
        scopes: Iterable[str] = (),
        implies: Mapping[str, Iterable[str]] | None = None,
        permissions: Mapping[str, Iterable[str]] | None = None,
        dpop: DPoP | None = None,
        in_messages: bool = False,
        targets: Mapping[str, OnBehalfOf] | None = None,
    ) -> None:
        self.use_verifier(_check_verifier(verifier))
        self.in_messages, self.dpop, self.refusals = in_messages, dpop, RefusalLog()
        self.scopes = parse_scopes(scopes)
        audiences: tuple[str, ...] = getattr(self.verifier, "audiences", ())
        self.resource_url = resource or next(
            (text for text in audiences if _is_url(text) and not text.endswith("/")), ""
        )
        """The public URL of this server's endpoint; empty if it is not known."""
        self.resource = _resource(self.verifier, self.resource_url, tuple(authorization_servers), self.scopes, dpop)
        self._metadata_url = self.resource.metadata_url if self.resource else ""
        self._implied = _closure({name: parse_scopes(below) for name, below in (implies or {}).items()})
        self._permitted = {name: convert_permissions_to_scopes(words) for name, words in (permissions or {}).items()}
        self._looked = -LOOK_SECONDS, True
        self.exchanges: TokenExchanger | None = None
        """Gets tokens for the `targets`; None if there are none."""
        if targets:
            from defserve.auth.token_exchange import TokenExchanger, check_exchange_targets

            check_exchange_targets(targets, can_sign=self.can_sign_statements)
            self.exchanges = TokenExchanger(targets, self._check_shown_token, self.find_subject_token)
        self._completes = bool(self._implied or self._permitted or targets)

    def use_verifier(self, verifier: TokenVerifier) -> None:
        """Let this verifier check the tokens from here on."""
        self._verifier, self._check_token = verifier, get_token_check_function(verifier)

    @property
    def verifier(self) -> TokenVerifier:
        """Who checks the tokens."""
        return self._verifier

    def bind_server(self, identity: ServerIdentity) -> None:
        """Say which server this belongs to: what is stored and sealed for it is nobody else's.

        Raises UsageError if a part of it belongs to another server already.
        """
        for part in (self.verifier, self.dpop):
            bind_auth_part_to_server(part, identity)

    async def close(self) -> None:
        """Close the stores that were opened for it. Serving ends; what is asked later opens them again."""
        for part in (self.verifier, self.dpop):
            await close_auth_part(part)

    async def authenticate(self, authorization: Iterable[bytes]) -> Principal | AuthDenial | None:
        """The caller, proved by the values of a request's Authorization headers; or the refusal.

        None: a stranger, who is let in as such.
        """
        token = extract_bearer_token(authorization)
        if token is None:
            return None if self.admits_strangers else self.make_denial()
        if token is MALFORMED_TOKEN:
            return self.make_denial("invalid_request")
        try:  # as in `_holder`, without another coroutine: nearly every request comes here
            principal = await self._check_token(token)
        except IssuerUnavailable:
            return UNAVAILABLE_DENIAL
        except TokenRefused as refused:
            return self.make_denial("invalid_token", cause=refused)
        found = principal if principal.credential and not self._completes else self.complete_principal(principal, token)
        if "cnf" in found.claims or (self.dpop is not None and self.dpop.required and found.kind == "token"):
            # Whoever stole a bound token has no proof, so a token alone is not enough (RFC 9449 §7.2, RFC 8705 §3).
            return self._make_proof_denial(found) if self.dpop is not None else self._make_bound_denial(found)
        return self.check_server_scopes(found) if found.missing(self.scopes) else found

    async def authenticate_bound(
        self, authorization: Sequence[bytes], shown: DpopProofRequest
    ) -> Principal | AuthDenial | None:
        """The same for a request that may show its token as `Authorization: DPoP …`, with a proof."""
        token = extract_bearer_token(authorization, "dpop")
        if token is None or self.dpop is None:
            return await self.authenticate(authorization)
        if token is MALFORMED_TOKEN:
            return self.make_denial("invalid_request")
        found = await self._holder(token)
        if isinstance(found, AuthDenial):
            return found
        bound_to = found.claims.get("cnf")
        thumbprint = bound_to.get("jkt") if is_object(bound_to) and len(bound_to) == 1 else None
        if not isinstance(thumbprint, str):
            return self._make_bound_denial(found)
        if error := await self.dpop.check(shown, token, thumbprint):
            return self._make_proof_denial(found, error)
        return self.check_server_scopes(found)

    async def find_subject_token(self, principal: Principal, token: str, target: OnBehalfOf) -> str | None:
        """What is shown to the issuer of a target for a caller: its token. None if there is nothing to show."""
        return token

    async def _check_shown_token(self, token: str) -> Principal:
        return await self._check_token(token)

    @property
    def metadata_url(self) -> str:
        """Where this server says who issues its tokens; empty if it does not."""
        return self._metadata_url

    def find_api_keys(self) -> ApiKeys | None:
        """The API keys among the verifiers, if there are any."""
        from defserve.auth.api_keys import ApiKeys

        verifiers = self.verifier.verifiers if isinstance(self.verifier, Issuers) else (self.verifier,)
        return next((each for each in verifiers if isinstance(each, ApiKeys)), None)

    async def is_ready(self) -> bool:
        """Whether tokens can be checked, as far as that is known. Looks once a second at most: anybody may ask."""
        looked_at, is_ready = self._looked
        if monotonic() - looked_at < LOOK_SECONDS:
            return is_ready
        try:
            await check_verifier_available(self.verifier)
            is_ready = True
        except IssuerUnavailable:
            is_ready = False
        self._looked = monotonic(), is_ready
        return is_ready

    async def still_holds(self, authorization: Iterable[bytes]) -> Principal | AuthDenial | None:
        """Who the token of an earlier request proves now. That request has brought the proof, if one is needed.

        Raises IssuerUnavailable.
        """
        shown = list(authorization)
        token = extract_bearer_token(shown)
        if token is None and self.dpop is not None:
            token = extract_bearer_token(shown, "dpop")
        if not isinstance(token, str):
            return await self.authenticate(shown)
        found = await self._holder(token)
        if found is UNAVAILABLE_DENIAL:
            raise IssuerUnavailable(UNAVAILABLE_DENIAL.text)
        return self.check_server_scopes(found) if isinstance(found, Principal) else found

    async def _holder(self, token: str) -> Principal | AuthDenial:
        """Who a token belongs to."""
        try:
            return self.complete_principal(await self._check_token(token), token)
        except IssuerUnavailable:
            return UNAVAILABLE_DENIAL
        except TokenRefused as refused:
            return self.make_denial("invalid_token", cause=refused)

    def complete_principal(self, principal: Principal, token: str = "") -> Principal:
        """The principal with its credential, and with all that its scopes include."""
        if not principal.credential:
            principal = replace(principal, credential=make_credential_name(token))
        if more := [self._implied[scope] for scope in principal.scopes if scope in self._implied]:
            principal = replace(principal, scopes=principal.scopes.union(*more))
        if self.exchanges is not None and token:
            self.exchanges.remember_token(principal, token)
        return principal if not self._permitted or principal.kind != "token" else self._with_permissions(principal)

    def _with_permissions(self, principal: Principal) -> Principal:
        scopes = principal.scopes.union(*(self._permitted.get(scope, ()) for scope in principal.scopes))
        if isinstance(principal, ApiKeyPrincipal):
            return replace(principal, scopes=scopes)
        return ApiKeyPrincipal(principal.id, scopes, principal.claims, credential=principal.credential)

    def check_server_scopes(self, principal: Principal) -> Principal | AuthDenial:
        """The same principal, if it has the scopes that every caller needs."""
        if missing := principal.missing(self.scopes):
            cause = TokenRefused(f"scope: it lacks {' '.join(sorted(missing))}", {"sub": principal.id})
            return self.make_denial("insufficient_scope", cause=cause)
        return principal

    def _make_bound_denial(self, holder: Principal) -> AuthDenial:
        cause = TokenRefused("cnf: it is bound to a key in a way that this server does not check", {"sub": holder.id})
        return self.make_denial("invalid_token", cause=cause)

    def _make_proof_denial(self, holder: Principal, error: ProofError = "invalid_dpop_proof") -> AuthDenial:
        from defserve.auth.dpop import PROOF_ALGORITHMS

        assert self.dpop is not None
        nonce = self.dpop.new_nonce() if self.dpop.wants_nonce else ""
        cause = TokenRefused("proof: its DPoP proof is missing or not good", {"sub": holder.id})
        return replace(make_proof_denial(error, PROOF_ALGORITHMS, self._metadata_url, nonce), cause=cause)

    def make_denial(
        self,
        error: BearerError | None = None,
        *,
        needs: Iterable[str] = (),
        holder: Principal | None = None,
        cause: TokenRefused | None = None,
    ) -> AuthDenial:
        """The refusal for a caller whose token is missing or not sufficient.

        `needs` are the scopes of its request. What its `holder` has is asked for as well, because clients replace one
        token by the other, and would lose it.
        """
        asked = dict.fromkeys((*self.scopes, *needs, *(_own_scopes(holder) if holder is not None else ())))
        return replace(make_bearer_denial(error, asked, self._metadata_url), cause=cause)


async def list_operator_warnings(auth: Auth, *, opens_stores: bool = True) -> list[tuple[str, str]]:
    """What an operator should know before callers do, each with its fix. Stores are opened only with `opens_stores`."""
    found: list[tuple[str, str]] = []
    if auth.site is not None and auth.site.is_kept_in_memory:
        problem = (
            "sign-ins are kept in the memory of this process: when it restarts, everybody has to sign in again, and "
            "clients that remember their registration have to be added again"
        )
        secret = "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        fix = f'OAuthProxy(store="sqlite:///sign-ins.db", …), and DEFSERVE_SECRET set to the output of {secret}'
        found.append((problem, fix))
    if (keys := auth.find_api_keys()) is not None:
        from defserve.auth.api_keys import describe_missing_keys

        found += filter(None, [await describe_missing_keys(keys, opens_store=opens_stores)])
    return found


def parse_auth_option(value: Auth | TokenVerifier | Sequence[TokenVerifier]) -> Auth:
    """The options that the author gave, or options for the given verifiers. Raises UsageError for anything else."""
    return value if isinstance(value, Auth) else Auth(value)


def _own_scopes(holder: Principal) -> list[str]:
    """What a token's issuer was asked for: not what its scopes include here, nor what is between it and a client."""
    if "iss" not in holder.claims:
        return []
    said = parse_scope_claim(holder.claims.get("scope")) | parse_scope_claim(holder.claims.get("scp"))
    return sorted(said - {"offline_access"})


def _check_verifier(value: object) -> TokenVerifier:
    if is_array(value):
        return Issuers([_check_verifier(one) for one in as_list(value)])
    if isinstance(value, TokenVerifier) and not isinstance(value, type) and inspect.iscoroutinefunction(value.verify):
        return value
    raise UsageError(
        f"auth: {(value if isinstance(value, type) else type(value)).__name__} cannot verify tokens",
        fix="give OIDC(…), OAuthProxy(…), ApiKeys(…), StaticTokens(…), JWT(…), or an object with "
        "`async def verify(self, token: str) -> Principal | None`",
    )


def _resource(
    verifier: TokenVerifier, url: str, servers: tuple[str, ...], supported: tuple[str, ...], dpop: DPoP | None
) -> ProtectedResource | None:
    audiences: tuple[str, ...] = getattr(verifier, "audiences", ())
    issuers: tuple[str, ...] = getattr(verifier, "issuers", ())
    if servers and not url and not audiences:
        raise UsageError(
            "auth: authorization_servers are given without a resource", fix='resource="https://example.com/mcp"'
        )
    if dpop is not None and not url:
        raise UsageError(
            "auth: DPoP proofs name the URL of this server, which is not known",
            fix='resource="https://example.com/mcp"',
        )
    servers = servers or tuple(filter(_is_url, issuers))
    if url and not servers:
        check_oauth_url(url, "the resource")
    if not url or not servers:
        return None
    return ProtectedResource(url, servers, supported, _dpop_fields(dpop))


def _dpop_fields(dpop: DPoP | None) -> dict[str, Any]:
    if dpop is None:
        return {}
    from defserve.auth.dpop import PROOF_ALGORITHMS

    return {
        "dpop_signing_alg_values_supported": sorted(PROOF_ALGORITHMS),
        "dpop_bound_access_tokens_required": dpop.required,
    }


def _is_url(text: str) -> bool:
    try:
        check_oauth_url(text, "it")
    except UsageError:
        return False
    return True


def _closure(implies: Mapping[str, tuple[str, ...]]) -> dict[str, frozenset[str]]:
    """Each scope → all scopes that it includes, directly or not."""
    found: dict[str, frozenset[str]] = {}
    for name in implies:
        reached, waiting = {name}, [name]
        while waiting:
            fresh = set(implies.get(waiting.pop(), ())) - reached
            reached |= fresh
            waiting.extend(fresh)
        found[name] = frozenset(reached)
    return found


# -- Protected resource metadata (RFC 9728): which authorization servers issue tokens for this server.


@dataclass(frozen=True, slots=True)
class ProtectedResource:
    """This server as clients know it: the public `url` of its endpoint, and who issues tokens for it."""

    url: str
    authorization_servers: tuple[str, ...]
    scopes_supported: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of the document."""

    def __post_init__(self) -> None:
        check_oauth_url(self.url, "the resource")
        if self.url.endswith("/"):
            raise UsageError(
                f"the resource {self.url!r} ends in a slash",
                fix="leave it out: clients compare the text with the token",
            )
        object.__setattr__(self, "authorization_servers", tuple(self.authorization_servers))
        if not self.authorization_servers:
            raise UsageError("the resource has no authorization servers", fix="give the issuer URL of at least one")
        for server in self.authorization_servers:
            check_oauth_url(server, "an authorization server")
        object.__setattr__(self, "scopes_supported", parse_scopes(self.scopes_supported))
        if "offline_access" in self.scopes_supported:
            raise UsageError(
                "'offline_access' is between a client and its authorization server", fix="take it out of the scopes"
            )

    @property
    def metadata_url(self) -> str:
        """The public address of the document, for challenges."""
        return f"{self.origin}{self.paths[0]}"

    @property
    def origin(self) -> str:
        """Scheme and host of the public address."""
        return get_origin(self.url)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the document on the public host."""
        return list_resource_metadata_paths(urlsplit(self.url).path)

    def document(self) -> dict[str, Any]:
        """The document. Serve it without authentication, to any origin."""
        found: dict[str, Any] = {
            "resource": self.url,
            "authorization_servers": list(self.authorization_servers),
            "bearer_methods_supported": ["header"],
            **self.more,
        }
        if self.scopes_supported:
            found["scopes_supported"] = list(self.scopes_supported)
        return found
