"""Values that leave this process and come back: encrypted, bound to one purpose, with an end."""

from __future__ import annotations

import hmac
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from defserve.core import json_values
from defserve.errors import UsageError
from defserve.stores.identity import NO_SERVER_IDENTITY, ServerIdentity

MIN_SECRET_BYTES: Final = 32
MAX_SEAL_LENGTH: Final = 16 * 1024
"""How long a sealed text of a peer may be. What lies in our own store may be longer."""
_SALT: Final = 16
# Every value has a key of its own, made of its salt, so this nonce is used once with each.
_NONCE: Final = bytes(12)


class TokenSealer:
    """Seals and opens. Processes of one server that share the first of `secrets` open one another's; later ones only
    open. Another server opens nothing, whatever secret it has.
    """

    def __init__(
        self,
        secrets: Sequence[bytes],
        identity: ServerIdentity = NO_SERVER_IDENTITY,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        for secret in secrets:
            if len(secret) < MIN_SECRET_BYTES:
                raise UsageError(
                    f"the secret has {len(secret)} bytes, at least {MIN_SECRET_BYTES} are needed",
                    fix="make one: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
                )
        self._secrets, self._clock = secrets, clock
        self.bind_server(identity)

    def bind_server(self, identity: ServerIdentity) -> None:
        """Seal and open for this server from here on."""
        self._roots = [identity.derive_key(secret, "authorization server") for secret in self._secrets]

    def seal(self, purpose: str, value: Any, *, seconds: float | None = None) -> str:
        """The JSON value as a text of letters, digits, `-` and `_`. It opens for this purpose, and for so long."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        until = None if seconds is None else self._clock() + seconds
        salt = os.urandom(_SALT)
        text = json.dumps([until, value], separators=(",", ":")).encode()
        sealed = AESGCM(_key(self._roots[0], purpose, salt)).encrypt(_NONCE, text, purpose.encode())
        return json_values.encode_base64url(salt + sealed)

    def open(self, purpose: str, text: str, *, max_length: int | None = MAX_SEAL_LENGTH) -> Any:
        """The value; None if it was not sealed here for this purpose, is over, or is too long."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if max_length is not None and len(text) > max_length:
            return None
        try:
            raw = json_values.decode_base64url(text)
        except ValueError:
            return None
        if len(raw) <= _SALT:
            return None
        for root in self._roots:
            try:
                plain = AESGCM(_key(root, purpose, raw[:_SALT])).decrypt(_NONCE, raw[_SALT:], purpose.encode())
            except InvalidTag:
                continue
            until, value = json.loads(plain)
            return value if until is None or self._clock() < until else None
        return None

    def compute_mac(self, purpose: str, text: str) -> str:
        """A text that only who has the secret can make of another: the same one each time."""
        return json_values.encode_base64url(hmac.digest(self._roots[0], f"{purpose}\0{text}".encode(), "sha256"))

    def is_valid_mac(self, purpose: str, text: str, mark: str) -> bool:
        """Whether `mark` is what `mark` makes of the text, with any of the secrets."""
        marks = [
            json_values.encode_base64url(hmac.digest(root, f"{purpose}\0{text}".encode(), "sha256"))
            for root in self._roots
        ]
        return any(hmac.compare_digest(one.encode(), mark.encode()) for one in marks)


def _key(root: bytes, purpose: str, salt: bytes) -> bytes:
    return hmac.digest(root, purpose.encode() + b"\0" + salt, "sha256")
