"""API keys in a JSON file that its user alone can read. One process at a time replaces it as a whole.

`{"format": {"version": 1}, "keys": {"<id>": {…}}}`. A file of 0.1.0 has no `format` and is otherwise the same.
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
from defserve.stores.store import StoreBusy, StoreChange, StoreCorrupt, StoreUnavailable
from defserve.wire.jsonvalue import is_object

FORMAT: Final = 1
LOCK_SECONDS: Final = 2.0
POLL_SECONDS: Final = 0.01

T = TypeVar("T")


class KeyFile:
    """The part of a `Store` that keys need."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._seen: tuple[int, int, int] | None = None
        self._known: dict[str, dict[str, Any]] = {}

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
            space = dict(held.get(change.space, {}))
            for name, value in change.expect.items():
                if (_packed(space[name]) if name in space else None) != value:
                    return False
            space.update({name: json.loads(value) for name, value in change.put.items()})
            for name in change.drop:
                space.pop(name, None)
            text = json.dumps({**held, "format": {"version": FORMAT}, change.space: space}, indent=2) + "\n"
            self._with_store_errors(lambda: replace(self.path, text.encode()))
            return True

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
            self._known, self._seen = self._read(), seen
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
        version = held.get("format", {}).get("version", FORMAT)
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
