"""The store at an address: `memory:`, `sqlite:///notes.db` (`sqlite:////var/lib/notes.db`), `redis://host:6379/0`."""

from __future__ import annotations

from defserve.errors import UsageError
from defserve.stores.store import Store

_FIX = "use 'memory:', 'sqlite:///notes.db', 'sqlite:////var/lib/notes.db' or 'redis://localhost:6379/0'"


def open_store(address: str) -> Store:
    """A store that is not connected yet. After `sqlite:///`, an absolute path begins with one more slash.

    Raises UsageError for an address that is not valid.
    """
    scheme, _, rest = address.partition(":")
    match scheme:
        case "memory" if not rest.strip("/"):
            from defserve.stores.memory import MemoryStore

            return MemoryStore()
        case "sqlite" if rest.startswith("///") and len(rest) > 3:
            from defserve.stores.sqlite.store import SqliteStore

            return SqliteStore(rest.removeprefix("///"))
        case "redis" | "rediss" | "redis+unix" | "redis+sentinel" if rest.startswith("//"):
            from defserve.stores.redis import RedisStore

            return RedisStore(f"unix:{rest}" if scheme == "redis+unix" else address)
        case "sqlite" if rest.strip("/"):
            fix = f"write 'sqlite:///{rest.lstrip('/')}'; an absolute path has four slashes"
            raise UsageError(f"{address!r} is not the address of a store: a slash is missing", fix=fix)
        case _:
            raise UsageError(f"{scheme + ':' if rest else address!r} is not the address of a store", fix=_FIX)
