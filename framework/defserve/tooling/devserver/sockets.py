"""`dev` on a socket: the parent binds it but never reads from it; children inherit it and take turns."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from defserve.auth.local_token.files import published
from defserve.base.background import BackgroundTasks
from defserve.errors import UsageError
from defserve.runner.address import Address
from defserve.runner.sockets import bound
from defserve.serving.web import places_of
from defserve.tooling.devserver.plan import READY, ServePlan
from defserve.tooling.devserver.process import NotServing, ServerProcess
from defserve.tooling.devserver.stdio import FAREWELL_SECONDS, stop_signals
from defserve.tooling.devserver.supervisor import ReloadSupervisor
from defserve.tooling.devserver.watched_files import WatchedFiles

Beside: TypeAlias = Callable[[str, asyncio.Future[int]], Awaitable[int]]
"""What runs beside the server: it is given the address, and a future that gets the exit code when a signal comes."""


def serve(plan: ServePlan, files: WatchedFiles, grace: float, beside: Beside | None = None) -> int:
    """Serve an address until a signal ends it, and return the exit code. Raises UsageError if it cannot be used."""
    address = Address.parse(plan.options["on"], "/mcp")
    if os.name != "posix":
        raise UsageError("dev cannot serve on a socket on this system", fix="use stdio:, or defserve run")
    local = plan.options.get("local_token", False)
    with (
        bound(address) as sockets,
        published(places_of(sockets)) if local else nullcontext("") as key,
        tempfile.TemporaryDirectory(prefix="defserve-dev-") as folder,
    ):
        sessions = Path(folder) / "sessions"
        sessions.mkdir(mode=0o700)
        local_key = Path(folder) / "local-token"
        local_key.touch(mode=0o600)
        local_key.write_text(key)
        numbers = tuple(one.fileno() for one in sockets)
        plan = replace(plan, sockets=numbers, sessions=str(sessions), local_key=str(local_key))
        where = replace(address, port=sockets[0].getsockname()[1]) if address.port == 0 else address
        return asyncio.run(_serve(plan, files, grace, Path(folder), str(where), beside))


async def _serve(
    plan: ServePlan, files: WatchedFiles, grace: float, folder: Path, address: str, beside: Beside | None
) -> int:
    ending, front = stop_signals(), SocketFront(grace)
    supervising = asyncio.create_task(ReloadSupervisor(plan, front, files, folder).run())
    tasks: list[asyncio.Future[Any]] = [ending, supervising]
    if beside is not None:
        tasks.append(asyncio.ensure_future(beside(address, ending)))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return ending.result() if ending.done() else done.pop().result() or 0
    finally:
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks[1:], return_exceptions=True)
        await front.close()


class SocketFront:
    """A `ClientFront` whose clients talk to the children directly. A replaced child has `grace` seconds to finish."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._children: set[ServerProcess] = set()
        self._leaving = BackgroundTasks()

    async def admit(self, child: ServerProcess) -> None:
        self._children.add(child)
        if await child.output.readline() != READY:
            raise NotServing

    def adopt(self, child: ServerProcess, previous: ServerProcess | None) -> None:
        if previous is not None:
            self._leaving.start(self._retire(previous))

    async def _retire(self, child: ServerProcess) -> None:
        await child.end(self._grace + FAREWELL_SECONDS)
        self._children.discard(child)

    def lost(self, child: ServerProcess) -> None:
        self._children.discard(child)

    async def close(self) -> None:
        self._leaving.cancel()
        await asyncio.gather(*(child.end(FAREWELL_SECONDS) for child in self._children))
