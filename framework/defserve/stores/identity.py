"""Who a stored or sealed value belongs to. Every key of a store, every channel and every sealing key is made here.

A server is known by its namespace, else by its resource URL, else by its name. Servers that share a Redis, a file or a
secret therefore share nothing else. Processes of one server have one identity, and share everything. It never depends
on what a client sends, or on the port that is served. A URL counts together with the name, because servers of different
names may be given one audience.

    server:name=notes:state:["notes.edit","alice"]      a space of a store
    defserve:server:name=notes:shared:session:…         a key of the Redis through which processes share sessions

The parts of an identity are percent-encoded, so that no two identities begin alike. `open_store` opens the store at an
address.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from types import CoroutineType
from typing import Any, Final, Literal, NamedTuple, cast, get_args
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from defserve.errors import UsageError
from defserve.stores.store import SERVER_SPACES, Space, SpaceFamily, Store, StoreChange

NAMESPACE_VARIABLE: Final = "DEFSERVE_NAMESPACE"
MAX_LABEL_LENGTH: Final = 512
_LABEL: Final = b"defserve key v2"

IdentitySource = Literal["namespace", "url", "name", "none"]


class ServerIdentity(NamedTuple):
    """Which server something belongs to. `source` says what it is known by; `name` stands beside a URL only."""

    source: IdentitySource
    value: str
    name: str = ""

    @property
    def label(self) -> str:
        """The identity as one word, for keys and for people: `name=notes`, `url=https%3A%2F%2F…,notes`."""
        return f"{self.source}={_quote(self.value)}{',' if self.name else ''}{_quote(self.name)}"

    def make_prefix(self, base: str = "") -> str:
        """What every key of this server begins with, after `base`."""
        return f"{base}{SERVER_SPACES}{self.label}:"

    def derive_key(self, secret: bytes, purpose: str) -> bytes:
        """The key, of 32 bytes, that seals values of this server for one purpose. No other pair has the same one."""
        import hmac

        texts = (self.source, self.value, self.name, purpose)
        parts = (_LABEL, *(text.encode("utf-8", "surrogatepass") for text in texts))
        # Each part has its length before it, so that no two lists of parts have the same bytes.
        return hmac.digest(secret, b"".join(len(part).to_bytes(8, "big") + part for part in parts), "sha256")


def _quote(text: str) -> str:
    return quote(text, safe="", errors="surrogatepass")


NO_SERVER_IDENTITY: Final = ServerIdentity("none", "")
"""The identity of what was given to no server. It is nobody else's."""


def identify_server(name: str, *, namespace: str | None = None, url: str = "") -> ServerIdentity:
    """The identity of a server. Without a `namespace`, the variable DEFSERVE_NAMESPACE names one."""
    if given := namespace or os.environ.get(NAMESPACE_VARIABLE):
        return ServerIdentity("namespace", given)
    return ServerIdentity("url", _normalize_url(url), name) if url else ServerIdentity("name", name)


def require_same_owner(what: str, owner: ServerIdentity | None, identity: ServerIdentity) -> ServerIdentity:
    """The server that something is given to. Raises UsageError if its `owner` is another one."""
    if owner is not None and owner != identity:
        raise UsageError(
            f"{what} belongs to the server {owner.label}, and is given to {identity.label} too",
            fix="make one for each server, or give the servers one namespace: Server(…, namespace=…)",
        )
    return identity


def parse_identity(text: str) -> ServerIdentity:
    """The identity that a command line names: a server's name, its URL and name (`https://…/mcp,notes`), or a label.

    Labels are `namespace=staging`, `name=notes` and `url=https://…/mcp,notes`.
    """
    source, equals, value = text.partition("=")
    if not equals or source not in get_args(IdentitySource):
        source, value = ("url", text) if "://" in text else ("name", _quote(text))
    if source != "url":
        return ServerIdentity(cast(IdentitySource, source), unquote(value, errors="surrogatepass"))
    url, comma, name = value.rpartition(",")
    url, name = (unquote(part, errors="surrogatepass") for part in ((url, name) if comma else (name, "")))
    return ServerIdentity("url", _normalize_url(url), name)


def _normalize_url(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit((parts.scheme.lower(), parts.netloc.lower(), parts.path.rstrip("/"), parts.query, ""))


class ServerStore:
    """The part of a store that is one server's: a Store whose spaces all name it.

    Until it has an identity, only a store in the memory of this process can be used. Any other raises UsageError, in
    which `what` is the thing that was given to no server.
    """

    __slots__ = ("raw", "_identity", "_prefix", "_what")

    def __init__(self, store: Store, identity: ServerIdentity | None = None, *, what: str = "this store") -> None:
        self.raw, self._what = store, what
        self._identity: ServerIdentity | None = None
        self._prefix: str | None = None
        if identity is not None:
            self.bind_server(identity)

    @property
    def identity(self) -> ServerIdentity:
        """Whose part it is."""
        return self._identity or NO_SERVER_IDENTITY

    def bind_server(self, identity: ServerIdentity) -> None:
        """Say whose part it is. Raises UsageError if it is another server's already."""
        self._identity = require_same_owner(self._what, self._identity, identity)
        if self._prefix is None:
            self._prefix = identity.make_prefix()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServerStore) and self.raw is other.raw and self._prefix == other._prefix

    def __hash__(self) -> int:
        return hash(id(self.raw))

    # -- as Store ----------------------------------------------------------------------------------------

    def open(self) -> CoroutineType[Any, Any, None]:
        return self.raw.open()

    def get(self, space: Space, names: Sequence[str]) -> CoroutineType[Any, Any, dict[str, bytes]]:
        return self.raw.get(self._name_space(space), names)

    def change(self, change: StoreChange) -> CoroutineType[Any, Any, bool]:
        space, put, drop, expect, ttl, is_durable = change
        return self.raw.change(StoreChange(self._name_space(space), put, drop, expect, ttl, is_durable))

    def scan(self, space: Space) -> AsyncIterator[tuple[str, bytes]]:
        return self.raw.scan(self._name_space(space))

    async def spaces(self, prefix: SpaceFamily) -> AsyncIterator[str]:
        whole = self._name_space(prefix)
        async for name in self.raw.spaces(SpaceFamily(whole)):
            yield name[len(whole) - len(prefix) :]

    def check(self) -> CoroutineType[Any, Any, list[str]]:
        return self.raw.check()

    def close(self) -> CoroutineType[Any, Any, None]:
        return self.raw.close()

    # -- what only some stores have ----------------------------------------------------------------------

    @property
    def announce(self) -> Callable[[Space, str], CoroutineType[Any, Any, None]] | None:
        """See `RedisStore.announce`; None for a store that tells nobody."""
        announce = getattr(self.raw, "announce", None)
        return None if announce is None else lambda space, about: announce(self._name_space(space), about)

    @property
    def follow(self) -> Callable[[Space], Any] | None:
        """See `RedisStore.follow`; None for a store that tells nobody."""
        follow = getattr(self.raw, "follow", None)
        return None if follow is None else lambda space: follow(self._name_space(space))

    @property
    def url(self) -> str | None:
        return getattr(self.raw, "url", None)

    @property
    def path(self) -> Any:
        return getattr(self.raw, "path", None)

    @property
    def is_for_many(self) -> bool:
        return bool(getattr(self.raw, "is_for_many", False))

    def _name_space(self, space: str) -> Space:
        prefix = self._prefix
        if prefix is None:
            from defserve.stores.store import is_in_memory

            if not is_in_memory(self.raw):
                raise UsageError(
                    f"{self._what} was given to no server, so nothing says whose values these are",
                    fix="give it to Server(…) first; ApiKeys and DeniedTokens may name the server: server='notes'",
                )
            # Names stay as they are from here on, so that what was put here before a server had it is not lost.
            prefix = self._prefix = NO_SERVER_IDENTITY.make_prefix()
        return Space(prefix + space)


def make_server_store(store: str | Store, identity: ServerIdentity | None, *, what: str = "this store") -> ServerStore:
    """The part of a store, or of the store at an address, that is a server's. Raises UsageError for a bad address.

    What is another server's part already stands for the whole store. Without an identity it stays as it is.
    """
    if isinstance(store, ServerStore):
        if identity in (None, store.identity):
            return store
        store = store.raw
    if isinstance(store, str):
        store = open_store(store)
    return ServerStore(store, identity, what=what)


async def list_servers(store: Store) -> list[ServerIdentity]:
    """The servers that have anything in a store, by their labels."""
    labels = {name.split(":", 2)[1] async for name in store.spaces(SERVER_SPACES)}
    return [parse_identity(label) for label in sorted(labels)]


async def choose_server_identity(store: Store, name: str | None, *, is_reading: bool = False) -> ServerIdentity:
    """The server whose part of a store a command means: the one it names, DEFSERVE_NAMESPACE, or the only one there.

    Raises UsageError if that is not one server; but who only reads an empty store reads nothing.
    """
    if name:
        wanted = parse_identity(name)
        if wanted.source != "url" or wanted.name:
            return wanted
        found = [each for each in await list_servers(store) if each.value == wanted.value]
        if len(found) == 1:
            return found[0]
        raise UsageError(f"which server at {name} is not clear", fix=f"write its name behind it: --server {name},NAME")
    if given := os.environ.get(NAMESPACE_VARIABLE):
        return ServerIdentity("namespace", given)
    found = await list_servers(store)
    if len(found) == 1:
        return found[0]
    if found:
        labels = ", ".join(each.label[:MAX_LABEL_LENGTH] for each in found)
        raise UsageError(f"the store has values of {len(found)} servers: {labels}", fix="name one of them: --server …")
    if is_reading:
        return NO_SERVER_IDENTITY
    raise UsageError(
        "the store has no values yet, so nothing says which server is meant",
        fix="name it: --server NAME, as in Server(NAME), or URL,NAME, or namespace=NAME",
    )


# -- The store at an address: `memory:`, `sqlite:///notes.db` (`sqlite:////var/lib/notes.db`), `redis://host:6379/0`,
# `postgres://user:password@host:5432/database`.


SHARED_STORE_SCHEMES: Final = (
    *("sqlite:", "redis:", "rediss:", "redis+unix:", "redis+sentinel:"),
    *("postgres:", "postgresql:"),
)
"""How the address of a store begins that outlives a process."""
_FIX: Final = (
    "use 'memory:', 'sqlite:///notes.db', 'sqlite:////var/lib/notes.db', 'redis://localhost:6379/0' "
    "or 'postgres://user:password@localhost:5432/notes'"
)


def open_store(address: str) -> Store:
    """A store that is not connected yet. After `sqlite:///`, an absolute path begins with one more slash.

    Raises UsageError for an address that is not valid.
    """
    scheme, _, rest = address.partition(":")
    match scheme:
        case "memory" if not rest.strip("/"):
            from defserve.stores.store import MemoryStore

            return MemoryStore()
        case "sqlite" if rest.startswith("///") and len(rest) > 3:
            from defserve.stores.sqlite import SqliteStore

            return SqliteStore(rest.removeprefix("///"))
        case "redis" | "rediss" | "redis+unix" | "redis+sentinel" if rest.startswith("//"):
            from defserve.stores.redis import RedisStore

            return RedisStore(f"unix:{rest}" if scheme == "redis+unix" else address)
        case "postgres" | "postgresql" if rest.startswith("//"):
            from defserve.stores.postgres import PostgresStore

            return PostgresStore(address)
        case "sqlite" if rest.strip("/"):
            fix = f"write 'sqlite:///{rest.lstrip('/')}'; an absolute path has four slashes"
            raise UsageError(f"{address!r} is not the address of a store: a slash is missing", fix=fix)
        case _:
            is_file = address.endswith((".db", ".sqlite", ".sqlite3")) and not rest
            fix = f"write 'sqlite:///{address}'" if is_file else _FIX
            raise UsageError(f"{scheme + ':' if rest else address!r} is not the address of a store", fix=fix)
