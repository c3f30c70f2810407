"""Tokens that are bound to a key (DPoP, RFC 9449): each request proves that its sender has the key.

A proof is good once, for one method and one URL, and for seconds. Used proofs are remembered in a store, so processes
that share it do not accept one twice. Needs PyJWT.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from defserve.auth.bearer_tokens import DpopProofRequest
from defserve.auth.signing_keys import ASYMMETRIC_ALGORITHMS, parse_jwk
from defserve.base.redaction import get_logger
from defserve.base.secret_references import read_secret_setting
from defserve.core import json_values
from defserve.errors import DefserveError, UsageError, explain_arguments
from defserve.stores.identity import (
    NO_SERVER_IDENTITY,
    ServerIdentity,
    ServerStore,
    make_server_store,
    require_same_owner,
)
from defserve.stores.store import MemoryNonceStore, NonceStore, SharedNonceStore, Store, is_in_memory

log = get_logger("auth")

PROOF_ALGORITHMS: Final = frozenset(ASYMMETRIC_ALGORITHMS)
MAX_PROOF_BYTES: Final = 8 * 1024
MAX_ID_LENGTH: Final = 256
REMEMBERED: Final = 100_000
"""How many used proofs this process remembers, if there is no store."""
AHEAD_SECONDS: Final = 30.0
VARIABLE: Final = "DEFSERVE_SECRET"

# Key type → the members that its thumbprint is made of, in this order (RFC 7638 §3.2, RFC 8037 §2).
_THUMBPRINT: Final = {"RSA": ("e", "kty", "n"), "EC": ("crv", "kty", "x", "y"), "OKP": ("crv", "kty", "x")}
_PURPOSE: Final = "DPoP nonce"
_PORTS: Final = {"http": 80, "https": 443}

ProofError = Literal["", "invalid_dpop_proof", "use_dpop_nonce"]


class ProvedKey(NamedTuple):
    """The thumbprint of a key, and the name of the proof that its sender has it. Both are empty if there is none."""

    thumbprint: str
    proof: str


NO_PROVED_KEY: Final = ProvedKey("", "")


@explain_arguments
class DPoP:
    """How bound tokens are accepted. `store` remembers used proofs: give one that all processes share.

    With `required`, tokens that are bound to no key are refused. A proof must be at most `seconds` old. With `nonce`,
    clients have to repeat a text that this server gave them lately; processes that share `secret` (or DEFSERVE_SECRET)
    accept one another's.
    """

    def __init__(
        self,
        store: str | Store | None = None,
        *,
        required: bool = False,
        seconds: float = 60,
        nonce: bool = False,
        secret: str | bytes | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not 5 <= seconds <= 600:
            raise UsageError(f"DPoP(seconds={seconds!r}) is out of range", fix="give 5 to 600 seconds")
        opened = make_server_store(store, None, what="DPoP(store=…)") if store is not None else None
        self._store: ServerStore | None = opened
        self._spent: NonceStore = MemoryNonceStore(REMEMBERED) if opened is None else SharedNonceStore(opened)
        self.required, self.wants_nonce = required, nonce
        self.is_shared = opened is not None and not is_in_memory(opened)
        self._seconds, self._clock = seconds, clock
        given = secret or os.environ.get(VARIABLE) or secrets.token_bytes(32)
        self._secret = read_secret_setting(given, "DPoP(secret=…)").encode() if isinstance(given, str) else given
        self._identity: ServerIdentity | None = None
        self._key = NO_SERVER_IDENTITY.derive_key(self._secret, _PURPOSE)

    def bind_server(self, identity: ServerIdentity) -> None:
        """See `Auth.bind_server`: nonces of other servers are refused, whatever secret they share."""
        self._identity = require_same_owner("DPoP(…)", self._identity, identity)
        if self._store is not None:
            self._store.bind_server(identity)
        self._key = identity.derive_key(self._secret, _PURPOSE)

    async def close(self) -> None:
        """See `Auth.close`."""
        if self._store is not None:
            await self._store.close()

    async def check(self, shown: DpopProofRequest, token: str, thumbprint: str) -> ProofError:
        """What is wrong with the proof of a request that shows a token bound to this key; empty if it is good."""
        proved, error = self._verify(shown, token, thumbprint)
        return error or await self.spend_proof(proved)

    def check_token_request(self, shown: DpopProofRequest) -> tuple[ProvedKey, ProofError]:
        """The key that a request for a token proves, and what is wrong with its proof (§5).

        It is remembered by `spend_proof`, once the rest of the request is good: anybody can make proofs.
        """
        return self._verify(shown, None, None)

    async def spend_proof(self, proved: ProvedKey) -> ProofError:
        """Remember a proof. It is no good if it was used before."""
        try:
            is_first = await self._spent.spend(f"dpop {proved.proof}", ttl=self._seconds + AHEAD_SECONDS)
        except DefserveError as error:
            # A proof that cannot be remembered could be used twice.
            log.error("used DPoP proofs cannot be remembered: %s", error)
            return "invalid_dpop_proof"
        return "" if is_first else "invalid_dpop_proof"

    def _verify(
        self, shown: DpopProofRequest, token: str | None, thumbprint: str | None
    ) -> tuple[ProvedKey, ProofError]:
        if len(shown.proofs) != 1 or len(shown.proofs[0]) > MAX_PROOF_BYTES:
            return NO_PROVED_KEY, "invalid_dpop_proof"
        try:
            claims, proved = _verify_proof(shown.proofs[0].decode("ascii"), thumbprint)
            if claims is None or not self._is_valid_proof(claims, shown, token):
                return NO_PROVED_KEY, "invalid_dpop_proof"
            if self.wants_nonce and not self._is_ours(claims.get("nonce")):
                return NO_PROVED_KEY, "use_dpop_nonce"
            name = sha256(f"{proved} {claims['jti']}".encode("utf-8", "surrogatepass")).hexdigest()
        except Exception as error:
            # As for tokens: a stranger's bytes can make the libraries raise anything.
            log.debug("DPoP proof refused: %s", type(error).__name__)
            return NO_PROVED_KEY, "invalid_dpop_proof"
        return ProvedKey(proved, name), ""

    def new_nonce(self) -> str:
        """A nonce for the header DPoP-Nonce. It is good for as long as a proof."""
        moment = int(self._clock()).to_bytes(8, "big")
        return json_values.encode_base64url(moment + hmac.digest(self._key, moment, "sha256")[:16])

    def _is_ours(self, nonce: object) -> bool:
        if not isinstance(nonce, str) or len(nonce) != 32:
            return False
        try:
            raw = json_values.decode_base64url(nonce)
        except ValueError:
            return False
        age = self._clock() - int.from_bytes(raw[:8], "big")
        good = hmac.compare_digest(hmac.digest(self._key, raw[:8], "sha256")[:16], raw[8:])
        return good and -AHEAD_SECONDS <= age <= self._seconds

    def _is_valid_proof(self, claims: Mapping[str, Any], shown: DpopProofRequest, token: str | None) -> bool:
        made, id, url, hashed = (claims.get(name) for name in ("iat", "jti", "htu", "ath"))
        return (
            isinstance(made, int | float)
            and not isinstance(made, bool)
            and isinstance(id, str)
            and 0 < len(id) <= MAX_ID_LENGTH
            and -AHEAD_SECONDS <= self._clock() - made <= self._seconds
            and claims.get("htm") == shown.method
            and isinstance(url, str)
            and same_place(url, shown.url)
            and (token is None or hashed == json_values.encode_base64url(sha256(token.encode()).digest()))
        )


def compute_jwk_thumbprint(jwk: Mapping[str, Any]) -> str:
    """The SHA-256 thumbprint of a public key (RFC 7638). Raises KeyError for another kind of key."""
    members = {name: jwk[name] for name in _THUMBPRINT[jwk["kty"]]}
    return json_values.encode_base64url(
        sha256(json.dumps(members, separators=(",", ":"), sort_keys=True).encode()).digest()
    )


def same_place(one: str, other: str) -> bool:
    """Whether two URLs are the same without query and fragment (RFC 9449 §4.3). Raises ValueError."""
    return _place(one) == _place(other)


def _place(url: str) -> tuple[str, str, int | None, str]:
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None or not parts.hostname:
        raise ValueError("not a plain URL")
    scheme = parts.scheme.lower()
    return scheme, parts.hostname.lower(), parts.port or _PORTS.get(scheme), parts.path or "/"


def _verify_proof(proof: str, thumbprint: str | None) -> tuple[dict[str, Any] | None, str]:
    """The claims of a proof, and the thumbprint of its key: this one, if one is given. Raises what PyJWT raises."""
    import jwt

    header: dict[str, Any] = jwt.get_unverified_header(proof)
    algorithm, jwk = header.get("alg"), header.get("jwk")
    if (
        header.get("typ") != "dpop+jwt"
        or algorithm not in PROOF_ALGORITHMS
        or "crit" in header
        or not isinstance(jwk, dict)
    ):
        return None, ""
    public: dict[str, Any] = jwk  # pyright: ignore[reportUnknownVariableType]
    key = parse_jwk(public, PROOF_ALGORITHMS) if "d" not in public else None
    proved = compute_jwk_thumbprint(public) if key is not None else ""
    is_other = thumbprint is not None and not hmac.compare_digest(proved, thumbprint)
    if key is None or algorithm not in key.algorithms or is_other:
        return None, ""
    unchecked = {f"verify_{name}": False for name in ("exp", "nbf", "iat", "aud", "iss", "sub", "jti")}
    return jwt.decode(proof, key.material, algorithms=[algorithm], options=unchecked), proved  # type: ignore[arg-type]
