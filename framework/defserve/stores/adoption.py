"""Gives what 0.1.0 kept in a store to one server. 0.1.0 named no server, so somebody has to say whose it is.

Everything in the store becomes that server's: checkpoints, their secret, API keys, denied tokens, and what ends by
itself. It may be repeated after a failure: what was given already is left alone.
"""

from __future__ import annotations

import hmac
import sqlite3
from pathlib import Path
from typing import Any, Final

from defserve.errors import UsageError
from defserve.stores import store
from defserve.stores.checkpoints.checkpoint_store import OLD_SECRET_NAME, find_old_secret, load_checkpoint_secret
from defserve.stores.identity import ServerIdentity, ServerStore, open_store
from defserve.stores.redis import REDIS_FORMAT_VERSION, RedisAddress, RedisStore
from defserve.stores.sqlite import FIRST_NAMED_FORMAT, SqliteStore, migrate_format
from defserve.stores.store import SECRETS_SPACE, StoreChange

_OLD_LABEL: Final = b"defserve checkpoint ids v1"


async def adopt_store(address: str, identity: ServerIdentity, secret: bytes | None = None) -> int:
    """Make everything that 0.1.0 kept at an address this server's, and return how many spaces that were.

    `secret` is the server's, if it has one: ids of checkpoints that 0.1.0 made with it stay known, and prove nothing.
    Raises UsageError for a store that holds nothing of 0.1.0, and what a store raises.
    """
    store = open_store(address)
    if isinstance(store, RedisStore):
        count = await _adopt_redis(store.address, identity)
    elif isinstance(store, SqliteStore):
        count = _adopt_sqlite(store.path, identity)
    else:
        raise UsageError("only SQLite and Redis were stores of 0.1.0", fix="name a SQLite file or a Redis")
    if not count:
        raise UsageError("the store has nothing of defserve 0.1.0 that names no server", fix="there is nothing to do")
    # Keep what 0.1.0 made ids with, and see to it that new ids are made with something else.
    part = ServerStore(store, identity)
    old = await find_old_secret(part) if secret is None else hmac.digest(secret, _OLD_LABEL, "sha256")
    if old is not None:
        await part.change(StoreChange(SECRETS_SPACE, put={OLD_SECRET_NAME: old}, expect={OLD_SECRET_NAME: None}))
    await load_checkpoint_secret(part, secret, identity)
    await store.close()
    return count


def _is_unnamed(space: str) -> bool:
    """Whether a space is one of 0.1.0, which belongs to a server."""
    named = [
        name for name in store.SPACE_DESCRIPTIONS if name not in (*store.SPACES_WITHOUT_SERVER, store.SERVER_SPACES)
    ]
    return any(space.startswith(name) if name.endswith(":") else space == name for name in named)


def _adopt_sqlite(path: Path, identity: ServerIdentity) -> int:
    # SQLite would make an empty file of a wrong name.
    connection = sqlite3.connect(path.absolute().as_uri() + "?mode=rw", uri=True, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        found: int = connection.execute("PRAGMA user_version").fetchone()[0]
        if not 0 < found <= FIRST_NAMED_FORMAT:
            return 0
        migrate_format(connection, found)
        unnamed = [space for (space,) in connection.execute("SELECT DISTINCT space FROM entries") if _is_unnamed(space)]
        for space in unnamed:
            connection.execute("UPDATE entries SET space = ? WHERE space = ?", (identity.make_prefix() + space, space))
        connection.execute("COMMIT")
        return len(unnamed)
    finally:
        connection.close()


async def _adopt_redis(address: RedisAddress, identity: ServerIdentity) -> int:
    client: Any = address.client()
    count = 0
    try:
        with address.raising_store_errors():
            for key in [key.decode(errors="surrogateescape") async for key in client.scan_iter(count=1000)]:
                space = key.removeprefix(address.prefix)
                if key.startswith(address.prefix) and _is_unnamed(space):
                    count += bool(await client.renamenx(key, identity.make_prefix(address.prefix) + space))
            await client.hset(address.prefix + store.FORMAT_SPACE, "version", REDIS_FORMAT_VERSION)
    finally:
        await client.aclose()
    return count
