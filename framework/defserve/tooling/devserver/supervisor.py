"""Starts a child, lets it serve when it is ready, and replaces it on every change. A failed start changes nothing."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from itertools import count
from pathlib import Path
from time import monotonic, time
from typing import Any, Protocol

from defserve.tooling.devserver.plan import ServePlan
from defserve.tooling.devserver.process import ServerProcess
from defserve.tooling.devserver.watched_files import Snapshot, WatchedFiles

# A child that crashes sooner would crash again.
PROVEN_SECONDS = 1.0


class ClientFront(Protocol):
    """What clients are connected to, whichever child serves them."""

    async def admit(self, child: ServerProcess) -> None:
        """Wait until a child is ready to serve. Raises NotServing; may wait for ever."""
        ...

    def adopt(self, child: ServerProcess, previous: ServerProcess | None) -> None:
        """Let this child serve. The previous one finishes its running calls."""
        ...

    def lost(self, child: ServerProcess) -> None:
        """The child that served has ended by itself."""
        ...


class ReloadSupervisor:
    """Runs until it is cancelled."""

    def __init__(self, plan: ServePlan, front: ClientFront, files: WatchedFiles, folder: Path) -> None:
        self._plan, self._front, self._files, self._folder = plan, front, files, folder
        self._numbers = count(1)
        self.current: ServerProcess | None = None

    async def run(self) -> None:
        while True:
            before = self._files.snapshot()
            began = monotonic()
            if await self._replace(before):
                continue  # a file changed while the child started
            if self.current is not None and not await self._wait_for_change(before):
                say("the server ended by itself")
                if monotonic() - began > PROVEN_SECONDS:
                    continue
            if self.current is None:
                say("waiting for a change")
                self._report_changes(await self._files.changed(before))

    async def _replace(self, before: Snapshot) -> bool:
        """Try a new child. True if files changed before it was ready."""
        started = time()
        child = await ServerProcess.start(self._plan, self._folder / f"files-{next(self._numbers)}")
        try:
            ready, _, news = await first(self._front.admit(child), child.exited(), self._files.changed(before))
        except BaseException:
            await child.kill()
            raise
        self._files.add(child.files())
        self._files.add_trees(child.folders())
        self._files.adopt(before, started)
        error = ready.exception() if ready is not None else None
        if ready is not None and error is None:
            previous, self.current = self.current, child
            self._front.adopt(child, previous)
            return False
        if news is not None and ready is None:
            await child.kill()
            self._report_changes(news.result())
            return True
        await child.end(PROVEN_SECONDS)
        kept = "; the old one goes on serving" if self.current is not None else ""
        say(f"the server does not start{f': {error}' if error and str(error) else ''}{kept}")
        return False

    async def _wait_for_change(self, before: Snapshot) -> bool:
        """Wait for a reason to start another child. True: files changed. False: this child has ended."""
        assert self.current is not None
        news, gone = await first(self._files.changed(before), self.current.exited())
        if news is None or gone is not None:
            lost, self.current = self.current, None
            self._front.lost(lost)
            return False
        self._report_changes(news.result())
        return True

    def _report_changes(self, paths: list[str]) -> None:
        here = os.getcwd() + os.sep
        say(f"{', '.join(path.removeprefix(here) for path in paths[:3])} changed")


async def first(*work: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any] | None]:
    """Run several coroutines until one has ended. The others are cancelled, and are None in the result."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        late = [task for task in tasks if not task.done()]
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    return [None if task in late else task for task in tasks]


def say(text: str) -> None:
    """Print to stderr, because standard output belongs to the client."""
    print(f"defserve dev: {text}", file=sys.stderr, flush=True)
