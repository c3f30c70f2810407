"""Signed statements at the token endpoint: who a person is (ID-JAG), and who a client is (`private_key_jwt`). Also
those that this server signs about its callers, for issuers that trust it.

How it works: a company's identity provider signs an identity assertion for a person, one client and one authorization
server (RFC 7523, the Identity Assertion Authorization Grant). Here it is checked, claim by claim, and becomes a token
of ours. Clients that the operator has registered may prove who they are by a signature too (RFC 7523 §3).

A statement is never logged, nor repeated to who sent it: only the name of the check that it fails is.
"""

from __future__ import annotations

import hmac
import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from re import fullmatch
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from defserve.auth.bearer_tokens import TokenRefused
from defserve.auth.dpop import compute_jwk_thumbprint
from defserve.auth.issuers import (
    ISSUER_TIMEOUT_SECONDS,
    MAX_ISSUER_RESPONSE_BYTES,
    FetchUrl,
    list_metadata_urls_openid_first,
    read_claimed_issuer,
    read_claimed_tenant,
)
from defserve.auth.oauth import check_oauth_url
from defserve.auth.principals import Principal, is_token_principal_id, parse_scope_claim, parse_scopes
from defserve.auth.proxy.authorization_requests import UserFilter, is_same_resource, make_fail_closed_filter
from defserve.auth.proxy.clients import OAuthClient, is_document_url
from defserve.auth.proxy.site_messages import OAuthError
from defserve.auth.signed_tokens import MAX_KID_LENGTH, fetch_published_keys, is_numeric_date
from defserve.auth.signing_keys import (
    ASYMMETRIC_ALGORITHMS,
    FixedKey,
    KeySet,
    check_algorithms,
    find_fitting_algorithms,
    load_fixed_key,
    parse_key_set,
)
from defserve.base.redaction import get_logger
from defserve.base.secret_references import SecretSetting, is_secret_reference
from defserve.core.json_values import as_list, is_array, is_object
from defserve.errors import UsageError, explain_arguments

if TYPE_CHECKING:
    from defserve.auth.token_exchange import OnBehalfOf

log = get_logger("auth")

JWT_BEARER_GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ID_JAG_PROFILE: Final = "urn:ietf:params:oauth:grant-profile:id-jag"
ID_JAG_TYPE: Final = "oauth-id-jag+jwt"
_CLIENT_TYPES: Final = ("jwt", "client-authentication+jwt")

MAX_ASSERTION_LENGTH: Final = 16 * 1024
MAX_ASSERTION_SECONDS: Final = 3600.0
"""How far ahead a statement may expire. Until then, its id is remembered."""
MAX_TOKEN_SECONDS: Final = 3600.0
AHEAD_SECONDS: Final = 30.0
"""How far ahead the clock of whoever signs may be."""

# Stands for the place of keys that are not fetched.
_INLINE_URL: Final = "https://inline.invalid/jwks"

_NEEDED: Final = ("iss", "sub", "aud", "client_id", "jti", "exp", "iat")
# What a statement says to us and not of the person; and what limits the person in a way that is not known here.
_OF_THE_GRANT: Final = frozenset((*_NEEDED, "nbf", "resource", "scope", "cnf", "grant")) - {"sub"}
_NOT_KNOWN_HERE: Final = ("authorization_details", "aud_tenant")


@explain_arguments
class TrustedIssuer:
    """A company's identity provider, whose people need no other sign-in: it vouches for them by an ID-JAG.

    issuer          exactly as the provider writes it into `iss`; its metadata says where its keys are
    jwks_url        where its keys are, if it publishes no metadata
    scopes          the scopes that it may give its people; by default those that every token gets
    allow           a function of the claims that says whether a person may come in; by default everybody may
    tenant          the only tenant of a provider that has several under one issuer
    algorithms      what it signs with
    reuse           take an assertion more than once, until it expires
    public_clients  take assertions from clients that have neither a secret nor a key
    seconds         how long a token lasts: there is no refresh token, so a new one needs a new assertion
    fetch           gets the bytes at a URL; by default from the public internet, and from the hosts that are named here

    Two people of two issuers never meet: a caller is called `issuer|subject`.
    """

    def __init__(
        self,
        issuer: str,
        *,
        jwks_url: str = "",
        scopes: Iterable[str] | None = None,
        allow: UserFilter | None = None,
        tenant: str = "",
        algorithms: str | Iterable[str] = tuple(ASYMMETRIC_ALGORITHMS),
        reuse: bool = False,
        public_clients: bool = False,
        seconds: float = MAX_TOKEN_SECONDS,
        fetch: FetchUrl | None = None,
    ) -> None:
        check_oauth_url(issuer, "the issuer of TrustedIssuer")
        if not 60 <= seconds <= MAX_TOKEN_SECONDS:
            raise UsageError(f"TrustedIssuer(seconds={seconds!r}) is out of range", fix="give 60 to 3600 seconds")
        if tenant and fullmatch(r"[A-Za-z0-9._-]{1,128}", tenant) is None:
            raise UsageError(f"TrustedIssuer(tenant={tenant[:80]!r}) is not a tenant", fix="use letters, digits, . _ -")
        self.issuer, self.tenant, self.seconds = issuer, tenant, seconds
        self.scopes = None if scopes is None else parse_scopes(scopes)
        self.reuse, self.public_clients = reuse, public_clients
        self.allows: UserFilter = (
            (lambda claims: True) if allow is None else make_fail_closed_filter(allow, "TrustedIssuer")
        )
        self.algorithms = _check_public_key_algorithms(algorithms, "TrustedIssuer")
        self.keys = _make_issuer_keys(issuer, jwks_url, self.algorithms, fetch)

    @property
    def name(self) -> str:
        """What the names of its people begin with. A URL of an issuer has no `#`."""
        return f"{self.issuer}#{self.tenant}" if self.tenant else self.issuer


class IdentityAssertion(NamedTuple):
    """What a good ID-JAG says. `id` names it, so that it is taken once; `scopes` is None if it names none."""

    trusted: TrustedIssuer
    principal: str
    claims: Mapping[str, Any]
    scopes: frozenset[str] | None
    bound_to: str
    id: str
    seconds: float


class IdentityAssertionVerifier:
    """Checks the ID-JAGs of all trusted issuers. `audience` is our own issuer, and `resource` our server."""

    def __init__(
        self,
        trusted: Sequence[TrustedIssuer],
        audience: str,
        resource: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._audience, self._resource, self._clock = audience, resource, clock
        self._by_name = {each.name: each for each in trusted}
        if len(self._by_name) != len(trusted):
            raise UsageError("OAuthProxy(issuers=…) names an issuer twice", fix="keep one of them")
        if any(each.issuer == audience for each in trusted):
            raise UsageError(
                f"OAuthProxy(issuers=…) names {audience}, which is this server itself",
                fix="name the identity provider of the company",
            )

    @property
    def has_issuers(self) -> bool:
        return bool(self._by_name)

    def find_trusted_issuer(self, name: str) -> TrustedIssuer | None:
        """The issuer whose people have names that begin so, if it is still trusted."""
        return self._by_name.get(name)

    def has_trusted_issuer_prefix(self, subject: str) -> bool:
        """Whether somebody else's user has a name that only a person of these issuers may have."""
        return any(subject.startswith(f"{name}|") for name in self._by_name)

    async def check_assertion(self, assertion: str, client: OAuthClient) -> IdentityAssertion:
        """What an assertion says that this client shows. Raises OAuthError: `invalid_grant` if anything is wrong."""
        try:
            issuer = read_claimed_issuer(assertion) if len(assertion) <= MAX_ASSERTION_LENGTH else None
            candidates = [each for each in self._by_name.values() if each.issuer == issuer]
            if not candidates:
                raise TokenRefused("iss: no trusted issuer has signed it")
            # Each tenant may have keys of its own, which must not speak for the people of another.
            tenant = read_claimed_tenant(assertion)
            claimed = next((each for each in candidates if each.tenant == tenant), candidates[0])
            claims = await verify_statement(
                assertion, claimed.keys, claimed.algorithms, (ID_JAG_TYPE,), clock=self._clock
            )
            return self._read_claims(claims, candidates, client)
        except TokenRefused as refused:
            log.warning("an identity assertion for the client %s is refused: %s", client.key, refused.reason)
            check = refused.reason.partition(":")[0]
            raise OAuthError("invalid_grant", f"this assertion is not good here: {check}") from None

    def _read_claims(
        self, claims: Mapping[str, Any], candidates: Sequence[TrustedIssuer], client: OAuthClient
    ) -> IdentityAssertion:
        if missing := [name for name in _NEEDED if not claims.get(name)]:
            raise TokenRefused(f"{missing[0]}: it has none")
        trusted = next((each for each in candidates if claims.get("tenant", "") == each.tenant), None)
        if trusted is None or claims["iss"] != trusted.issuer:
            raise TokenRefused("tenant: no trusted issuer has this tenant")
        _check_single_audience(claims["aud"], (self._audience,))
        if not isinstance(claims["client_id"], str) or not _is_same_text(claims["client_id"], client.id):
            raise TokenRefused("client_id: it was made for another client")
        if client.method == "none" and not trusted.public_clients:
            raise TokenRefused("client: it has neither a secret nor a key, and TrustedIssuer(public_clients=…) is off")
        resources = as_list(claims.get("resource", self._resource))
        if not any(isinstance(each, str) and is_same_resource(each, self._resource) for each in resources):
            raise TokenRefused("resource: it is for other servers")
        if limiting := [name for name in _NOT_KNOWN_HERE if name in claims]:
            raise TokenRefused(f"{limiting[0]}: it limits the person in a way that is not known here")
        name = f"{trusted.name}|{claims['sub']}"
        if not isinstance(claims["sub"], str) or not is_token_principal_id(name):
            raise TokenRefused("sub: with its issuer, it cannot be the name of a caller")
        said = {key: value for key, value in claims.items() if key not in _OF_THE_GRANT}
        person = {**said, "identity_provider": trusted.issuer}
        if not trusted.allows(person):
            raise TokenRefused("user: TrustedIssuer(allow=…) does not let this person in")
        return IdentityAssertion(
            trusted,
            name,
            person,
            _read_scopes(claims),
            _read_bound_key(claims),
            _digest("id-jag", trusted.name, claims["jti"]),
            claims["exp"] - self._clock() + AHEAD_SECONDS,
        )


def _read_scopes(claims: Mapping[str, Any]) -> frozenset[str] | None:
    if "scope" not in claims:
        return None
    if not isinstance(claims["scope"], str):
        raise TokenRefused("scope: it is not a text")
    return parse_scope_claim(claims["scope"])


def _read_bound_key(claims: Mapping[str, Any]) -> str:
    """The thumbprint of the key that the token must be bound to (RFC 7800, RFC 9449 §6); empty if there is none."""
    if "cnf" not in claims:
        return ""
    bound = claims["cnf"]
    thumbprint = bound.get("jkt") if is_object(bound) and len(bound) == 1 else None
    if not isinstance(thumbprint, str) or not thumbprint:
        raise TokenRefused("cnf: it is bound to a key in a way that is not known here")
    return thumbprint


# -- Clients that the operator has registered.


@explain_arguments
class RegisteredClient:
    """A client that the operator knows: an agent, a job, or an application of a company.

    client_id   what it calls itself
    secret      its secret, or several while one replaces the other; each may be a reference (`file:…`, `command:…`)
    key         its public key in PEM, if it signs instead (`private_key_jwt`)
    jwks_url    where it publishes its keys, if it signs and changes them
    scopes      the scopes that it may have when it acts for itself (client credentials); None: it may not do that
    name        what people call it
    algorithms  what it signs with
    fetch       as for `TrustedIssuer`
    """

    def __init__(
        self,
        client_id: str,
        *,
        secret: str | Sequence[str] | None = None,
        key: str | bytes | None = None,
        jwks_url: str = "",
        scopes: Iterable[str] | None = None,
        name: str = "",
        algorithms: str | Iterable[str] = tuple(ASYMMETRIC_ALGORITHMS),
        fetch: FetchUrl | None = None,
    ) -> None:
        if client_id.startswith("https://") or len(client_id) > 200 or not is_token_principal_id(client_id):
            raise UsageError(
                f"RegisteredClient({client_id[:80]!r}): a client cannot be called that",
                fix="use at most 200 printable characters, and no URL: that is for clients that describe themselves",
            )
        if sum(map(bool, (secret, key, jwks_url))) != 1:
            raise UsageError(
                f"RegisteredClient({client_id!r}) needs one way to prove who it is", fix="give secret, key or jwks_url"
            )
        self.id, self.name = client_id, name
        self.scopes = None if scopes is None else parse_scopes(scopes)
        known = [] if secret is None else [secret] if isinstance(secret, str) else list(secret)
        if not all(known):
            raise UsageError(
                f"RegisteredClient({client_id!r}, secret=…): one of the secrets is empty, which anybody knows",
                fix="leave it out, or give the secret",
            )
        self._secrets = [SecretSetting(each, f"RegisteredClient({client_id!r}, secret=…)") for each in known]
        allowed = _check_public_key_algorithms(algorithms, "RegisteredClient")
        self.keys: ClientKeys | None = None
        if jwks_url:
            self.keys = ClientKeys(KeySet(jwks_url, allowed, fetch=fetch or make_guarded_fetch(jwks_url)), allowed)
        elif key is not None:
            try:
                self.keys = ClientKeys(FixedKey(load_fixed_key(key, allowed)), allowed)
            except UsageError as error:
                raise UsageError(error.problem.replace("JWT(", "RegisteredClient("), fix=error.fix) from None

    def __repr__(self) -> str:
        return f"RegisteredClient({self.id!r})"

    async def is_secret(self, shown: str) -> bool:
        """Whether this is its secret. The time that it takes does not show how close a guess came.

        Raises UsageError if the secret cannot be read from where it is.
        """
        matches = [_is_same_text(await secret.load_secret(), shown) for secret in self._secrets]
        return any(matches)

    def to_client(self) -> OAuthClient:
        """The client, as the token endpoint knows it."""
        method = "client_secret_basic" if self.keys is None else "private_key_jwt"
        return OAuthClient(self.id, self.name, (), method, keys=self.keys, own_scopes=self.scopes)


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """What a client's signatures are checked with."""

    keys: KeySet | FixedKey = field(repr=False)
    algorithms: frozenset[str] = frozenset(ASYMMETRIC_ALGORITHMS)

    async def check_client(self, assertion: str, client_id: str, audiences: Sequence[str]) -> tuple[str, float]:
        """The id of a good assertion of this client, and for how long to remember it. Raises TokenRefused."""
        claims = await verify_statement(assertion, self.keys, self.algorithms, _CLIENT_TYPES, needs_kid=False)
        if missing := [name for name in ("iss", "sub", "aud", "exp", "jti") if not claims.get(name)]:
            raise TokenRefused(f"{missing[0]}: it has none")
        if claims["iss"] != client_id or claims["sub"] != client_id:
            raise TokenRefused("sub: iss and sub must both be the id of the client")
        _check_single_audience(claims["aud"], audiences)
        return _digest("client", client_id, claims["jti"]), claims["exp"] - time.time() + AHEAD_SECONDS


def read_client_keys(fields: Mapping[str, Any], fetch: FetchUrl) -> ClientKeys:
    """The keys of a client that describes itself (CIMD): in its document, or at the URL that it names.

    Raises ValueError if there are none.
    """
    allowed, url = frozenset(ASYMMETRIC_ALGORITHMS), str(fields.get("jwks_uri"))
    if "jwks" in fields:
        inline = json.dumps(fields["jwks"]).encode()
        parse_key_set(inline, allowed)

        async def read_inline(_: str) -> bytes:
            return inline

        return ClientKeys(KeySet(_INLINE_URL, allowed, fetch=read_inline), allowed)
    if not is_document_url(url):
        raise ValueError("a client that signs needs jwks, or a jwks_uri that is https")
    return ClientKeys(KeySet(url, allowed, fetch=fetch), allowed)


# -- Statements of our own: who a caller is, for an issuer that trusts this server.


STATEMENT_SECONDS: Final = 120.0
"""How long one is good. It is made for one request."""
_STATEMENT_TYPES: Final = {"rfc7523": "authorization-grant+jwt"}
"""Form of a target → the type of the statement that it shows; that of others is `JWT`."""


class StatementSigner:
    """Signs statements about callers of one authorization server (RFC 7523 §3). `keys` are PEM, or references.

    The first key signs. All are published, so that one can take the place of another.
    """

    def __init__(self, issuer: str, keys: Sequence[str]) -> None:
        self._issuer = issuer
        self._keys = [SecretSetting(key, "OAuthProxy(signing_key=…)") for key in keys]
        self._loaded: dict[str, _SigningKey] = {}
        for key in keys:
            if not is_secret_reference(key):
                self._parse_key(key)

    async def sign_statement(self, principal: Principal, target: OnBehalfOf) -> str:
        """A statement about a caller that was verified just now, for the issuer of a target. Raises UsageError."""
        import jwt

        key = self._parse_key(await self._keys[0].load_secret())
        now = int(time.time())
        claims: dict[str, Any] = {
            "iss": self._issuer,
            "sub": principal.id,
            "aud": target.statement_audience,
            "client_id": target.client_id,
            "jti": secrets.token_urlsafe(24),
            "iat": now,
            "exp": int(min(now + STATEMENT_SECONDS, principal.claims.get("exp", now + STATEMENT_SECONDS))),
        }
        provider, subject = principal.claims.get("identity_provider"), principal.claims.get("sub")
        if principal.id == f"{provider}|{subject}":
            # Whom the company's provider means by it (RFC 9493 §3.2.4). A tenant has no place there.
            claims["sub_id"] = {"format": "iss_sub", "iss": provider, "sub": subject}
        head = {"kid": key.public["kid"], "typ": _STATEMENT_TYPES.get(target.form, "JWT")}
        return jwt.encode(claims, key.private, key.public["alg"], head)

    async def list_public_keys(self) -> list[Mapping[str, str]]:
        """What the signatures are checked with, as members of a key set (RFC 7517). Raises UsageError."""
        return [self._parse_key(await key.load_secret()).public for key in self._keys]

    def _parse_key(self, pem: str) -> _SigningKey:
        found = self._loaded.get(pem)
        if found is None:
            if len(self._loaded) > len(self._keys):
                self._loaded.clear()  # keys that were replaced
            found = self._loaded[pem] = _load_signing_key(pem)
        return found


class _SigningKey(NamedTuple):
    """A private key, and its public half as a JWK with `kid`, `alg` and `use`."""

    private: Any
    public: Mapping[str, str]


def _load_signing_key(pem: str) -> _SigningKey:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from jwt.algorithms import get_default_algorithms

    try:
        private: Any = load_pem_private_key(pem.encode(), None)
        public = private.public_key()
    except Exception as error:
        # Not the text of the error: it may quote the key.
        raise UsageError(
            f"OAuthProxy(signing_key=…) is not a private key in PEM ({type(error).__name__})",
            fix="make one: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out signing.pem",
        ) from None
    fits = find_fitting_algorithms(public)
    algorithm = next((name for name in ASYMMETRIC_ALGORITHMS if name in fits), None)
    if algorithm is None:
        raise UsageError(
            "OAuthProxy(signing_key=…) is of a kind that is not used here, or too short",
            fix="use P-256, P-384, P-521, Ed25519, or RSA of 2048 bits or more",
        )
    jwk: dict[str, Any] = get_default_algorithms()[algorithm].to_jwk(public, as_dict=True)
    plain = {name: str(value) for name, value in jwk.items() if name != "key_ops"}
    return _SigningKey(private, {**plain, "kid": compute_jwk_thumbprint(plain), "alg": algorithm, "use": "sig"})


# -- What both kinds of statement have in common: a header, a signature, dates, an id.


async def verify_statement(
    statement: str,
    keys: KeySet | FixedKey,
    algorithms: frozenset[str],
    types: Sequence[str],
    *,
    needs_kid: bool = True,
    clock: Callable[[], float] = time.time,
) -> dict[str, Any]:
    """The claims of a statement whose header, signature, dates and id are good. Raises TokenRefused.

    Raises OAuthError if the keys of whoever signed it cannot be had now.
    """
    import jwt

    if len(statement) > MAX_ASSERTION_LENGTH:
        raise TokenRefused("format: it is too long")
    try:
        header: dict[str, Any] = jwt.get_unverified_header(statement)
    except Exception as error:
        # A stranger's bytes can make the library raise anything.
        raise TokenRefused(f"format: it cannot be read ({type(error).__name__})") from None
    algorithm, kid, kind = header.get("alg"), header.get("kid"), str(header.get("typ", "JWT")).lower()
    if kind.removeprefix("application/") not in types:
        raise TokenRefused(f"typ: it is not {types[0]}")
    if not isinstance(algorithm, str) or algorithm not in algorithms:
        raise TokenRefused("alg: it is signed in a way that is not allowed")
    if "crit" in header:
        raise TokenRefused("crit: it has extensions that must be understood, and none is")
    if not isinstance(kid, str | None) or len(kid or "") > MAX_KID_LENGTH or (needs_kid and not kid):
        raise TokenRefused("kid: it does not say which key signed it")
    key = await keys.find_key(kid, algorithm)
    if key is None and isinstance(keys, KeySet) and not keys.has_keys:
        raise OAuthError("temporarily_unavailable", "the keys of whoever signed this cannot be read now; try again")
    if key is None:
        raise TokenRefused("kid: there is no such key for this algorithm")
    unchecked = {f"verify_{name}": False for name in ("exp", "nbf", "iat", "aud", "iss", "sub", "jti")}
    try:
        claims = jwt.decode(statement, key.material, algorithms=[algorithm], options=unchecked)  # type: ignore[arg-type]
    except Exception as error:
        raise TokenRefused(f"signature: it is not good ({type(error).__name__})") from None
    _check_dates(claims, clock())
    jti = claims.get("jti")
    if jti is not None and (not isinstance(jti, str) or len(jti) > 1024):
        raise TokenRefused("jti: it is not a text of at most 1024 characters")
    return claims


def _check_dates(claims: Mapping[str, Any], now: float) -> None:
    if wrong := [name for name in ("exp", "nbf", "iat") if name in claims and not is_numeric_date(claims[name])]:
        raise TokenRefused(f"{wrong[0]}: it is not a date")
    if early := [name for name in ("nbf", "iat") if claims.get(name, now) > now + AHEAD_SECONDS]:
        raise TokenRefused(f"{early[0]}: it is not good yet")
    if "exp" in claims and now >= claims["exp"]:
        raise TokenRefused("exp: it has expired")
    if "exp" in claims and claims["exp"] > now + MAX_ASSERTION_SECONDS:
        raise TokenRefused(f"exp: it is good for more than {MAX_ASSERTION_SECONDS:g} s")


def _check_single_audience(audience: object, ours: Sequence[str]) -> None:
    """Raises TokenRefused unless there is exactly one audience, and it is ours."""
    listed = as_list(audience) if is_array(audience) else [audience]
    if len(listed) != 1 or not isinstance(listed[0], str) or listed[0] not in ours:
        raise TokenRefused("aud: it is not for this authorization server alone")


def _digest(*parts: str) -> str:
    return sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _is_same_text(one: str, other: str) -> bool:
    digests = (sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (one, other))
    return hmac.compare_digest(*digests)


def _check_public_key_algorithms(algorithms: str | Iterable[str], owner: str) -> frozenset[str]:
    allowed = check_algorithms(algorithms)
    if not allowed <= ASYMMETRIC_ALGORITHMS.keys():
        raise UsageError(f"{owner}: published keys cannot be secrets", fix="leave algorithms out")
    return allowed


# -- The keys of those who sign, fetched through the guard.


def _make_issuer_keys(issuer: str, jwks_url: str, algorithms: frozenset[str], fetch: FetchUrl | None) -> KeySet:
    if jwks_url:
        return KeySet(jwks_url, algorithms, fetch=fetch or make_guarded_fetch(jwks_url))
    get = fetch or make_guarded_fetch(issuer)

    async def fetch_keys(url: str) -> bytes:
        return await fetch_published_keys(issuer, get)  # the metadata says where they are, and may move them

    return KeySet(list_metadata_urls_openid_first(issuer)[0], algorithms, fetch=fetch_keys)


def make_guarded_fetch(*written: str) -> FetchUrl:
    """Gets documents from the public internet, and from the hosts of these URLs, which an operator wrote, wherever
    they are. So a document that names another place cannot make this server look into its own network."""
    return partial(_fetch_guarded, tuple(written))


async def _fetch_guarded(written: tuple[str, ...], url: str) -> bytes:
    from defserve.guard.http_client import GuardedClient
    from defserve.guard.network import Egress

    parts = [urlsplit(each) for each in written]
    hosts = [
        f"{_bracket(each.hostname or '')}:{each.port or (443 if each.scheme == 'https' else 80)}" for each in parts
    ]
    egress = Egress(
        schemes=tuple({"https", *(each.scheme for each in parts)}),
        ports=None,
        private=hosts,
        redirects=0,
        max_bytes=MAX_ISSUER_RESPONSE_BYTES,
        timeout=ISSUER_TIMEOUT_SECONDS,
    )
    async with GuardedClient(egress) as http:
        answer = await http.get(url, headers={"accept": "application/json"})
    if answer.status_code != 200:
        raise OSError(f"it answered with status {answer.status_code}")
    return answer.content


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host
