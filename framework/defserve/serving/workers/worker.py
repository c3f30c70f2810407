"""A worker: serves on the inherited sockets, and does what its supervisor says."""

from __future__ import annotations

import asyncio
import faulthandler
import select
import signal
import socket
from _thread import start_new_thread
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from defserve.base.background import BackgroundTasks
from defserve.runner.signals import end_unless
from defserve.runner.web_sessions import WebSessions
from defserve.serving.workers.figures import worker_figures
from defserve.serving.workers.link import Gone, WorkerLink
from defserve.serving.workers.membership import Membership

LINGER: Final = 10.0
"""How long a worker that leaves keeps connections on which nothing comes: longer than most clients keep them. On the
others the next response says that it is the last."""
LOOK_SECONDS: Final = 0.1
SECONDS: Final = 4.0
"""How long a worker waits for what its supervisor gathers."""
ORPHAN_SECONDS: Final = 5.0

State = Callable[[], Awaitable[tuple[int, bytes]]]


class Worker:
    """`measured` and `readiness` are what this process says of itself."""

    def __init__(
        self, member: Membership, control: socket.socket, provider: WebSessions, measured: State, readiness: State
    ) -> None:
        self.member, self._control, self._provider = member, control, provider
        self._measured, self._readiness = measured, readiness
        self._link: WorkerLink | None = None
        self._listener: Any = None
        self._tasks = BackgroundTasks()
        self._is_leaving = False

    # -- its supervisor ----------------------------------------------------------------------------------

    def started(self, listener: Any) -> None:
        """It listens: tell the supervisor. Called on the loop."""
        self._listener = listener
        leave = self._provider.over

        def over(seconds: float) -> None:
            self._tell_end()
            leave(seconds)

        self._provider.over = over
        faulthandler.register(signal.SIGQUIT)  # shows where it hangs, before the supervisor kills it
        self._tasks.start(self._attend())

    async def _attend(self) -> None:
        self._link = link = await WorkerLink.over(self._control, self._asked)
        limits = self._provider.limits
        link.send("ready", limits.drain + limits.farewell + LINGER)
        _on_hang_up(self._control.fileno(), asyncio.get_running_loop(), self._orphaned, lambda: self._is_leaving)
        await link.run()

    async def _asked(self, what: str, about: Any) -> Any:
        match what:
            case "metrics":
                return await self._figures(about)
            case "readiness":
                status, word = await self._readiness()
                return [status, word.decode()]
            case "leave":
                self.leave()
            case "end":
                self._end()
            case _:  # a ping: that this runs is the answer
                pass
        return None

    def leave(self) -> None:
        """Others take over: accept no more, tell each client to come back on another connection, and end."""
        if not self._is_leaving:
            self._is_leaving = True
            self._listener.retire()
            self._tasks.start(self._linger())

    async def _linger(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + LINGER
        while loop.time() < until and self._listener.server_state.connections:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)  # uvicorn tells nobody when one ends
        # Before calls are refused: who comes too late finds a closed connection, and opens another one elsewhere.
        for connection in list(self._listener.server_state.connections):
            connection.shutdown()
        self._provider.ask()

    def _end(self) -> None:
        self._is_leaving = True
        self._provider.ask()

    def _orphaned(self) -> None:
        """The supervisor was killed. End as if it had asked: accept no more, and finish the running calls."""
        self.leave()

    def _tell_end(self) -> None:
        """Tell the supervisor if a client has ended this worker: then the whole group ends."""
        if self._link is not None and not (self._is_leaving or self._listener.signals):
            self._link.send("ended")

    # -- for callers -------------------------------------------------------------------------------------

    @property
    def probes(self) -> dict[str, State]:
        """The group's health, beside that of this process."""
        return {"/healthz/group": self._group_lives, "/readyz/group": self._group_is_ready}

    async def metrics(self) -> tuple[int, bytes]:
        """The metrics of all workers; those of this one, if the supervisor is silent."""
        found = await self._of_group("metrics")
        return 200, (found if isinstance(found, str) else await self._figures()).encode()

    async def _figures(self, most: int = 1 << 30) -> str:
        _, measured = await self._measured()
        return worker_figures(self.member.number, measured.decode(), most)

    async def _group_lives(self) -> tuple[int, bytes]:
        return await self._group_state("live")

    async def _group_is_ready(self) -> tuple[int, bytes]:
        return await self._group_state("ready")

    async def _group_state(self, word: str) -> tuple[int, bytes]:
        found = await self._of_group("state")
        if found is None:
            return 503, b"the supervisor does not answer"
        text = f"{found[word]} of {found['count']} workers {word}".encode()
        return 200 if found[word] == found["count"] and not found["stopping"] else 503, text

    async def _of_group(self, what: str) -> Any:
        with suppress(Gone):
            if self._link is not None:
                return await self._link.ask(what, seconds=SECONDS)
        return None


def _on_hang_up(
    number: int, loop: asyncio.AbstractEventLoop, action: Callable[[], None], happened: Callable[[], bool]
) -> None:
    """Run `action` on the loop when the other end of a socket is closed. A loop that is stuck is ended."""

    def wait() -> None:
        poll = select.poll()
        poll.register(number, 0)  # only its end, not what comes
        poll.poll()
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(action)
            end_unless(happened, ORPHAN_SECONDS, 1)

    start_new_thread(wait, ())
