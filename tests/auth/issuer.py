"""An issuer of tokens for these tests: its keys, its key set, and tokens as good or as bad as a test wants."""

from __future__ import annotations

import base64
import json
import time
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

AUDIENCE = "https://tools.example/mcp"
ISSUER = "https://login.example"
SECRET = "s" * 64

_CURVES = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}


def private_key(algorithm: str = "ES256", name: str = "") -> Any:
    """The same key for the same name in every test: making them is slow."""
    return _made(algorithm, name)


@cache
def _made(algorithm: str, name: str) -> Any:
    if algorithm in _CURVES:
        return ec.generate_private_key(_CURVES[algorithm]())
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65537, 1024 if name == "weak" else 2048)


def pem(key: Any) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def jwk(key: Any, algorithm: str, **fields: Any) -> dict[str, Any]:
    return {**jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True), **fields}


def key_set(*keys: Any) -> bytes:
    return json.dumps({"keys": keys}).encode()


def claims(**changed: Any) -> dict[str, Any]:
    """Claims that are good for an hour; None leaves one out."""
    now = int(time.time())
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": now + 3600, "iat": now, "scope": "read write"}
    return {name: value for name, value in {**good, **changed}.items() if value is not None}


def signed(
    payload: dict[str, Any] | None = None,
    *,
    key: Any = None,
    algorithm: str = "ES256",
    headers: dict[str, Any] | None = None,
) -> str:
    key = private_key(algorithm) if key is None else key
    return raw({"alg": algorithm, **(headers or {})}, payload or claims(), key=key, algorithm=algorithm)


def raw(header: Any, payload: Any, *, key: Any = None, algorithm: str = "ES256") -> str:
    """A token with any header and payload at all, truly signed if there is a key: PyJWT would refuse to make most."""
    body = f"{part(header)}.{part(payload)}"
    if key is None:
        return f"{body}."
    method = jwt.get_algorithm_by_name(algorithm)
    signature = method.sign(body.encode(), method.prepare_key(key))
    return f"{body}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def part(value: Any) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()
