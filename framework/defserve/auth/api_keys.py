"""API keys: random, shown once and stored as a keyed hash, with the permissions, rates and expiry of their holder."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

from defserve.auth.bearer_tokens import ExplainingVerifier, TokenRefused, format_utc_time
from defserve.auth.issuers import IssuerUnavailable
from defserve.auth.principals import ApiKeyPrincipal, Principal, convert_permissions_to_scopes, parse_scopes
from defserve.base.redaction import get_logger
from defserve.base.secret_references import read_secret_setting
from defserve.core.json_values import is_object
from defserve.errors import DefserveError, UsageError, explain_arguments
from defserve.stores.files import (
    get_user_file_path,
    give_to_owner_of,
    load_secret_file,
    make_newer_format_message,
    open_locked_file,
    read_private_file,
    replace_file,
)
from defserve.stores.identity import (
    MAX_LABEL_LENGTH,
    SHARED_STORE_SCHEMES,
    ServerIdentity,
    ServerStore,
    make_server_store,
    parse_identity,
    require_same_owner,
)
from defserve.stores.store import API_KEYS_SPACE, Space, Store, StoreBusy, StoreChange, StoreCorrupt, StoreUnavailable

log = get_logger("auth")

VARIABLE: Final = "DEFSERVE_KEYS_PEPPER"
PEPPER: Final = "the pepper of API keys"
DEFAULT_KEYS_FILE: Final = "keys.json"
"""Where `defserve keys` looks for the keys of a server."""

# How exact `last_used` is, in seconds: a busy key must not write at every call.
TOUCH: Final = 60.0

_ID: Final = re.compile(r"[0-9a-f]{16}")
_TOKEN: Final = re.compile(rf"({_ID.pattern})\.[A-Za-z0-9_-]{{43}}")
_NOBODYS: Final = "0" * 16


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

    def make_principal(self) -> ApiKeyPrincipal:
        """The caller who shows this key."""
        return ApiKeyPrincipal(
            self.principal,
            convert_permissions_to_scopes(self.permissions) | frozenset(self.scopes),
            {"kid": self.id},
            key=self.id,
            per_minute=self.per_minute,
            per_hour=self.per_hour,
            credential=_credential(self.id),
        )


class NewKey(NamedTuple):
    """A new key. `token` is shown now and never again."""

    token: str
    key: ApiKey


@explain_arguments
class ApiKeys(ExplainingVerifier):
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
        self._store, self._clock = _open_store(store, parse_identity(server) if server else None), clock
        self._owns = isinstance(store, str | os.PathLike)
        self._pepper = pepper.encode() if isinstance(pepper, str) else pepper
        if self._pepper is not None and len(self._pepper) < 16:
            raise UsageError("the pepper of API keys is too short", fix="give 16 bytes or more of random text")

    def bind_server(self, identity: ServerIdentity) -> None:
        """See `Auth.bind_server`."""
        self._store.bind_server(identity)

    async def check_token(self, token: str) -> Principal:
        """The holder of a key. Raises TokenRefused if it is unknown, revoked or expired.

        Raises IssuerUnavailable while keys cannot be checked: nobody is let in, and no client should give up its key.
        """
        form = _TOKEN.fullmatch(token)
        if form is None:
            raise TokenRefused("format: it is not an API key of defserve")
        try:
            key = await self._find(form[1])
            if key is None:
                raise TokenRefused("unknown: no API key has its id, or the key was revoked")
            if not hmac.compare_digest(key.hash, self._hash(token)):
                raise TokenRefused("unknown: an API key has its id, and another secret")
            if key.is_expired(self._clock()):
                expiry = format_utc_time(key.expires_at or 0)
                raise TokenRefused(
                    f"expired: the API key expired at {expiry}", {"principal": key.principal, "key": key.id}
                )
            principal = key.make_principal()  # fails for the permissions of a newer version
            await self._touch(key)
        except DefserveError as error:
            log.error("API keys cannot be checked: %s", error)
            raise IssuerUnavailable(f"API keys cannot be checked: {error}") from None
        return principal

    async def check_ready(self) -> None:
        """Raises IssuerUnavailable while keys cannot be checked."""
        try:
            await self._store.get(API_KEYS_SPACE, (_NOBODYS,))
        except DefserveError as error:
            raise IssuerUnavailable(f"API keys cannot be checked: {error}") from None

    def check_settings(self) -> None:
        """Raises UsageError for a file of keys that cannot be used until somebody fixes it."""
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
        convert_permissions_to_scopes(given)
        Principal(principal)
        for name, count in (("per_minute", per_minute), ("per_hour", per_hour), ("expires_in", expires_in)):
            if count is not None and not count > 0:  # also NaN
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
            scopes=parse_scopes(scopes),
            per_minute=per_minute,
            per_hour=per_hour,
        )
        await self._store.change(StoreChange(API_KEYS_SPACE, {id: _encode_entry(asdict(key))}))
        return NewKey(token, key)

    async def keys(self) -> list[ApiKey]:
        """All keys, the oldest first."""
        # In a store of 0.1.0, the secret of its checkpoints is in the same space.
        found = [_decode_key(id, value) async for id, value in self._store.scan(API_KEYS_SPACE) if _ID.fullmatch(id)]
        return sorted(found, key=lambda key: key.created_at)

    async def revoke(self, id: str) -> bool:
        """Delete a key, so that it is no longer accepted. Returns whether there was one."""
        # It is not read: one that is damaged must go as well.
        if not _ID.fullmatch(id) or id not in await self._store.get(API_KEYS_SPACE, (id,)):
            return False
        was_there = await self._store.change(StoreChange(API_KEYS_SPACE, drop=(id,)))
        if (announce := getattr(self._store, "announce", None)) is not None:
            with suppress(DefserveError):  # who is not told finds out a little later
                await announce(API_KEYS_SPACE, id)
        return was_there

    @property
    def revocations(self) -> Callable[[], AsyncGenerator[str]] | None:
        """Follows what is revoked in any process: names of credentials, or an empty one if some may have been missed.

        None if the store tells nobody.
        """
        follow = getattr(self._store, "follow", None)
        return partial(_follow_revocations, follow) if follow is not None else None

    async def close(self) -> None:
        """Close a store that was opened here."""
        close = getattr(self._store, "close", None)
        if self._owns and close is not None:
            await close()

    async def _find(self, id: str) -> ApiKey | None:
        found = (await self._store.get(API_KEYS_SPACE, (id,))).get(id) if _ID.fullmatch(id) else None
        return None if found is None else _decode_key(id, found)

    async def _touch(self, key: ApiKey) -> None:
        now = self._clock()
        if key.last_used is not None and 0 <= now - key.last_used < TOUCH:  # a clock may be set back
            return
        try:
            before, after = _encode_entry(asdict(key)), _encode_entry(asdict(replace(key, last_used=now)))
            # Only if the key is unchanged: one that is revoked at this moment must not come back.
            await self._store.change(StoreChange(API_KEYS_SPACE, {key.id: after}, expect={key.id: before}))
        except DefserveError as error:
            log.warning("the use of API key %s could not be noted: %s", key.id, error)

    def _hash(self, token: str, *, make: bool = False) -> str:
        if self._pepper is None:
            text = read_secret_setting(os.environ.get(VARIABLE, "").strip(), VARIABLE).encode()
            self._pepper = text or load_secret_file(
                get_user_file_path("keys.pepper"), PEPPER, make=make, fix=f"set {VARIABLE}"
            )
        return hmac.new(self._pepper, token.encode(), hashlib.sha256).hexdigest()


async def describe_missing_keys(keys: ApiKeys, *, opens_store: bool = True) -> tuple[str, str] | None:
    """What to tell an operator who has made no keys yet, and the fix; None if there are keys, or it cannot be seen.

    Without `opens_store`, only a file of keys is looked at.
    """
    store = keys._store  # pyright: ignore[reportPrivateUsage] - of this module
    place = str(store.path) if isinstance(store, KeyFile) else ""
    if not place and not opens_store:
        return None
    try:
        if await keys.keys():
            return None
    except DefserveError:  # the calls will say so
        return None
    option = "" if place == DEFAULT_KEYS_FILE else f" --store {place or 'STORE'}"
    fix = f"make one: defserve keys create NAME --allow 'ToolInvoke(*)' --out NAME.key{option}"
    return f"there are no API keys yet{f' in {place}' if place else ''}, so no caller has one", fix


async def find_ended_credentials(keys: ApiKeys, credentials: Iterable[str]) -> set[str]:
    """Those of the credentials that name a key which was revoked or has expired. Raises what the store raises."""
    store, clock = keys._store, keys._clock  # pyright: ignore[reportPrivateUsage] - of this module
    prefix, ended = _credential(""), set[str]()
    ids = [each.removeprefix(prefix) for each in credentials if each.startswith(prefix)]
    found = await store.get(API_KEYS_SPACE, ids) if ids else {}
    for id in ids:
        with suppress(StoreCorrupt):
            if id not in found or _decode_key(id, found[id]).is_expired(clock()):
                ended.add(_credential(id))
    return ended


def is_store_address(store: str) -> bool:
    """Whether this is the address of a store rather than the path of a file."""
    return store.startswith(("memory:", *SHARED_STORE_SCHEMES))


def _open_store(store: str | os.PathLike[str] | KeyStore, identity: ServerIdentity | None) -> ServerStore | KeyFile:
    if isinstance(store, os.PathLike) or (isinstance(store, str) and not is_store_address(store)):
        return KeyFile(store, identity)
    if not isinstance(store, str) and hasattr(store, "bind_server"):
        return cast("ServerStore | KeyFile", store)
    return make_server_store(cast("str | Store", store), identity, what="ApiKeys(…)")


async def _follow_revocations(follow: Callable[[str], AsyncGenerator[str]]) -> AsyncGenerator[str]:
    async with aclosing(follow(API_KEYS_SPACE)) as announced:
        async for id in announced:
            yield _credential(id) if id else ""


def _credential(id: str) -> str:
    return f"key:{id}"


def _decode_key(id: str, value: bytes) -> ApiKey:
    """Raises StoreCorrupt."""
    try:
        kept: dict[str, Any] = json.loads(value)
        lists: dict[str, Any] = {name: tuple(kept[name]) for name in ("permissions", "scopes")}
        key = ApiKey(**{**kept, **lists})
        _check_types((key.id, key.principal, key.hash, *key.permissions, *key.scopes), str)
        numbers = (key.last_used, key.expires_at, key.per_minute, key.per_hour)
        _check_types((key.created_at, *(number for number in numbers if number is not None)), (int, float))
        return key
    except (ValueError, TypeError, KeyError):
        raise StoreCorrupt(f"the API key {id} in the store cannot be read: revoke it, and make another") from None


def _check_types(values: Iterable[object], kind: type | tuple[type, ...]) -> None:
    """Somebody may have edited the file."""
    if not all(isinstance(value, kind) for value in values):
        raise TypeError


# -- API keys in a JSON file that its user alone can read. One process at a time replaces it as a whole.
#
# `{"format": {"version": 2, "server": "name=notes"}, "keys": {"<id>": {…}}}`. A file has the keys of one server: of
# that which uses it first, if nobody has named it. Every other server is refused. A file of format 1 (0.1.0) names no
# server and is otherwise the same.


FORMAT: Final = 2
LOCK_SECONDS: Final = 2.0
POLL_SECONDS: Final = 0.01

T = TypeVar("T")


class KeyFile:
    """The part of a `Store` that keys need. `identity` is the server whose keys these are, if it is known."""

    def __init__(self, path: str | os.PathLike[str], identity: ServerIdentity | None = None) -> None:
        self.path, self._identity = Path(path), identity
        self._seen: tuple[int, int, int] | None = None
        self._known: dict[str, dict[str, Any]] = {}

    def bind_server(self, identity: ServerIdentity) -> None:
        """Say which server uses this file. Raises UsageError if this object is another server's."""
        self._identity = require_same_owner(f"ApiKeys({str(self.path)!r})", self._identity, identity)

    def check(self) -> None:
        """Raises UsageError if the file is there and cannot be used."""
        try:
            self._load_content()
        except StoreUnavailable as error:
            fix = f"restore {self.path} from a backup, or move it away and make new keys: defserve keys create"
            raise UsageError(error.message, fix=fix) from None

    async def get(self, space: str, names: Sequence[str]) -> dict[str, bytes]:
        held = self._load_content().get(space, {})
        return {name: _encode_entry(held[name]) for name in names if name in held}

    async def scan(self, space: str) -> AsyncIterator[tuple[str, bytes]]:
        for name, value in self._load_content().get(space, {}).items():
            yield name, _encode_entry(value)

    async def change(self, change: StoreChange) -> bool:
        from anyio.to_thread import run_sync

        return await run_sync(self._change, change)

    def _change(self, change: StoreChange) -> bool:
        with self._hold_lock():
            held = self._read_content()
            self._check_server(held)
            space = dict(held.get(change.space, {}))
            for name, value in change.expect.items():
                if (_encode_entry(space[name]) if name in space else None) != value:
                    return False
            space.update({name: json.loads(value) for name, value in change.put.items()})
            for name in change.drop:
                space.pop(name, None)
            self._write({**held, change.space: space})
            return True

    def _write(self, held: dict[str, dict[str, Any]]) -> None:
        server = self._identity.label if self._identity is not None else held.get("format", {}).get("server")
        about = {"version": FORMAT, **({"server": server} if server else {})}
        text = json.dumps({**held, "format": about}, indent=2) + "\n"
        self._with_store_errors(lambda: replace_file(self._resolve_path(), text.encode()))

    def _resolve_path(self) -> Path:
        """Where the file is. Links are followed, so that it has one content and one lock under all its names."""
        return Path(os.path.realpath(self.path))

    def _check_server(self, held: dict[str, dict[str, Any]]) -> bool:
        """Whether the file names this server; not if it names none. Raises StoreUnavailable if it names another."""
        server = held.get("format", {}).get("server")
        if self._identity is None or server == self._identity.label:
            return True
        if server is not None:
            raise StoreUnavailable(
                f"the file of API keys {self.path} has the keys of the server {str(server)[:MAX_LABEL_LENGTH]}, "
                f"and this is {self._identity.label}: give this server a file of its own"
            )
        return False

    def _claim(self) -> None:
        """Write whose keys these are into a file that names no server. Another server may be first."""
        with self._hold_lock():
            held = self._read_content()
            if not self._check_server(held):
                try:
                    self._write(held)
                except StoreUnavailable:
                    raise StoreUnavailable(
                        f"the file of API keys {self.path} does not say which server it is for, and cannot be written; "
                        f"say it once: defserve keys list --store {self.path} --server NAME"
                    ) from None

    @contextmanager
    def _hold_lock(self) -> Generator[None]:
        """Hold the lock. Others wait for it for up to LOCK_SECONDS, and then raise StoreBusy."""
        path, until = self._resolve_path(), time.monotonic() + LOCK_SECONDS
        lock = path.with_name(f"{path.name}.lock")
        while True:
            try:
                file = open_locked_file(lock, "the lock of the API keys,")
                give_to_owner_of(path, file)
                break
            except UsageError as error:
                if not lock.exists():
                    raise
                if time.monotonic() > until:
                    raise StoreBusy(error.problem) from None
                time.sleep(POLL_SECONDS)
        try:
            yield
        finally:
            os.close(file)

    def _load_content(self) -> dict[str, dict[str, Any]]:
        """The content of the file, read again only after it was replaced."""
        try:
            status = self._with_store_errors(self.path.stat)
        except FileNotFoundError:
            return {}
        seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        if seen != self._seen:
            held = self._read_content()
            if not self._check_server(held):
                self._claim()
                return self._load_content()
            self._known, self._seen = held, seen
        return self._known

    def _read_content(self) -> dict[str, dict[str, Any]]:
        try:
            data = self._with_store_errors(lambda: read_private_file(self.path, "the file of API keys"))
        except FileNotFoundError:
            return {}
        try:
            held: Any = json.loads(data)
        except ValueError:
            held = None
        if not is_object(held) or not all(map(is_object, held.values())):
            raise StoreCorrupt(f"the file of API keys {self.path} is damaged: it is not the JSON that was written")
        version = held.get("format", {}).get("version", 1)
        if not isinstance(version, int) or version > FORMAT:
            raise StoreUnavailable(make_newer_format_message(f"the file of API keys {self.path}", version, FORMAT))
        return held

    def _with_store_errors(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreUnavailable(f"the file of API keys {self.path} cannot be used: {error.strerror}") from None


def _encode_entry(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
