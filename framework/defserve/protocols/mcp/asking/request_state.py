"""MCP 2026-07-28, multi round-trip requests: `requestState` sealed, bound to its request, short-lived and single-use.

Built on the standard library because `cryptography` is 15 MB and optional. Encrypt-then-MAC:
`v1.` + base64url(nonce ‖ ciphertext ‖ tag), where the plaintext is the time of sealing and the payload's JSON.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from defserve.errors import InvalidParams, LimitExceeded
from defserve.stores.nonces import MemoryNonces, NonceStore
from defserve.wire import base64url
from defserve.wire.jsonvalue import is_array, is_object

PREFIX = "v1."
MAX_LENGTH = 64 * 1024
MIN_SECRET = 16
SKEW = 60.0
"""How far ahead another worker's clock may be, in seconds, and how far this one may be set back."""

REMEMBERED_STATES = 100_000
"""How many used states this process remembers within the ttl, if there is no store."""

_NONCE, _TAG, _TIME = 16, 32, 8


class InvalidState(InvalidParams):
    """A `requestState` that is not accepted. The peer is never told why."""

    def __init__(self) -> None:
        super().__init__("Invalid or expired requestState")


class _Keys(NamedTuple):
    encryption: bytes
    authentication: bytes

    @classmethod
    def derive(cls, secret: bytes) -> _Keys:
        if len(secret) < MIN_SECRET:
            raise ValueError(f"the secret has {len(secret)} bytes, at least {MIN_SECRET} are needed")
        root = hmac.digest(b"defserve requestState v1", secret, "sha256")
        return cls(hmac.digest(root, b"encryption", "sha256"), hmac.digest(root, b"authentication", "sha256"))

    def crypt(self, nonce: bytes, text: bytes) -> bytes:
        """Encrypt or decrypt: both add the keystream."""
        stream = hashlib.shake_256(self.encryption + nonce).digest(len(text))
        return (int.from_bytes(text, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(text), "big")

    def tag(self, nonce: bytes, binding: bytes, ciphertext: bytes) -> bytes:
        return hmac.digest(self.authentication, _framed(PREFIX.encode(), nonce, binding, ciphertext), "sha256")


class Sealer:
    """Seals what a server must remember between two rounds of a request, and opens it again, once.

    Workers that share `secret` open one another's states. `previous` secrets open states but never seal. `nonces` is
    where single use is remembered: share it between sealers that must not accept a state twice.
    """

    def __init__(
        self,
        secret: bytes,
        *,
        ttl: float = 600.0,
        clock: Callable[[], float] = time.time,
        previous: Sequence[bytes] = (),
        nonces: NonceStore | None = None,
    ) -> None:
        self._keys = tuple(map(_Keys.derive, (secret, *previous)))
        self._ttl, self._clock = ttl, clock
        self._nonces = MemoryNonces(REMEMBERED_STATES) if nonces is None else nonces

    def seal(self, payload: Any, *, binding: bytes) -> str:
        """Seal a JSON payload. `binding` is the digest of the request that the state belongs to.

        Raises LimitExceeded when the sealed text would be longer than `open` accepts.
        """
        keys, nonce = self._keys[0], os.urandom(_NONCE)
        sealed_at = int(self._clock() * 1000).to_bytes(_TIME, "big")
        ciphertext = keys.crypt(nonce, sealed_at + to_json(payload))
        text = PREFIX + base64url.encode(nonce + ciphertext + keys.tag(nonce, binding, ciphertext))
        if len(text) > MAX_LENGTH:
            raise LimitExceeded(
                "The answers recorded so far do not fit in a requestState",
                data={"limit": "request_state", "length": len(text), "max": MAX_LENGTH},
            )
        return text

    async def open(self, text: str, *, binding: bytes) -> Any:
        """The sealed payload. Raises InvalidState unless it is genuine, for this request, fresh and unspent.
        Errors of the nonce store are passed on."""
        raw = _decode(text)
        nonce, ciphertext, tag = raw[:_NONCE], raw[_NONCE:-_TAG], raw[-_TAG:]
        plaintext = self._decrypt(nonce, ciphertext, tag, binding)
        sealed_at = int.from_bytes(plaintext[:_TIME], "big") / 1000
        now, until = self._clock(), sealed_at + self._ttl
        if sealed_at > now + SKEW or now >= until:
            raise InvalidState
        # Remembered for longer than it is valid: a clock that is set back makes it valid again.
        if not await self._nonces.spend(nonce.hex(), ttl=until - now + SKEW):
            raise InvalidState
        return from_json(plaintext[_TIME:])

    def _decrypt(self, nonce: bytes, ciphertext: bytes, tag: bytes, binding: bytes) -> bytes:
        for keys in self._keys:
            if hmac.compare_digest(keys.tag(nonce, binding, ciphertext), tag):
                return keys.crypt(nonce, ciphertext)
        raise InvalidState


def binding(principal: str, method: str, target: str, arguments: Any, brought: Any = None) -> bytes:
    """The digest of the request a state belongs to: who asks, which method, which tool or URI, which arguments.

    `brought` is what it brings beside its arguments, if it brings anything.
    """
    texts = (text.encode("utf-8", "surrogatepass") for text in (principal, method, target))
    values = (arguments, brought) if brought else (arguments,)
    return hashlib.sha256(_framed(*texts, *(to_json(_sorted(value)) for value in values))).digest()


def _framed(*fields: bytes) -> bytes:
    """Fields behind their lengths, so that no two lists of fields give the same bytes."""
    return b"".join(len(field).to_bytes(8, "big") + field for field in fields)


def _sorted(value: Any) -> Any:
    if is_object(value):
        return {name: _sorted(value[name]) for name in sorted(value)}
    if is_array(value):
        return [_sorted(item) for item in value]
    return value


def _decode(text: str) -> bytes:
    if len(text) > MAX_LENGTH or not text.startswith(PREFIX):
        raise InvalidState
    try:
        raw = base64url.decode(text[len(PREFIX) :])
    except ValueError:
        raise InvalidState from None
    if len(raw) < _NONCE + _TIME + _TAG:
        raise InvalidState
    return raw
