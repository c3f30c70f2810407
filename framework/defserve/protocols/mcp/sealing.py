"""The server's secret (2026-07-28: requestState): given, from the environment, or ephemeral."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from defserve.protocols.mcp.request_state import Sealer

VARIABLE = "DEFSERVE_SECRET"


class Sealing:
    """Makes the `Sealer` when the first question needs one."""

    def __init__(self, secret: str | bytes | None) -> None:
        self._secret = secret
        self._sealer: Sealer | None = None

    @property
    def sealer(self) -> Sealer:
        if self._sealer is None:
            from defserve.protocols.mcp.request_state import Sealer

            self._sealer = Sealer(self._key())
        return self._sealer

    def _key(self) -> bytes:
        secret = self._secret or os.environ.get(VARIABLE)
        if secret:
            return secret.encode() if isinstance(secret, str) else secret
        import logging
        import secrets

        logging.getLogger("defserve").warning(
            "questions are sealed with a key that ends with this process; set %s (or Server(secret=…)) so that "
            "another process can take up their answers",
            VARIABLE,
        )
        return secrets.token_bytes(32)
