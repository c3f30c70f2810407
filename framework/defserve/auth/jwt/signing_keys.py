"""Keys that verify signatures. Each is bound to its algorithms, so that no token can choose how its key is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from defserve.errors import UsageError
from defserve.wire.jsonvalue import as_list

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

INSTALL = 'pip install "defserve[auth]"'
SMALLEST_RSA = 2048

# Algorithm → the key type and curve it needs, as a JWK names them (RFC 7518 §3.1, RFC 8037).
ASYMMETRIC: dict[str, tuple[str, str]] = {
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


class KeySource(Protocol):
    """Finds the key for a token: given by the author, or published by the issuer."""

    async def find(self, kid: str | None, algorithm: str) -> VerificationKey | None:
        """The key to verify a token with this header, if there is one."""
        ...


class FixedKey(NamedTuple):
    """The only key, whatever id a token names."""

    key: VerificationKey

    async def find(self, kid: str | None, algorithm: str) -> VerificationKey | None:
        return self.key if algorithm in self.key.algorithms else None


def checked_algorithms(algorithms: str | Iterable[str]) -> frozenset[str]:
    """An allow-list of one kind: signatures, or shared secrets. Raises UsageError if it is not."""
    allowed = frozenset([algorithms] if isinstance(algorithms, str) else algorithms)
    if unknown := sorted(allowed - ASYMMETRIC.keys() - SYMMETRIC.keys()):
        raise UsageError(
            f"JWT algorithms cannot include {', '.join(map(repr, unknown))}",
            fix=f"choose from {', '.join(ASYMMETRIC)}, or, with a shared secret, {', '.join(SYMMETRIC)}",
        )
    if not allowed:
        raise UsageError("JWT(algorithms=()) accepts no token", fix="leave it out to accept every public-key algorithm")
    if allowed & SYMMETRIC.keys() and allowed & ASYMMETRIC.keys():
        raise UsageError(
            "JWT algorithms mix shared secrets (HS…) with public keys, so a public key could be used as a secret",
            fix="keep one kind",
        )
    return allowed


def fixed_key(key: str | bytes, algorithms: frozenset[str]) -> VerificationKey:
    """The author's key: a PEM public key or certificate, or a shared secret. Raises UsageError if it is unfit."""
    raw = key.encode() if isinstance(key, str) else key
    # A secret never looks like this. A public key that is used as a secret does, and anyone may know it.
    public = b"-----BEGIN" in raw or raw.startswith(b"ssh-")
    if algorithms & SYMMETRIC.keys():
        return _secret(raw, algorithms, public)
    if not public:
        raise UsageError(
            f"JWT(key=…) is not a PEM public key, which {', '.join(sorted(algorithms))} need",
            fix='for a shared secret say so: algorithms=("HS256",)',
        )
    material = _loaded(raw)
    fits = fitting_algorithms(material) & algorithms
    if not fits:
        raise UsageError(
            f"the key of JWT(key=…) fits none of {', '.join(sorted(algorithms))}",
            fix=f"it must be RSA of {SMALLEST_RSA} bits or more, P-256, P-384, P-521 or Ed25519, as the algorithms say",
        )
    return VerificationKey(material, fits)


def _secret(raw: bytes, algorithms: frozenset[str], public: bool) -> VerificationKey:
    if public:
        raise UsageError("JWT(key=…) is a PEM key, but the algorithms want a secret", fix='algorithms=("RS256",)')
    least = max(SYMMETRIC[name] for name in algorithms)
    if len(raw) < least:
        raise UsageError(
            f"the secret of JWT(key=…) is {len(raw)} bytes long; {', '.join(sorted(algorithms))} need {least}",
            fix=f"make one: python -c 'import secrets; print(secrets.token_urlsafe({least}))'",
        )
    return VerificationKey(raw, algorithms)


def _loaded(raw: bytes) -> PublicKeyTypes:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from cryptography.x509 import load_pem_x509_certificate

    if b"PRIVATE KEY" in raw:
        raise UsageError("JWT(key=…) is a private key", fix="give the public half: this server only checks signatures")
    try:
        return load_pem_x509_certificate(raw).public_key() if b"CERTIFICATE" in raw else load_pem_public_key(raw)
    except Exception as error:
        raise UsageError(f"JWT(key=…) cannot be read: {error}", fix="give a PEM public key or certificate") from None


def fitting_algorithms(material: PublicKeyTypes) -> frozenset[str]:
    """The algorithms of a public key; none for a key that is weak, of another type, or private."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    match material:
        case RSAPublicKey() if material.key_size >= SMALLEST_RSA:
            needs = ("RSA", "")
        case EllipticCurvePublicKey():
            needs = ("EC", _CURVES.get(material.curve.name, "other"))
        case Ed25519PublicKey():
            needs = ("OKP", "Ed25519")
        case _:
            return frozenset()
    return frozenset(name for name, wanted in ASYMMETRIC.items() if wanted == needs)


def key_of_jwk(jwk: Mapping[str, Any], algorithms: frozenset[str]) -> VerificationKey | None:
    """A member of a key set; None if it is not for verifying signatures with these algorithms."""
    from jwt import PyJWK

    # A key set is public: a secret in it is a mistake, and must not be used.
    if jwk.get("kty") not in ("RSA", "EC", "OKP"):
        return None
    if jwk.get("use", "sig") != "sig" or "verify" not in as_list(jwk.get("key_ops", "verify")):
        return None
    try:
        # The type says how to read the key. What it may be used for is checked below.
        material = PyJWK({name: value for name, value in jwk.items() if name != "alg"}).key
    except Exception:
        return None
    fits = fitting_algorithms(material) & algorithms
    if "alg" in jwk:
        fits &= {str(jwk["alg"])}
    return VerificationKey(material, fits) if fits else None
