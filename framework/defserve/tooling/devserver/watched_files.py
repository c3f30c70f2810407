"""The files that a server consists of, and when one of them changes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from importlib import import_module
from pathlib import Path
from typing import TypeAlias

POLL_SECONDS = 0.25
# An editor may write a file in several steps. It is done when nothing changes for this long.
SETTLE_SECONDS = 0.05
STEP_MS = 25
# How far the clock of a file system may be behind.
CLOCK_SECONDS = 0.1

SOURCES = (".py", ".html")

Snapshot: TypeAlias = dict[str, tuple[int, int]]


class WatchedFiles:
    """Single files, and all `*.py` and `*.html` beside them: one may be read later, or not be written yet.

    Of a tree every file is watched, because a server serves it as it is.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self._trees: set[str] = set()
        self.add(paths)

    def add_trees(self, folders: Iterable[str]) -> None:
        """Also watch every file below these folders."""
        self._trees.update(map(os.path.abspath, folders))

    def add(self, paths: Iterable[str]) -> None:
        """Also watch these files, or folders with everything below them."""
        for path in map(os.path.abspath, paths):
            if os.path.isdir(path):
                self._folders.add(path)
                self._folders.update(str(folder) for folder in Path(path).rglob("*") if _is_watched(path, folder))
            else:
                self._files.add(path)
                self._folders.add(os.path.dirname(path))

    def snapshot(self) -> Snapshot:
        """The state of all files now."""
        found: Snapshot = {}
        for folder in self._folders:
            try:
                names = [name for name in os.listdir(folder) if name.endswith(SOURCES)]
            except OSError:
                continue  # it existed when it was added
            _look(found, (os.path.join(folder, name) for name in names))
        _look(found, self._files)
        for tree in self._trees:
            for folder, below, names in os.walk(tree):
                below[:] = [name for name in below if _is_named(name)]
                _look(found, (os.path.join(folder, name) for name in names if _is_named(name)))
        return found

    def adopt(self, before: Snapshot, since: float) -> None:
        """Add to `before` the files that it does not know, and that have not changed `since` then (a time)."""
        latest = (since - CLOCK_SECONDS) * 1e9
        new = {path: seen for path, seen in self.snapshot().items() if path not in before and seen[0] < latest}
        before.update(new)

    async def changed(self, since: Snapshot) -> list[str]:
        """Wait until files differ from `since` and no longer change; return their paths."""
        async for _ in self._pulses():
            if self.snapshot() != since:
                break
        now = self.snapshot()
        while True:
            await asyncio.sleep(SETTLE_SECONDS)
            then, now = now, self.snapshot()
            if then == now:
                return sorted(path for path in {*since, *now} if since.get(path) != now.get(path))

    async def _pulses(self) -> AsyncIterator[None]:
        """When to look: at once, then when the system reports a change; without `watchfiles`, at intervals."""
        yield
        try:
            awatch = import_module("watchfiles").awatch
        except ImportError:
            while True:
                await asyncio.sleep(POLL_SECONDS)
                yield
        folders = [folder for folder in self._folders | self._trees if os.path.isdir(folder)]  # noqa: ASYNC240 - once a change
        # The time-out finds changes made before it began to watch.
        async for _ in awatch(
            *folders,
            watch_filter=None,
            recursive=False,
            debounce=STEP_MS * 2,
            step=STEP_MS,
            rust_timeout=int(POLL_SECONDS * 1000),
            yield_on_timeout=True,
        ):
            yield


def _look(found: Snapshot, paths: Iterable[str]) -> None:
    for path in paths:
        try:
            about = os.stat(path)
        except OSError:
            continue  # a missing file differs from an existing one
        found[path] = about.st_mtime_ns, about.st_size


def _is_watched(root: str, folder: Path) -> bool:
    return folder.is_dir() and all(map(_is_named, folder.relative_to(root).parts))


def _is_named(name: str) -> bool:
    return not name.startswith(".") and name not in ("__pycache__", "node_modules")
