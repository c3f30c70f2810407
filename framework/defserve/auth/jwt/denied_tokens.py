"""Signed tokens that must not be accepted any more, although they have not expired: a list of their ids (`jti`)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final

from defserve.errors import UsageError
from defserve.stores.identity import ServerIdentity, parse_identity, server_store
from defserve.stores.spaces import DENIED_TOKENS
from defserve.stores.store import Store, StoreChange

LONGEST_ID: Final = 1024


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
        self._store, self._clock = server_store(store, identity, what="DeniedTokens(…)"), clock

    def bind_server(self, identity: ServerIdentity) -> None:
        """See `Auth.bind_server`."""
        self._store.bind_server(identity)

    async def deny(self, jti: str, *, until: float) -> None:
        """Accept this token no more. `until` is when it expires by itself, in seconds since 1970 (its `exp`)."""
        if not jti or len(jti) > LONGEST_ID:
            raise UsageError(f"a token's id cannot be {jti[:80]!r}", fix=f"give its jti, 1 to {LONGEST_ID} characters")
        now = self._clock()
        over = [name async for name, value in self._store.scan(DENIED_TOKENS) if json.loads(value)["until"] <= now]
        put = {_name(jti): json.dumps({"until": until}).encode()}
        await self._store.change(StoreChange(DENIED_TOKENS, put, drop=[name for name in over if name not in put]))

    async def accepts(self, claims: Mapping[str, Any]) -> bool:
        """Whether a token with these claims has an id that was not taken back."""
        jti = claims.get("jti")
        if not isinstance(jti, str) or not 0 < len(jti) <= LONGEST_ID:
            return False
        name = _name(jti)
        return name not in await self._store.get(DENIED_TOKENS, (name,))

    async def close(self) -> None:
        await self._store.close()


def _name(jti: str) -> str:
    return sha256(jti.encode("utf-8", "surrogatepass")).hexdigest()
