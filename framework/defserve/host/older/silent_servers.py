"""Which servers are silent at `server/discover`, or leave: that costs seconds once, then `initialize` comes first.

A program remembers for as long as it runs. The command line, which runs anew for each command, remembers in a file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final, cast

from defserve.wire.jsonvalue import is_object

MAX_SERVERS: Final = 256
MAX_FILE_BYTES: Final = 64 * 1024
REMEMBERED_SECONDS: Final = 30 * 86_400.0
_KEY_LENGTH: Final = 32


class SilentServers:
    """Servers by their target: a command or an address. Only a digest is kept, because both may hold secrets."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}
        self._file = ""

    def use_file(self, path: str) -> None:
        """Remember in a file too. One that cannot be read or written is as good as none."""
        if path != self._file:
            self._file = path
            self._since = {**_read(path), **self._since}

    def has(self, target: str) -> bool:
        """Whether a server was silent in the last days. An empty target is unknown."""
        since = self._since.get(_key(target)) if target else None
        return since is not None and self._clock() - REMEMBERED_SECONDS < since <= self._clock()

    def add(self, target: str) -> None:
        if target and not self.has(target):
            self._since[_key(target)] = self._clock()
            while len(self._since) > MAX_SERVERS:
                del self._since[min(self._since, key=lambda key: self._since[key])]
            self._write()

    def discard(self, target: str) -> None:
        if self._since.pop(_key(target), None) is not None:
            self._write()

    def clear(self) -> None:
        """Forget all, and the file."""
        self._since, self._file = {}, ""

    def _write(self) -> None:
        if not self._file:
            return
        draft = f"{self._file}.{os.getpid()}"
        try:
            os.makedirs(os.path.dirname(self._file), mode=0o700, exist_ok=True)
            with open(draft, "w", encoding="utf-8") as file:
                json.dump(self._since, file)
            os.replace(draft, self._file)
        except OSError:
            return


SILENT_SERVERS: Final = SilentServers()
"""Those of this process."""


def cache_file() -> str:
    """Where the command line remembers."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(folder, "defserve", "silent-servers.json")


def _key(target: str) -> str:
    return sha256(target.encode()).hexdigest()[:_KEY_LENGTH]


def _read(path: str) -> dict[str, float]:
    try:
        with open(path, "rb") as file:
            content: Any = json.loads(file.read(MAX_FILE_BYTES + 1))
    except (OSError, ValueError, RecursionError):
        return {}
    if not is_object(content):
        return {}
    items = [(key, since) for key, since in content.items() if _is_time(since) and len(key) == _KEY_LENGTH]
    return {key: float(since) for key, since in items[:MAX_SERVERS]}


def _is_time(since: object) -> bool:
    """Whether it is a number of seconds. An integer may be larger than any float."""
    return type(since) in (int, float) and 0 <= cast(float, since) < 2**53
