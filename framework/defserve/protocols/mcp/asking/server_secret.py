"""The server's secret (2026-07-28: multi round-trip requests): given, from the environment, or ephemeral.

Each sealed state is opened once: by this process, or by a process of the same server that shares its store.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from defserve.errors import UsageError

if TYPE_CHECKING:
    from defserve.protocols.mcp.asking.round_trips import Sealer
    from defserve.stores.identity import ServerIdentity
    from defserve.stores.store import Store

SECRET_VARIABLE = "DEFSERVE_SECRET"


class ServerSecret:
    """Makes the `Sealer` when the first question needs one. `clock` gives seconds since the epoch."""

    def __init__(
        self,
        secret: str | bytes | None,
        *,
        store: Store | None = None,
        identity: Callable[[], ServerIdentity] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._secret = _check_secret(secret, "Server(secret=…)") if secret else None
        self._store, self._identity, self._clock = store, identity, clock
        self._sealer: Sealer | None = None
        self._is_ephemeral = False
        self.of_group: bytes | None = None
        """The key of a group of processes. It ends with the group."""

    def get_sealer(self, *, is_local: bool) -> Sealer:
        """The sealer. Warns once if a network peer needs it and its key ends with this process.

        A local peer ends with this process too, so it needs no warning.
        """
        if self._sealer is None:
            self._sealer = self._make_sealer()
        if self._is_ephemeral and not is_local:
            self._is_ephemeral = False
            from defserve.base.redaction import get_logger

            get_logger().warning(
                "warning: a tool asked its caller a question, and only this process can accept the answer.\n"
                "  After a restart, or in another process, the caller has to call again.\n"
                "  fix: give all processes the same %s (or Server(secret=…)), made with\n"
                "  python -c 'import secrets; print(secrets.token_urlsafe(32))'",
                SECRET_VARIABLE,
            )
        return self._sealer

    def get_lasting_secret(self) -> bytes | None:
        """The secret that outlives this process; None if none was given."""
        secret = os.environ.get(SECRET_VARIABLE) if self._secret is None else None
        if not secret:
            return self._secret
        from defserve.base.secret_references import read_secret_setting

        return _check_secret(read_secret_setting(secret, SECRET_VARIABLE), SECRET_VARIABLE)

    def _make_sealer(self) -> Sealer:
        import secrets

        from defserve.protocols.mcp.asking.round_trips import Sealer
        from defserve.stores.identity import NO_SERVER_IDENTITY
        from defserve.stores.store import SharedNonceStore

        known = self.get_lasting_secret()
        self._is_ephemeral = known is None and self.of_group is None
        nonces = SharedNonceStore(self._store) if self._store is not None else None
        identity = self._identity() if self._identity is not None else NO_SERVER_IDENTITY
        key = identity.derive_key(known or self.of_group or secrets.token_bytes(32), "requestState")
        return Sealer(key, clock=self._clock, nonces=nonces)

    def lifespan(self) -> AbstractAsyncContextManager[None] | None:
        """Closes the store when serving ends; None without a store."""
        return self._closing(self._store) if self._store is not None else None

    @asynccontextmanager
    async def _closing(self, store: Store) -> AsyncGenerator[None]:
        """The store opens itself on first use, but has to be closed."""
        try:
            yield
        finally:
            if self._sealer is not None:
                await store.close()


def _check_secret(secret: str | bytes, source: str) -> bytes:
    from defserve.protocols.mcp.asking.round_trips import MIN_SEALER_SECRET_BYTES

    key = secret.encode() if isinstance(secret, str) else secret
    if len(key) < MIN_SEALER_SECRET_BYTES:
        raise UsageError(
            f"{source} has {len(key)} bytes, at least {MIN_SEALER_SECRET_BYTES} are needed",
            fix="make one: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    return key
