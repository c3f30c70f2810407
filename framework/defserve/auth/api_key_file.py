"""API keys in a JSON file that its user alone can read. One process at a time replaces it as a whole.

`{"format": {"version": 2, "server": "name=notes"}, "keys": {"<id>": {…}}}`. A file has the keys of one server: of that
which uses it first, if nobody has named it. Every other server is refused. A file of format 1 (0.1.0) names no server
and is otherwise the same.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from defserve.errors import UsageError
from defserve.stores.files import open_locked, read_private, replace
from defserve.stores.formats import newer_format
from defserve.stores.identity import MAX_LABEL, ServerIdentity, check_owner
from defserve.stores.store import StoreBusy, StoreChange, StoreCorrupt, StoreUnavailable
from defserve.wire.jsonvalue import is_object

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
        self._identity = check_owner(f"ApiKeys({str(self.path)!r})", self._identity, identity)

    def check(self) -> None:
        """Raises UsageError if the file is there and cannot be used."""
        try:
            self._held()
        except StoreUnavailable as error:
            fix = f"restore {self.path} from a backup, or move it away and make new keys: defserve keys create"
            raise UsageError(error.message, fix=fix) from None

    async def get(self, space: str, names: Sequence[str]) -> dict[str, bytes]:
        held = self._held().get(space, {})
        return {name: _packed(held[name]) for name in names if name in held}

    async def scan(self, space: str) -> AsyncIterator[tuple[str, bytes]]:
        for name, value in self._held().get(space, {}).items():
            yield name, _packed(value)

    async def change(self, change: StoreChange) -> bool:
        from anyio.to_thread import run_sync

        return await run_sync(self._change, change)

    def _change(self, change: StoreChange) -> bool:
        with self._locked():
            held = self._read()
            self._check_server(held)
            space = dict(held.get(change.space, {}))
            for name, value in change.expect.items():
                if (_packed(space[name]) if name in space else None) != value:
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
        self._with_store_errors(lambda: replace(self.path, text.encode()))

    def _check_server(self, held: dict[str, dict[str, Any]]) -> bool:
        """Whether the file names this server; not if it names none. Raises StoreUnavailable if it names another."""
        server = held.get("format", {}).get("server")
        if self._identity is None or server == self._identity.label:
            return True
        if server is not None:
            raise StoreUnavailable(
                f"the file of API keys {self.path} has the keys of the server {str(server)[:MAX_LABEL]}, and this is "
                f"{self._identity.label}: give this server a file of its own"
            )
        return False

    def _claim(self) -> None:
        """Write whose keys these are into a file that names no server. Another server may be first."""
        with self._locked():
            held = self._read()
            if not self._check_server(held):
                try:
                    self._write(held)
                except StoreUnavailable:
                    raise StoreUnavailable(
                        f"the file of API keys {self.path} does not say which server it is for, and cannot be written; "
                        f"say it once: defserve keys list --store {self.path} --server NAME"
                    ) from None

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Hold the lock. Others wait for it for up to LOCK_SECONDS, and then raise StoreBusy."""
        lock, until = self.path.with_name(f"{self.path.name}.lock"), time.monotonic() + LOCK_SECONDS
        while True:
            try:
                file = open_locked(lock, "the lock of the API keys,")
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

    def _held(self) -> dict[str, dict[str, Any]]:
        """The content of the file, read again only after it was replaced."""
        try:
            status = self._with_store_errors(self.path.stat)
        except FileNotFoundError:
            return {}
        seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        if seen != self._seen:
            held = self._read()
            if not self._check_server(held):
                self._claim()
                return self._held()
            self._known, self._seen = held, seen
        return self._known

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            data = self._with_store_errors(lambda: read_private(self.path, "the file of API keys"))
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
            raise StoreUnavailable(newer_format(f"the file of API keys {self.path}", version, FORMAT))
        return held

    def _with_store_errors(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreUnavailable(f"the file of API keys {self.path} cannot be used: {error.strerror}") from None


def _packed(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
