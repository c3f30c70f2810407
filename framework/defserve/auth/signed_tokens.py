"""Signed tokens (JWT): signatures, expiry, ID tokens, OpenID providers, and tokens that were taken back.

An invalid token has no principal. Unusable settings raise at once. Needs PyJWT and cryptography, which are imported
when the first verifier is made.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from hashlib import sha256
from sys import float_info
from typing import Any, Final, NamedTuple

from defserve.auth.bearer_tokens import (
    ExplainingVerifier,
    TokenRefused,
    digest_token,
    format_utc_time,
    make_credential_name,
    quote_untrusted,
)
from defserve.auth.issuers import (
    FetchUrl,
    IssuerUnavailable,
    download_document,
    fetch_issuer_metadata,
    list_metadata_urls_openid_first,
    require_endpoint_url,
)
from defserve.auth.principals import Principal, is_token_principal_id, parse_scope_claim
from defserve.auth.signing_keys import (
    ASYMMETRIC_ALGORITHMS,
    AUTH_INSTALL_COMMAND,
    FixedKey,
    KeySet,
    VerificationKey,
    check_algorithms,
    load_fixed_key,
)
from defserve.base.peer_bounds import ByteBoundedCache, truncate_text
from defserve.base.redaction import get_logger
from defserve.core import json_values
from defserve.errors import DefserveError, UsageError, explain_arguments
from defserve.stores.identity import ServerIdentity, make_server_store, parse_identity
from defserve.stores.store import DENIED_TOKENS_SPACE, Store, StoreChange

log = get_logger("auth")

MAX_KID_LENGTH = 256
GOOD_BYTES, BAD_BYTES = 4 * 1024 * 1024, 1024 * 1024
_DATES = ("exp", "nbf", "iat")

# RFC 9068 §2.1, and what most issuers write. Others are no access tokens: proofs of a key, notices of a logout.
_TYPES = ("jwt", "at+jwt")

# What only other tokens of the same issuer have: a notice of a logout; an ID token, which is for the client to read.
_NOT_OF_ACCESS = ("events", "at_hash", "c_hash")


@explain_arguments
class JWT(ExplainingVerifier):
    """Signed tokens of one issuer (RFC 7519, RFC 9068) for one audience.

    Give the issuer's key (`key`: PEM, or a shared secret with an HS algorithm) or the URL of its published keys
    (`jwks_url`). The audience, the issuer, the subject and the expiry are always checked. `sub` is the principal's id.
    A token ends at its `exp`, or when its `jti` is put on the list `denied`. `leeway` is how far ahead the issuer's
    clock may be: it counts for `nbf` and `iat`. Raises UsageError for settings that would accept nothing, or anything.
    """

    def __init__(
        self,
        *,
        audience: str | Iterable[str],
        issuer: str,
        key: str | bytes | None = None,
        jwks_url: str | None = None,
        algorithms: str | Iterable[str] = tuple(ASYMMETRIC_ALGORITHMS),
        scopes_claim: str | Iterable[str] = "scope",
        leeway: float = 30,
        fetch: FetchUrl | None = None,
        denied: DeniedTokens | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.audiences = (audience,) if isinstance(audience, str) else tuple(audience)
        self.issuer, self.issuers, self.leeway = issuer, (issuer,), leeway
        self.scopes_claims = (scopes_claim,) if isinstance(scopes_claim, str) else tuple(scopes_claim)
        self._check_settings()
        self.algorithms = check_algorithms(algorithms)
        _require_pyjwt()
        self._keys, self._denied, self._clock = self._source(key, jwks_url, fetch), denied, clock
        self._good: ByteBoundedCache[VerifiedToken] = ByteBoundedCache(GOOD_BYTES)
        self._bad: ByteBoundedCache[VerifiedToken] = ByteBoundedCache(BAD_BYTES)

    def _source(self, key: str | bytes | None, jwks_url: str | None, fetch: FetchUrl | None) -> FixedKey | KeySet:
        if key is not None and jwks_url is None:
            return FixedKey(load_fixed_key(key, self.algorithms))
        if key is not None or jwks_url is None:
            raise UsageError("JWT needs either key or jwks_url", fix="give one of the two")
        if not self.algorithms <= ASYMMETRIC_ALGORITHMS.keys():
            raise UsageError("keys that jwks_url publishes cannot be secrets", fix="leave algorithms out")
        return KeySet(jwks_url, self.algorithms, fetch=fetch)

    def _check_settings(self) -> None:
        if not self.issuer or not self.audiences or not all(self.audiences):
            raise UsageError(
                "JWT needs an issuer and an audience; otherwise tokens made for other servers would be accepted",
                fix="audience= is this server's public URL, issuer= the authorization server's",
            )
        if not 0 <= self.leeway <= 300:
            raise UsageError(f"JWT(leeway={self.leeway!r}) is out of range", fix="give 0 to 300 seconds")

    def bind_server(self, identity: ServerIdentity) -> None:
        """See `Auth.bind_server`."""
        if self._denied is not None:
            self._denied.bind_server(identity)

    async def close(self) -> None:
        """See `Auth.close`."""
        if self._denied is not None:
            await self._denied.close()

    async def check_token(self, token: str) -> Principal:
        """The principal that the claims name. Raises TokenRefused if anything is wrong with the token."""
        try:
            verified = await self._verify_signature(token)
            claims: dict[str, Any] = json.loads(verified.claims)
            problem = verified.problem or self._find_problem(claims)
            if not problem and self._denied is not None and not await self._denied.accepts(claims):
                problem = (
                    "revoked: its id is on the list of denied tokens" if claims.get("jti") else "jti: it has no id"
                )
        except TokenRefused:
            raise
        except DefserveError as error:
            raise TokenRefused(f"revoked: the list of denied tokens cannot be read: {error}") from None
        except Exception as error:
            # A stranger's bytes can make the libraries raise anything.
            raise TokenRefused(f"format: it cannot be read as a signed token ({type(error).__name__})") from None
        if problem:
            holder = {"sub": claims.get("sub"), "kid": verified.kid, "jti": claims.get("jti")}
            raise TokenRefused(problem, holder if claims else None)
        scopes = frozenset[str]().union(*(parse_scope_claim(claims.get(name)) for name in self.scopes_claims))
        return Principal(claims["sub"], scopes, claims, credential=make_credential_name(token))

    async def _verify_signature(self, token: str) -> VerifiedToken:
        """The token with its claims, if its signature is good. Raises TokenRefused, or what PyJWT raises."""
        digest = digest_token(token)
        known = self._good.get(digest) or self._bad.get(digest)
        # The key must still be one of the issuer's.
        if known is not None and await self._keys.find_key(known.kid, known.algorithm) is known.key:
            return known
        import jwt

        header: dict[str, Any] = jwt.get_unverified_header(token)
        if problem := self._find_header_problem(header):
            raise TokenRefused(problem)
        algorithm, kid = header["alg"], header.get("kid")
        key = await self._keys.find_key(kid, algorithm)
        if key is None:
            raise TokenRefused(self._keys.describe_missing_key(quote_untrusted(kid), algorithm))
        try:
            claims = jwt.decode(
                token,
                key.material,
                algorithms=[algorithm],
                audience=self.audiences,
                issuer=self.issuer,
                options={
                    "require": ["exp", "aud", "iss", "sub"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.InvalidTokenError as error:
            verified = VerifiedToken(kid, algorithm, key, *self._explain_error(error, token))
            self._bad.store_value(digest, verified, ENTRY_BYTES)
            return verified
        text = json.dumps(claims).encode()
        verified = VerifiedToken(kid, algorithm, key, text)
        self._good.store_value(digest, verified, ENTRY_BYTES + len(text))
        return verified

    def find_claim_problem(self, token: str) -> str:
        """What is wrong with the claims of a token whose signature nobody has checked; empty if nothing is.

        It proves nothing: it tells people why a token is refused, and never lets anybody in.
        """
        import jwt

        try:
            claims = jwt.decode(
                token,
                audience=self.audiences,
                issuer=self.issuer,
                options={
                    "verify_signature": False,
                    "verify_aud": True,
                    "verify_iss": True,
                    "require": ["exp", "aud", "iss", "sub"],
                },
            )
        except jwt.InvalidTokenError as error:
            return self._explain_error(error, token)[1]
        return self._find_problem(claims)

    def _find_header_problem(self, header: Mapping[str, Any]) -> str:
        """What is wrong with the header of a token; empty if nothing is."""
        algorithm, kind, kid = header.get("alg"), header.get("typ", "JWT"), header.get("kid")
        if algorithm not in self.algorithms:
            return f"alg: {quote_untrusted(algorithm)} is not one of {', '.join(sorted(self.algorithms))}"
        if "crit" in header:
            return "crit: it has extensions that must be understood, and none is"
        if str(kind).lower().removeprefix("application/") not in _TYPES:
            return f"typ: {quote_untrusted(kind)} is not an access token"
        if not isinstance(kid, str | None) or len(kid or "") > MAX_KID_LENGTH:
            return f"kid: it is not a text of at most {MAX_KID_LENGTH} characters"
        return ""

    def _explain_error(self, error: Exception, token: str) -> tuple[bytes, str]:
        """The claims of a token that PyJWT has refused, as JSON, and the problem. A bad signature proves no claims."""
        import jwt

        if isinstance(error, jwt.DecodeError):
            return b"{}", "signature: it was not made with the issuer's key"
        if not isinstance(error, jwt.InvalidAudienceError | jwt.InvalidIssuerError | jwt.MissingRequiredClaimError):
            return b"{}", f"claims: it is not a token of RFC 7519 ({type(error).__name__})"
        # These three are raised after the signature was found good.
        claims: dict[str, Any] = json.loads(json_values.decode_base64url(token.split(".")[1]))
        proved = {name: quote_untrusted(claims.get(name)) for name in ("aud", "iss")}
        if isinstance(error, jwt.InvalidAudienceError):
            problem = f"aud: it is for {proved['aud']}, and this server is {' or '.join(self.audiences)}"
        elif isinstance(error, jwt.InvalidIssuerError):
            problem = f"iss: it is from {proved['iss']}, and this server trusts {self.issuer}"
        else:
            problem = f"{error.claim}: it has none"
        holder = {name: truncate_text(str(claims[name]), MAX_KID_LENGTH) for name in ("sub", "jti") if name in claims}
        return json.dumps(holder).encode(), problem

    def _find_problem(self, claims: Mapping[str, Any]) -> str:
        """What is wrong with claims whose signature is good; empty if nothing is."""
        # Keycloak says in `typ` which of its tokens it is.
        if any(name in claims for name in _NOT_OF_ACCESS) or claims.get("typ", "Bearer") not in ("Bearer", "DPoP"):
            return "typ: it is another kind of token, such as an ID token"
        if wrong := [name for name in _DATES if name in claims and not is_numeric_date(claims[name])]:
            return f"{wrong[0]}: it is not a date"
        now = self._clock()
        if early := [name for name in ("nbf", "iat") if claims.get(name, now) > now + self.leeway]:
            return f"{early[0]}: it is good from {format_utc_time(claims[early[0]])}"
        if now >= claims["exp"]:
            return f"exp: it expired at {format_utc_time(claims['exp'])}"
        if not isinstance(claims["sub"], str) or not is_token_principal_id(claims["sub"]):
            return "sub: it cannot be the name of a caller"
        return ""


def is_numeric_date(value: object) -> bool:
    """RFC 7519 §2 NumericDate. PyJWT would accept the text "1" and `true` as well.

    JSON has integers that no float can hold, and whoever subtracts a time from one gets an OverflowError.
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= float_info.max


def _require_pyjwt() -> None:
    try:
        import cryptography
        import jwt
    except ImportError:
        raise UsageError(
            "JWT needs PyJWT and cryptography, which are not installed", fix=AUTH_INSTALL_COMMAND
        ) from None
    del cryptography, jwt


# -- Tokens whose signature was checked. A client sends the same token many times, and checking a signature costs CPU.


# What an entry costs besides its claims, roughly.
ENTRY_BYTES = 512


class VerifiedToken(NamedTuple):
    """The header of a token, the key it was checked with, its claims as JSON, and what is wrong with a bad one.

    Of a bad token only what names it is kept of its claims, and nothing if its signature is bad.
    """

    kid: str | None
    algorithm: str
    key: VerificationKey
    claims: bytes
    problem: str = ""


# -- Signed tokens of an OpenID provider or OAuth server, which says by its metadata where its keys are.


SCOPE_CLAIMS: Final = ("scope", "scp")
"""RFC 9068, and what Entra and Okta write instead."""


# -- Signed tokens that must not be accepted any more, although they have not expired: a list of their ids (`jti`).


MAX_ID_LENGTH: Final = 1024


@explain_arguments
class DeniedTokens:
    """Ids of tokens that were taken back, in a store that all processes share: `sqlite:///tokens.db`, or a store.

    A JWT verifier with such a list accepts only tokens that have an id. An id is kept until its token has expired.
    The list is that of the server whose `auth=` it is given to; a program without that server names it:
    `server` is its name; `URL,NAME` if it has a resource URL; or `namespace=NAME`.
    """

    def __init__(
        self, store: str | Store, *, server: str | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        identity = parse_identity(server) if server else None
        self._store, self._clock = make_server_store(store, identity, what="DeniedTokens(…)"), clock

    def bind_server(self, identity: ServerIdentity) -> None:
        """See `Auth.bind_server`."""
        self._store.bind_server(identity)

    async def deny(self, jti: str, *, until: float) -> None:
        """Accept this token no more. `until` is when it expires by itself, in seconds since 1970 (its `exp`)."""
        if not jti or len(jti) > MAX_ID_LENGTH:
            raise UsageError(
                f"a token's id cannot be {jti[:80]!r}", fix=f"give its jti, 1 to {MAX_ID_LENGTH} characters"
            )
        now = self._clock()
        over = [
            name async for name, value in self._store.scan(DENIED_TOKENS_SPACE) if json.loads(value)["until"] <= now
        ]
        put = {_name(jti): json.dumps({"until": until}).encode()}
        await self._store.change(StoreChange(DENIED_TOKENS_SPACE, put, drop=[name for name in over if name not in put]))

    async def accepts(self, claims: Mapping[str, Any]) -> bool:
        """Whether a token with these claims has an id that was not taken back."""
        jti = claims.get("jti")
        if not isinstance(jti, str) or not 0 < len(jti) <= MAX_ID_LENGTH:
            return False
        name = _name(jti)
        return name not in await self._store.get(DENIED_TOKENS_SPACE, (name,))

    async def close(self) -> None:
        await self._store.close()


def _name(jti: str) -> str:
    return sha256(jti.encode("utf-8", "surrogatepass")).hexdigest()


@explain_arguments
class OIDC(JWT):
    """Access tokens of one issuer, checked with the keys that it publishes.

    `issuer` is written exactly as in its metadata and its tokens. `audience` is this server's public URL, or whatever
    the issuer writes into `aud` for it. Metadata and keys are fetched when the first token comes, kept for ten minutes,
    and fetched again for a key that is not known, at most once a minute. ID tokens are not accepted.
    """

    def __init__(
        self,
        issuer: str,
        *,
        audience: str | Iterable[str],
        algorithms: str | Iterable[str] = tuple(ASYMMETRIC_ALGORITHMS),
        scopes_claim: str | Iterable[str] = SCOPE_CLAIMS,
        leeway: float = 30,
        fetch: FetchUrl | None = None,
        denied: DeniedTokens | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(
            audience=audience,
            issuer=issuer,
            jwks_url=list_metadata_urls_openid_first(issuer)[0],
            algorithms=algorithms,
            scopes_claim=scopes_claim,
            leeway=leeway,
            fetch=partial(_keys, issuer, fetch or download_document),
            denied=denied,
            clock=clock,
        )


async def _keys(issuer: str, fetch: FetchUrl, url: str) -> bytes:
    del url  # the metadata says it
    return await fetch_published_keys(issuer, fetch)


async def fetch_published_keys(issuer: str, fetch: FetchUrl) -> bytes:
    """The key set of an issuer. Its metadata is read anew each time, so it may move its keys."""
    return await fetch(require_endpoint_url(await fetch_issuer_metadata(issuer, fetch), "jwks_uri"))


# -- ID tokens (OpenID Connect Core §3.1.3.7): who has signed in, said to the application that asked.


class IdTokenVerifier:
    """The ID tokens of one issuer for one application."""

    def __init__(self, issuer: str, client_id: str, *, fetch: FetchUrl, clock: Callable[[], float] = time.time) -> None:
        self._issuer, self._client_id, self._clock = issuer, client_id, clock

        async def keys(url: str) -> bytes:
            return await fetch_published_keys(issuer, fetch)

        self._keys = KeySet(list_metadata_urls_openid_first(issuer)[0], frozenset(ASYMMETRIC_ALGORITHMS), fetch=keys)

    async def verify(self, token: str, nonce: str, *, is_renewal: bool = False) -> dict[str, Any] | None:
        """The claims; None if the token is not good, or was not made for the request with this nonce.

        That of a renewal may have no nonce (OpenID Connect Core §12.2).
        Raises IssuerUnavailable if there are no keys to tell by.
        """
        import jwt

        try:
            header: dict[str, Any] = jwt.get_unverified_header(token)
            key = await self._keys.find_key(header.get("kid"), str(header.get("alg")))
            if not self._keys.has_keys:
                raise IssuerUnavailable(f"the keys of {self._issuer} cannot be read")
            if key is None or "crit" in header:
                return None
            claims: dict[str, Any] = jwt.decode(
                token,
                key.material,
                algorithms=[header["alg"]],
                audience=self._client_id,
                issuer=self._issuer,
                options={"require": ["exp", "iat", "aud", "iss", "sub"], "verify_exp": False, "verify_iat": False},
            )
            is_current = claims["iat"] - 60 <= self._clock() < claims["exp"] + 60
            # With several audiences, `azp` says which of them asked.
            is_ours = claims.get("azp", self._client_id) == self._client_id
            is_asked = (is_renewal and "nonce" not in claims) or hmac.compare_digest(
                str(claims.get("nonce")).encode(), nonce.encode()
            )
        except IssuerUnavailable:
            raise
        except Exception as error:
            log.warning("an ID token is refused: %s", type(error).__name__)
            return None
        return claims if is_current and is_ours and is_asked else None
