"""The parent of the development server: starts a child, watches its files, and replaces it on every change.

A child that does not start changes nothing.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from itertools import count
from pathlib import Path
from time import monotonic, time
from typing import Any, Protocol, TypeAlias

from defserve.base.backoff import compute_backoff
from defserve.tooling.devserver.handover import DevChildReport, ServePlan, ServerSummary, StartProblem

# A child that crashes sooner would crash again.
PROVEN_SECONDS = 1.0

# Crashes are in a row if none of the children served for longer. The first is started again at once.
STEADY_SECONDS = 30.0
FIRST_PAUSE = 1.0
MAX_PAUSE_SECONDS = 30.0


class ClientFront(Protocol):
    """What clients are connected to, whichever child serves them."""

    async def wait_until_ready(self, child: ServerProcess) -> None:
        """Wait until a child is ready to serve. Raises ChildNotServing; may wait for ever."""
        ...

    def switch_to_child(self, child: ServerProcess, previous: ServerProcess | None) -> None:
        """Let this child serve. The previous one finishes its running calls."""
        ...

    def on_child_exit(self, child: ServerProcess) -> None:
        """The child that served has ended by itself."""
        ...


class DevConsole(Protocol):
    """What a person sees of the development server, and what they want of it."""

    address: str
    """Where it serves; empty on standard input and output. Who serves it sets it."""
    wants_restart: asyncio.Event
    """Set when the server is to be started again, though no file has changed."""

    def show_ready(self, served: ServerSummary | None, seconds: float) -> None:
        """The first server serves."""
        ...

    def show_reload(
        self, paths: list[str], before: ServerSummary | None, served: ServerSummary | None, seconds: float
    ) -> None:
        """Another server serves, because these files changed; without files, because it was started again."""
        ...

    def show_problem(self, problem: StartProblem, *, is_serving: bool) -> None:
        """A server does not start. `is_serving`: the old one still does."""
        ...

    def show_exit(self, code: int, *, restarts_in: float | None) -> None:
        """The server has ended by itself. It is started again in so many seconds; None: only after a change."""
        ...


class ReloadSupervisor:
    """Runs until it is cancelled."""

    def __init__(
        self, plan: ServePlan, front: ClientFront, files: WatchedFiles, folder: Path, console: DevConsole
    ) -> None:
        self._plan, self._front, self._files, self._folder = plan, front, files, folder
        self._console = console
        self._numbers = count(1)
        self._changed: list[str] = []
        self._noticed = monotonic()
        self._has_served = False
        self._crashes = 0
        """Crashes in a row, since a file changed."""
        self._served: ServerSummary | None = None
        self.current: ServerProcess | None = None

    async def run(self) -> None:
        while True:
            before = self._files.snapshot()
            began = monotonic()
            self._console.wants_restart.clear()
            if await self._replace(before):
                continue  # a file changed while the child started
            if self.current is not None and (code := await self._wait_for_change(before)) is not None:
                pause = self._compute_pause(monotonic() - began)
                self._console.show_exit(code, restarts_in=pause)
                self._changed, self._noticed = [], monotonic()
                if pause != 0:
                    await self._wait_while_down(before, pause)
            elif self.current is None:
                await self._wait_while_down(before, None)

    async def _replace(self, before: Snapshot) -> bool:
        """Try a new child. True if files changed before it was ready."""
        started = time()
        child = await ServerProcess.start(self._plan, self._folder / f"files-{next(self._numbers)}")
        try:
            ready, _, news = await run_until_first_ends(
                self._front.wait_until_ready(child), child.wait_for_exit(), self._files.wait_for_change(before)
            )
        except BaseException:
            await child.kill()
            raise
        report = child.read_report()
        self._files.add(report.files)
        self._files.add_trees(report.folders)
        self._files.add_unchanged_files(before, started)
        error = ready.exception() if ready is not None else None
        if ready is not None and error is None:
            previous, self.current = self.current, child
            self._front.switch_to_child(child, previous)
            self._show_served(report.served)
            return False
        if news is not None and ready is None:
            await child.kill()
            self._note_changes(news)
            return True
        await child.stop(PROVEN_SECONDS)
        problem = report.problem or StartProblem("", f"the server does not start{_format_reason(error)}", [])
        self._console.show_problem(problem, is_serving=self.current is not None)
        self._changed = []
        return False

    def _show_served(self, served: ServerSummary | None) -> None:
        seconds = monotonic() - self._noticed
        if self._has_served:
            self._console.show_reload(self._changed, self._served, served, seconds)
        else:
            self._console.show_ready(served, seconds)
        self._has_served, self._served, self._changed = True, served, []

    async def _wait_for_change(self, before: Snapshot) -> int | None:
        """Wait for a reason to start another child. The exit code of this child, if that has ended."""
        assert self.current is not None
        news, _, gone = await run_until_first_ends(
            self._files.wait_for_change(before), self._wait_for_wish(), self.current.wait_for_exit()
        )
        if gone is not None:
            lost, self.current = self.current, None
            self._front.on_child_exit(lost)
            return gone.result()
        self._note_changes(news)
        self._crashes = 0
        return None

    def _compute_pause(self, lasted: float) -> float | None:
        """The seconds until a child that crashed after so many is started again. None: it would crash at once."""
        if lasted <= PROVEN_SECONDS:
            return None
        if lasted > STEADY_SECONDS:
            self._crashes = 0
        self._crashes += 1
        return compute_backoff(self._crashes - 2, FIRST_PAUSE, MAX_PAUSE_SECONDS) if self._crashes > 1 else 0

    async def _wait_while_down(self, before: Snapshot, pause: float | None) -> None:
        """Nothing serves: wait for a change, a wish, or the end of a pause."""
        again = [asyncio.sleep(pause)] if pause is not None else []
        news, wish, *_ = await run_until_first_ends(self._files.wait_for_change(before), self._wait_for_wish(), *again)
        self._note_changes(news)
        if news is not None or wish is not None:
            self._crashes = 0

    async def _wait_for_wish(self) -> None:
        await self._console.wants_restart.wait()

    def _note_changes(self, news: asyncio.Task[Any] | None) -> None:
        """Remember which files changed, and since when somebody waits for a new server."""
        if not self._changed:
            self._noticed = monotonic()
        here = os.getcwd() + os.sep
        paths = [path.removeprefix(here) for path in news.result()] if news is not None else []
        self._changed += [path for path in paths if path not in self._changed]


def _format_reason(error: BaseException | None) -> str:
    return f": {error}" if error is not None and str(error) else ""


async def run_until_first_ends(*work: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any] | None]:
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


# -- A child process as its parent sees it: two pipes, an exit code, and the names of its source files.


MAX_LINE_BYTES = 256 * 1024 * 1024
KILL_SECONDS = 5.0


class ChildNotServing(Exception):
    """A child that runs but does not serve."""


class ServerProcess:
    """A process that serves. It ends when its standard input does; if it is too slow, it is killed."""

    def __init__(self, process: Process, report: Path) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.input, self.output = process.stdin, process.stdout
        self._process, self._report = process, report

    @classmethod
    async def start(cls, plan: ServePlan, report: Path) -> ServerProcess:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            # Without bytecode: Python would use the old one after an edit in the same second that keeps the size.
            "-B",
            # Without the current folder: it is an author's, and the child adds it where it may not shadow libraries.
            "-P",
            "-m",
            "defserve.tooling.devserver.child",
            replace(plan, report=str(report)).to_json(),
            stdin=PIPE,
            stdout=PIPE,
            limit=MAX_LINE_BYTES,
            pass_fds=plan.sockets if os.name == "posix" else (),
        )
        return cls(process, report)

    @property
    def pid(self) -> int:
        return self._process.pid

    def write(self, data: bytes) -> None:
        """Like `send`, without waiting for the child to read."""
        with suppress(ConnectionError, RuntimeError):
            self.input.write(data)

    async def send(self, line: bytes) -> None:
        """Send a line. Does nothing if the child has ended; the end of its output shows that."""
        with suppress(ConnectionError, RuntimeError):
            self.input.write(line)
            await self.input.drain()

    async def wait_for_exit(self) -> int:
        return await self._process.wait()

    async def stop(self, seconds: float = KILL_SECONDS) -> None:
        """Close its standard input, and kill it if it has not ended after `seconds`."""
        self.input.close()
        try:
            async with asyncio.timeout(seconds):
                await self.wait_for_exit()
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self.wait_for_exit()

    def read_report(self) -> DevChildReport:
        """What it has told so far."""
        return DevChildReport.read_file(self._report)


# -- The files that a server consists of, and when one of them changes.


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
                self._folders.update(
                    str(folder)
                    for folder in Path(path).rglob("*")
                    if folder.is_dir() and all(map(_is_named, folder.relative_to(path).parts))
                )
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

    def add_unchanged_files(self, before: Snapshot, since: float) -> None:
        """Add to `before` the files that it does not know, and that have not changed `since` then (a time)."""
        latest = (since - CLOCK_SECONDS) * 1e9
        new = {path: seen for path, seen in self.snapshot().items() if path not in before and seen[0] < latest}
        before.update(new)

    async def wait_for_change(self, since: Snapshot) -> list[str]:
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


def _is_named(name: str) -> bool:
    return not name.startswith(".") and name not in ("__pycache__", "node_modules")
