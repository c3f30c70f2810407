"""What a user has allowed a client: one record in the store, which all tokens of the client hang on."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from defserve.base.caches import ByteCache
from defserve.stores.nonces import StoreNonces
from defserve.stores.spaces import OAUTH_GRANTS
from defserve.stores.store import Store, StoreChange, StoreCorrupt

_RECORD: Final = "record"
KEPT_BYTES: Final = 4 * 1024 * 1024
# As for tokens that are asked about: credentials in use are verified every two seconds.
KEPT_SECONDS: Final = 1.5
PENDING_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class UserGrant:
    """A user's yes. `generation` counts its refresh tokens; 0 until the code was exchanged. `vendor` is sealed.

    `claims` are what the vendor said of the user, and `confirmed` is when it said so last.
    """

    id: str
    client: str
    subject: str
    scopes: tuple[str, ...]
    resource: str
    claims: Mapping[str, Any]
    vendor: str
    until: float
    generation: int = 0
    confirmed: float = 0.0


class Grants:
    """The grants of an authorization server, in a store that all its processes share."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock
        self._nonces = StoreNonces(store)
        self._kept: ByteCache[tuple[UserGrant | None, float]] = ByteCache(KEPT_BYTES)

    async def begin(self, grant: UserGrant) -> None:
        """Keep a new grant until its code is exchanged."""
        await self._store.change(StoreChange(OAUTH_GRANTS.of(grant.id), {_RECORD: _packed(grant)}, ttl=PENDING_SECONDS))

    async def find(self, id: str) -> UserGrant | None:
        """The grant as it is now."""
        found = (await self._store.get(OAUTH_GRANTS.of(id), (_RECORD,))).get(_RECORD)
        grant = None if found is None else _unpacked(found)
        return grant if grant is not None and self._clock() < grant.until else None

    async def find_lately(self, id: str) -> UserGrant | None:
        """The grant as it was less than two seconds ago."""
        kept, now = self._kept.get(id), time.monotonic()
        if kept is not None and now < kept[1]:
            return kept[0]
        grant = await self.find(id)
        size = 1024 + (len(_packed(grant)) if grant is not None else 0)
        self._kept.put(id, (grant, now + KEPT_SECONDS), size)
        return grant

    async def renew(self, grant: UserGrant, **changed: Any) -> UserGrant | None:
        """The grant with its next refresh token, and what has changed. None: another request was first, or it is gone.

        It is called once for a code (`is_first`), and each refresh has sealed its `vendor` anew. So no two requests
        make the same record, and one that is found in the store is this request's own.
        """
        return await self.change(grant, generation=grant.generation + 1, **changed)

    async def change(self, grant: UserGrant, **changed: Any) -> UserGrant | None:
        """The grant with other values. None: it was changed meanwhile, or is gone."""
        after = replace(grant, **changed)
        change = StoreChange(
            OAUTH_GRANTS.of(grant.id),
            {_RECORD: _packed(after)},
            expect={_RECORD: _packed(grant)},
            ttl=max(after.until - self._clock(), 1.0),
        )
        # A store that lost its connection may repeat a change, and then find its own first attempt.
        return after if await self._store.change(change) or await self.find(grant.id) == after else None

    async def end(self, id: str) -> None:
        """Take a grant back, and with it every token that hangs on it."""
        await self._store.change(StoreChange(OAUTH_GRANTS.of(id), drop=(_RECORD,), ttl=PENDING_SECONDS))
        self._kept.drop(id)

    async def is_first(self, what: str, id: str, seconds: float) -> bool:
        """Whether something that may be used once is used for the first time, in any process."""
        return await self._nonces.spend(f"oauth {what} {id}", ttl=seconds)


def new_id() -> str:
    return secrets.token_urlsafe(24)


def _packed(grant: UserGrant) -> bytes:
    return json.dumps(asdict(grant), sort_keys=True).encode()


def _unpacked(value: bytes) -> UserGrant:
    """Raises StoreCorrupt."""
    try:
        kept: dict[str, Any] = json.loads(value)
        kept["scopes"] = tuple(kept["scopes"])
        return UserGrant(**kept)
    except (ValueError, TypeError, KeyError):
        raise StoreCorrupt("a grant in the store cannot be read") from None
