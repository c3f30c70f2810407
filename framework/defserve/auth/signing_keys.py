"""Keys that verify signatures: fixed ones, and those that an issuer publishes (RFC 7517).

Each is bound to its algorithms, so that no token can choose how its key is read. Published keys are fetched when
needed; strangers cannot cause many fetches.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from defserve.auth.issuers import ISSUER_TIMEOUT_SECONDS, MAX_ISSUER_RESPONSE_BYTES, FetchUrl, download_document
from defserve.auth.oauth import check_oauth_url
from defserve.base.concurrency import wait_for_shared
from defserve.base.redaction import get_logger
from defserve.core.json_values import as_list, is_array, is_object
from defserve.errors import UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes


AUTH_INSTALL_COMMAND = 'pip install "defserve[auth]"'
MIN_RSA_BITS = 2048

# Algorithm → the key type and curve it needs, as a JWK names them (RFC 7518 §3.1, RFC 8037).
ASYMMETRIC_ALGORITHMS: dict[str, tuple[str, str]] = {
    "RS256": ("RSA", ""),
    "RS384": ("RSA", ""),
    "RS512": ("RSA", ""),
    "PS256": ("RSA", ""),
    "PS384": ("RSA", ""),
    "PS512": ("RSA", ""),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}

# Algorithm → the fewest bytes of its secret (RFC 7518 §3.2).
SYMMETRIC: dict[str, int] = {"HS256": 32, "HS384": 48, "HS512": 64}

_CURVES = {"secp256r1": "P-256", "secp384r1": "P-384", "secp521r1": "P-521"}


class VerificationKey(NamedTuple):
    """A public key or a shared secret, and the algorithms it may be used with."""

    material: Any
    algorithms: frozenset[str]


class FixedKey(NamedTuple):
    """The only key, whatever id a token names."""

    key: VerificationKey

    async def find_key(self, kid: str | None, algorithm: str) -> VerificationKey | None:
        return self.key if algorithm in self.key.algorithms else None

    def describe_missing_key(self, kid: str, algorithm: str) -> str:
        """Why there is no key for a token. `kid` is already quoted."""
        return f"alg: the key of this server is not for {algorithm}"


def check_algorithms(algorithms: str | Iterable[str]) -> frozenset[str]:
    """An allow-list of one kind: signatures, or shared secrets. Raises UsageError if it is not."""
    allowed = frozenset([algorithms] if isinstance(algorithms, str) else algorithms)
    if unknown := sorted(allowed - ASYMMETRIC_ALGORITHMS.keys() - SYMMETRIC.keys()):
        raise UsageError(
            f"JWT algorithms cannot include {', '.join(map(repr, unknown))}",
            fix=f"choose from {', '.join(ASYMMETRIC_ALGORITHMS)}, or, with a shared secret, {', '.join(SYMMETRIC)}",
        )
    if not allowed:
        raise UsageError("JWT(algorithms=()) accepts no token", fix="leave it out to accept every public-key algorithm")
    if allowed & SYMMETRIC.keys() and allowed & ASYMMETRIC_ALGORITHMS.keys():
        raise UsageError(
            "JWT algorithms mix shared secrets (HS…) with public keys, so a public key could be used as a secret",
            fix="keep one kind",
        )
    return allowed


def load_fixed_key(key: str | bytes, algorithms: frozenset[str]) -> VerificationKey:
    """The author's key: a PEM public key or certificate, or a shared secret. Raises UsageError if it is unfit."""
    raw = key.encode() if isinstance(key, str) else key
    # A secret never looks like this. A public key that is used as a secret does, and anyone may know it.
    public = b"-----BEGIN" in raw or raw.startswith(b"ssh-")
    if algorithms & SYMMETRIC.keys():
        return _secret(raw, algorithms, public)
    if not public:
        raise UsageError(
            f"JWT(key=…) is not a PEM public key, which {', '.join(sorted(algorithms))} need",
            fix=_find_pem_fix(raw),
        )
    material = _load_public_key(raw)
    fits = find_fitting_algorithms(material) & algorithms
    if not fits:
        raise UsageError(
            f"the key of JWT(key=…) fits none of {', '.join(sorted(algorithms))}",
            fix=f"it must be RSA of {MIN_RSA_BITS} bits or more, P-256, P-384, P-521 or Ed25519, as the algorithms say",
        )
    return VerificationKey(material, fits)


def _find_pem_fix(raw: bytes) -> str:
    if raw.endswith((b".pem", b".crt", b".cer", b".pub", b".key")):
        return f"give what is in the file: Path({raw.decode(errors='replace')!r}).read_text()"
    return 'give the text of the key, -----BEGIN PUBLIC KEY----- …; for a shared secret add algorithms=("HS256",)'


def _secret(raw: bytes, algorithms: frozenset[str], public: bool) -> VerificationKey:
    if public:
        raise UsageError("JWT(key=…) is a PEM key, but the algorithms want a secret", fix='algorithms=("RS256",)')
    least = max(SYMMETRIC[name] for name in algorithms)
    if len(raw) < least:
        raise UsageError(
            f"the secret of JWT(key=…) is {len(raw)} bytes long; {', '.join(sorted(algorithms))} need at least {least}",
            fix=f"make one: python -c 'import secrets; print(secrets.token_urlsafe({least}))'",
        )
    return VerificationKey(raw, algorithms)


def _load_public_key(raw: bytes) -> PublicKeyTypes:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from cryptography.x509 import load_pem_x509_certificate

    if b"PRIVATE KEY" in raw:
        raise UsageError("JWT(key=…) is a private key", fix="give the public half: this server only checks signatures")
    try:
        return load_pem_x509_certificate(raw).public_key() if b"CERTIFICATE" in raw else load_pem_public_key(raw)
    except Exception as error:
        raise UsageError(f"JWT(key=…) cannot be read: {error}", fix="give a PEM public key or certificate") from None


def find_fitting_algorithms(material: PublicKeyTypes) -> frozenset[str]:
    """The algorithms of a public key; none for a key that is weak, of another type, or private."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    match material:
        case RSAPublicKey() if material.key_size >= MIN_RSA_BITS:
            needs = ("RSA", "")
        case EllipticCurvePublicKey():
            needs = ("EC", _CURVES.get(material.curve.name, "other"))
        case Ed25519PublicKey():
            needs = ("OKP", "Ed25519")
        case _:
            return frozenset()
    return frozenset(name for name, wanted in ASYMMETRIC_ALGORITHMS.items() if wanted == needs)


def parse_jwk(jwk: Mapping[str, Any], algorithms: frozenset[str]) -> VerificationKey | None:
    """A member of a key set; None if it is not for verifying signatures with these algorithms."""
    from jwt import PyJWK

    if (
        # A key set is public: a secret in it is a mistake, and must not be used.
        jwk.get("kty") not in ("RSA", "EC", "OKP")
        or jwk.get("use", "sig") != "sig"
        or "verify" not in as_list(jwk.get("key_ops", "verify"))
    ):
        return None
    try:
        # The type says how to read the key. What it may be used for is checked below.
        material = PyJWK({name: value for name, value in jwk.items() if name != "alg"}).key
    except Exception:
        return None
    fits = find_fitting_algorithms(material) & algorithms
    if "alg" in jwk:
        fits &= {str(jwk["alg"])}
    return VerificationKey(material, fits) if fits else None


# -- The keys that an issuer publishes (RFC 7517). Fetched when needed; strangers cannot cause many fetches.


MAX_KEYS = 64

# The time between fetches: once there are keys, unknown key ids cause at most one fetch a minute.
PAUSE = 60.0
RETRY = 5.0

# How long expired keys stay in use while their issuer does not answer.
GRACE = 3600.0

log = get_logger("auth")


class PublishedKey(NamedTuple):
    """One key of the set, under its id."""

    kid: str | None
    key: VerificationKey


class KeySet:
    """The keys at `url`, which must be https unless it is on this machine.

    `fetch` returns the document's bytes, or raises.
    """

    def __init__(
        self,
        url: str,
        algorithms: frozenset[str],
        *,
        fetch: FetchUrl | None = None,
        ttl: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_oauth_url(url, "jwks_url", query=True)
        self.url, self.ttl = url, ttl
        self._algorithms, self._fetch, self._clock = algorithms, fetch or download_document, clock
        self._keys: list[PublishedKey] = []
        self._fetched = self._tried = -math.inf
        self._loading: asyncio.Task[None] | None = None

    async def find_key(self, kid: str | None, algorithm: str) -> VerificationKey | None:
        """The key of that id, for that algorithm. Without an id: the only key for the algorithm."""
        if self._age() >= self.ttl:
            await self._refresh()
        found = self._pick(kid, algorithm)
        if found is None:
            await self._refresh()
            found = self._pick(kid, algorithm)
        return found

    def describe_missing_key(self, kid: str, algorithm: str) -> str:
        """See `FixedKey`."""
        if not self.has_keys:
            return f"keys: {self.url} has given none"
        return f"kid: {self.url} has no key {kid} for {algorithm}"

    @property
    def has_keys(self) -> bool:
        """Whether there are keys that count. If not, their issuer has not answered."""
        return bool(self._keys) and self._age() < self.ttl + GRACE

    def _age(self) -> float:
        return self._clock() - self._fetched

    def _pick(self, kid: str | None, algorithm: str) -> VerificationKey | None:
        if not self.has_keys:
            return None
        fitting = [entry for entry in self._keys if algorithm in entry.key.algorithms]
        if kid is None:
            return fitting[0].key if len(fitting) == 1 else None
        return next((entry.key for entry in fitting if entry.kid == kid), None)

    async def _refresh(self) -> None:
        """Fetch the set, unless that was just done. Callers that come meanwhile wait for the same fetch."""
        if self._loading is None:
            if self._clock() - self._tried < (PAUSE if self._keys else RETRY):
                return
            self._loading = asyncio.create_task(self._load())
        # A caller that hangs up must not cancel the fetch for the others, nor use up the fetch of this minute.
        await wait_for_shared(self._loading)

    async def _load(self) -> None:
        try:
            async with asyncio.timeout(ISSUER_TIMEOUT_SECONDS):
                document = await self._fetch(self.url)
            self._keys = parse_key_set(document, self._algorithms)
            self._fetched = self._clock()
        except Exception as error:
            log.warning("no keys from %s: %s: %s", self.url, type(error).__name__, error)
        finally:
            self._tried, self._loading = self._clock(), None


def parse_key_set(document: bytes, algorithms: frozenset[str]) -> list[PublishedKey]:
    """The usable keys of a key set. Raises ValueError if it has none, or is not a key set."""
    if len(document) > MAX_ISSUER_RESPONSE_BYTES:
        raise ValueError(f"the key set is larger than {MAX_ISSUER_RESPONSE_BYTES} bytes")
    decoded: Any = json.loads(document)
    members: Any = decoded.get("keys") if is_object(decoded) else None
    if not is_array(members) or len(members) > MAX_KEYS:
        raise ValueError(f"not a key set of at most {MAX_KEYS} keys")
    found = [
        PublishedKey(kid if isinstance(kid := member.get("kid"), str) else None, key)
        for member in members
        if is_object(member) and (key := parse_jwk(member, algorithms)) is not None
    ]
    if not found:
        raise ValueError(f"no key for {', '.join(sorted(algorithms))}")
    return found
