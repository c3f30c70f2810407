"""API keys: random, shown once and stored as a keyed hash, with the permissions, rates and expiry of their holder."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from defserve.auth.issuers.fetching import IssuerUnavailable
from defserve.auth.permissions import KeyHolder, scopes_of
from defserve.auth.principals import Principal, checked_scopes
from defserve.errors import DefserveError, UsageError
from defserve.stores.files import config_file, stored_secret
from defserve.stores.identity import ServerIdentity, ServerStore, parse_identity, server_store
from defserve.stores.spaces import API_KEYS, Space
from defserve.stores.store import Store, StoreChange, StoreCorrupt

if TYPE_CHECKING:
    from defserve.auth.api_key_file import KeyFile

log = logging.getLogger("defserve.auth")

VARIABLE: Final = "DEFSERVE_KEYS_PEPPER"
PEPPER: Final = "the pepper of API keys"
# How exact `last_used` is, in seconds: a busy key must not write at every call.
TOUCH: Final = 60.0

_ID: Final = re.compile(r"[0-9a-f]{16}")
_TOKEN: Final = re.compile(rf"({_ID.pattern})\.[A-Za-z0-9_-]{{43}}")
_NOBODYS: Final = "0" * 16
_STORE: Final = re.compile(r"(?:memory|sqlite|rediss?|redis\+(?:unix|sentinel)):")


class KeyStore(Protocol):
    """The part of a store that keys need. Every `Store` has it."""

    async def get(self, space: Space, names: Sequence[str]) -> dict[str, bytes]: ...
    async def change(self, change: StoreChange) -> bool: ...
    def scan(self, space: Space) -> AsyncIterator[tuple[str, bytes]]: ...


@dataclass(frozen=True, slots=True)
class ApiKey:
    """The stored form of a key. Times are seconds since 1970; `hash` is the HMAC-SHA-256 of the whole key, in hex."""

    id: str
    principal: str
    hash: str
    created_at: float
    last_used: float | None = None
    expires_at: float | None = None
    permissions: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    per_minute: int | None = None
    per_hour: int | None = None

    def is_expired(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at


class NewKey(NamedTuple):
    """A new key. `token` is shown now and never again."""

    token: str
    key: ApiKey


class ApiKeys:
    """Verifies keys, and makes, lists and revokes them.

    `store` is the path of a file (created with 0600), the address of a store (`sqlite:///keys.db`), or a store. The
    pepper is `pepper`, else the variable DEFSERVE_KEYS_PEPPER, else `defserve/keys.pepper` in the user's settings,
    which is created with the first key. Someone who has the store but not the pepper can neither use nor guess a key.

    Keys are good at one server: that to whose `auth=` this is given. A program that makes keys without that server
    names it: `server` is its name; `URL,NAME` if it has a resource URL; or `namespace=NAME`.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | KeyStore,
        *,
        pepper: str | bytes | None = None,
        server: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._clock = _opened(store, parse_identity(server) if server else None), clock
        self._owns = isinstance(store, str | os.PathLike)
        self._pepper = pepper.encode() if isinstance(pepper, str) else pepper
        if self._pepper is not None and len(self._pepper) < 16:
            raise UsageError("the pepper of API keys is too short", fix="give 16 bytes or more of random text")

    def bind_server(self, identity: ServerIdentity) -> None:
        """See `Auth.bind_server`."""
        self._store.bind_server(identity)

    async def verify(self, token: str) -> Principal | None:
        """The holder of a key; None if it is unknown, revoked or expired.

        Raises IssuerUnavailable while keys cannot be checked: nobody is let in, and no client should give up its key.
        """
        form = _TOKEN.fullmatch(token)
        if form is None:
            return None
        try:
            key = await self._find(form[1])
            if key is None or not hmac.compare_digest(key.hash, self._hash(token)) or key.is_expired(self._clock()):
                return None
            await self._touch(key)
        except DefserveError as error:
            log.error("API keys cannot be checked: %s", error)
            raise IssuerUnavailable(f"API keys cannot be checked: {error}") from None
        scopes = scopes_of(key.permissions) | frozenset(key.scopes)
        return KeyHolder(
            key.principal,
            scopes,
            {"kid": key.id},
            key=key.id,
            per_minute=key.per_minute,
            per_hour=key.per_hour,
            credential=_credential(key.id),
        )

    async def check_ready(self) -> None:
        """Raises IssuerUnavailable while keys cannot be checked."""
        try:
            await self._store.get(API_KEYS, (_NOBODYS,))
        except DefserveError as error:
            raise IssuerUnavailable(f"API keys cannot be checked: {error}") from None

    def check_settings(self) -> None:
        """Raises UsageError for a file of keys that cannot be used, and will not mend itself."""
        from defserve.auth.api_key_file import KeyFile

        if isinstance(self._store, KeyFile):
            self._store.check()

    async def create(
        self,
        principal: str,
        *,
        permissions: Iterable[str] = (),
        scopes: str | Iterable[str] = (),
        expires_in: float | None = None,
        per_minute: int | None = None,
        per_hour: int | None = None,
    ) -> NewKey:
        """A new key for a principal, which may have several. Raises UsageError for settings that are not valid."""
        given = tuple(permissions)
        scopes_of(given)
        Principal(principal)
        for name, count in (("per_minute", per_minute), ("per_hour", per_hour), ("expires_in", expires_in)):
            if count is not None and count <= 0:
                raise UsageError(f"{name}={count} is not positive", fix="give a positive number, or leave it out")
        id = secrets.token_hex(8)
        token = f"{id}.{secrets.token_urlsafe(32)}"
        now = self._clock()
        key = ApiKey(
            id,
            principal,
            self._hash(token, make=True),
            now,
            expires_at=None if expires_in is None else now + expires_in,
            permissions=given,
            scopes=checked_scopes(scopes),
            per_minute=per_minute,
            per_hour=per_hour,
        )
        await self._store.change(StoreChange(API_KEYS, {id: _packed(key)}))
        return NewKey(token, key)

    async def keys(self) -> list[ApiKey]:
        """All keys, the oldest first."""
        # In a store of 0.1.0, the secret of its checkpoints is in the same space.
        found = [_unpacked(value) async for id, value in self._store.scan(API_KEYS) if _ID.fullmatch(id)]
        return sorted(found, key=lambda key: key.created_at)

    async def revoke(self, id: str) -> bool:
        """Delete a key, so that it is no longer accepted. Returns whether there was one."""
        if await self._find(id) is None:
            return False
        was_there = await self._store.change(StoreChange(API_KEYS, drop=(id,)))
        if (announce := getattr(self._store, "announce", None)) is not None:
            with suppress(DefserveError):  # who is not told finds out a little later
                await announce(API_KEYS, id)
        return was_there

    @property
    def revocations(self) -> Callable[[], AsyncGenerator[str]] | None:
        """Follows what is revoked in any process: names of credentials, or an empty one if some may have been missed.

        None if the store tells nobody.
        """
        follow = getattr(self._store, "follow", None)
        return partial(_revoked, follow) if follow is not None else None

    async def close(self) -> None:
        """Close a store that was opened here."""
        close = getattr(self._store, "close", None)
        if self._owns and close is not None:
            await close()

    async def _find(self, id: str) -> ApiKey | None:
        found = (await self._store.get(API_KEYS, (id,))).get(id) if _ID.fullmatch(id) else None
        return None if found is None else _unpacked(found)

    async def _touch(self, key: ApiKey) -> None:
        now = self._clock()
        if key.last_used is not None and now - key.last_used < TOUCH:
            return
        try:
            before, after = _packed(key), _packed(replace(key, last_used=now))
            # Only if the key is unchanged: one that is revoked at this moment must not come back.
            await self._store.change(StoreChange(API_KEYS, {key.id: after}, expect={key.id: before}))
        except DefserveError as error:
            log.warning("the use of API key %s could not be noted: %s", key.id, error)

    def _hash(self, token: str, *, make: bool = False) -> str:
        if self._pepper is None:
            text = os.environ.get(VARIABLE, "").strip().encode()
            self._pepper = text or stored_secret(config_file("keys.pepper"), PEPPER, make=make, fix=f"set {VARIABLE}")
        return hmac.new(self._pepper, token.encode(), hashlib.sha256).hexdigest()


def is_store(store: str) -> bool:
    """Whether this is the address of a store rather than the path of a file."""
    return _STORE.match(store) is not None


def _opened(store: str | os.PathLike[str] | KeyStore, identity: ServerIdentity | None) -> ServerStore | KeyFile:
    if isinstance(store, os.PathLike) or (isinstance(store, str) and not is_store(store)):
        from defserve.auth.api_key_file import KeyFile

        return KeyFile(store, identity)
    if not isinstance(store, str) and hasattr(store, "bind_server"):
        return cast("ServerStore | KeyFile", store)
    return server_store(cast("str | Store", store), identity, what="ApiKeys(…)")


async def _revoked(follow: Callable[[str], AsyncGenerator[str]]) -> AsyncGenerator[str]:
    async with aclosing(follow(API_KEYS)) as announced:
        async for id in announced:
            yield _credential(id) if id else ""


def _credential(id: str) -> str:
    return f"key:{id}"


def _packed(key: ApiKey) -> bytes:
    return json.dumps(asdict(key), sort_keys=True).encode()


def _unpacked(value: bytes) -> ApiKey:
    """Raises StoreCorrupt."""
    try:
        kept: dict[str, Any] = json.loads(value)
        lists: dict[str, Any] = {name: tuple(kept[name]) for name in ("permissions", "scopes")}
        return ApiKey(**{**kept, **lists})
    except (ValueError, TypeError, KeyError):
        raise StoreCorrupt("an API key in the store cannot be read") from None
