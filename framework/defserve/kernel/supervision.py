"""What a kernel does while it serves: it probes its servers, tells of their changes, can be operated, and reloads."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from defserve.base.background import BackgroundTasks
from defserve.core.extension import Extension, Handler, Offer, Wrapper
from defserve.errors import DefserveError
from defserve.kernel.control.listener import controlled
from defserve.kernel.control.verbs import Operations
from defserve.kernel.idling import end_when_idle
from defserve.kernel.members import Member
from defserve.kernel.methods import KernelMethods, OperatedKernel
from defserve.kernel.notices import LifecycleNotices
from defserve.kernel.operating.tools import add_operator_tools
from defserve.kernel.probing import probe

log = logging.getLogger("defserve.kernel")

WATCH_SECONDS: Final = 1.0
SETTLE_SECONDS: Final = 0.2
"""A file that is not written any more for so long is complete."""
TOLD: Final = ("added", "removed", "restarted", "adjusted", "failed", "needs_start")


class Supervised(Operations, OperatedKernel, Protocol):
    """The part of a kernel that supervision uses."""

    @property
    def is_behind(self) -> bool: ...
    async def refresh(self) -> None: ...


class Supervision(Extension):
    """The kernel as an extension of its own server. It begins and ends with the server's lifespan."""

    name = "kernel"

    def __init__(self, kernel: Supervised) -> None:
        self._kernel = kernel
        self._methods = KernelMethods(kernel)
        add_operator_tools(kernel.server, self._methods.tools())
        self._notices = LifecycleNotices(kernel.server)
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reloads = BackgroundTasks()
        self._problem = ""

    def watch(self, member: Member) -> None:
        """A server has a backend now."""
        assert member.backend is not None
        member.backend.watch(lambda change: self._notices.tell(member, change))
        if self._loop is not None:
            self._begin(member)

    def forget(self, member: Member) -> None:
        """A server is gone for good."""
        for task in self._tasks.pop(member.id, ()):
            task.cancel()

    def negotiate(self, offer: Offer) -> object:
        return self

    def methods(self) -> Mapping[str, Handler]:
        return self._methods.methods()

    def around(self) -> Mapping[str, Wrapper]:
        return self._methods.around()

    def lifespan(self) -> AbstractAsyncContextManager[Any]:
        return self._serving()

    @asynccontextmanager
    async def _serving(self) -> AsyncGenerator[None]:
        self._loop = asyncio.get_running_loop()
        for member in self._kernel.members.values():
            if member.backend is not None:
                self._begin(member)
            elif member.problem:
                log.warning("%s is not started: %s\n  fix: %s", member.id, member.problem, member.fix)
        watching = asyncio.create_task(self._watch_file(), name="defserve kernel file")
        hears = _on_hangup(self._loop, lambda: self._reload_later("SIGHUP"))
        try:
            async with controlled(self._kernel.config.path, self._kernel):
                yield
        finally:
            if hears:
                self._loop.remove_signal_handler(signal.SIGHUP)
            self._loop = None
            tasks = [watching, *self._reloads, *(task for each in self._tasks.values() for task in each)]
            self._tasks.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, member: Member) -> None:
        self.forget(member)
        self._tasks[member.id] = [
            asyncio.create_task(work(member), name=f"defserve kernel {work.__name__} {member.id}")
            for work in (probe, end_when_idle)
        ]

    # -- reload --------------------------------------------------------------------------------------------

    async def _watch_file(self) -> None:
        """Reload when the file, or one that it includes, has changed and is complete. Whatever fails, this goes on."""
        known, tried = self._signature(), None
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            await self._refresh()
            found = self._signature()
            if not self._kernel.config.settings.watch:
                known = found
            elif found != known:
                await asyncio.sleep(SETTLE_SECONDS)
                if self._signature() == found:
                    await self._reload("it has changed")
                    # Not as the files are now: one may have been saved while old servers finished their calls.
                    known = {path: found.get(path, stamp) for path, stamp in self._signature().items()}
            elif found != tried and self._kernel.is_behind:
                # Once: a file that has a mistake by now does not do what it did not do before.
                tried = found
                await self._reload("an id in it is free now")

    async def _refresh(self) -> None:
        try:
            await self._kernel.refresh()
        except Exception as error:
            # Once, not every second.
            if repr(error) != self._problem:
                log.exception("what other kernels of %s have decided cannot be taken over", self._kernel.config.path)
            self._problem = repr(error)
        else:
            self._problem = ""

    def _signature(self) -> dict[Path, tuple[int, ...] | None]:
        """What differs when a file does."""
        return {path: _stamp(path) for path in self._kernel.config.files}

    def _reload_later(self, why: str) -> None:
        self._reloads.start(self._reload(why))

    async def _reload(self, why: str) -> None:
        path = self._kernel.config.path
        try:
            done = await self._kernel.reload()
        except DefserveError as error:
            log.error("%s was read again (%s) and nothing is changed: %s", path, why, error)
        except Exception:
            log.exception("%s was read again (%s), and that failed", path, why)
        else:
            told = ", ".join(f"{name}: {' '.join(done[name])}" for name in TOLD if done[name])
            level = logging.WARNING if told else logging.INFO
            log.log(level, "%s was read again (%s); %s", path, why, told or "no server has changed")


def _stamp(path: os.PathLike[str]) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _on_hangup(loop: asyncio.AbstractEventLoop, reload: Callable[[], None]) -> bool:
    """Have SIGHUP reload. False where there is no such signal, or this is not the main thread."""
    try:
        loop.add_signal_handler(signal.SIGHUP, reload)
    except (AttributeError, NotImplementedError, RuntimeError, ValueError):
        return False
    return True
