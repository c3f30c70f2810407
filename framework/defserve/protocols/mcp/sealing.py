"""The server's secret (2026-07-28: multi round-trip requests): given, from the environment, or ephemeral."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from defserve.errors import UsageError

if TYPE_CHECKING:
    from defserve.protocols.mcp.request_state import Sealer

VARIABLE = "DEFSERVE_SECRET"


class Sealing:
    """Makes the `Sealer` when the first question needs one. `clock` gives seconds since the epoch."""

    def __init__(self, secret: str | bytes | None, *, clock: Callable[[], float] = time.time) -> None:
        self._secret = _checked(secret, "Server(secret=…)") if secret else None
        self._clock = clock
        self._sealer: Sealer | None = None

    @property
    def sealer(self) -> Sealer:
        if self._sealer is None:
            from defserve.protocols.mcp.request_state import Sealer

            self._sealer = Sealer(self.known() or self._ephemeral(), clock=self._clock)
        return self._sealer

    def known(self) -> bytes | None:
        """The secret that outlives this process; None where nobody gave one."""
        secret = os.environ.get(VARIABLE) if self._secret is None else None
        return _checked(secret, VARIABLE) if secret else self._secret

    def _ephemeral(self) -> bytes:
        import logging
        import secrets

        logging.getLogger("defserve").warning(
            "questions are sealed with a key that ends with this process; set %s (or Server(secret=…)) so that "
            "another process can take up their answers",
            VARIABLE,
        )
        return secrets.token_bytes(32)


def _checked(secret: str | bytes, source: str) -> bytes:
    from defserve.protocols.mcp.request_state import MIN_SECRET

    key = secret.encode() if isinstance(secret, str) else secret
    if len(key) < MIN_SECRET:
        raise UsageError(
            f"{source} has {len(key)} bytes, at least {MIN_SECRET} are needed",
            fix="make one: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    return key
