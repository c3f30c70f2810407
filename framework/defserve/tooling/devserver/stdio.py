"""`dev` on standard input and output, which belong to the parent; no child sees them."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from _thread import start_new_thread
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from defserve.tooling.devserver.plan import ServePlan
from defserve.tooling.devserver.relay import Relay
from defserve.tooling.devserver.supervisor import ReloadSupervisor
from defserve.tooling.devserver.watched_files import WatchedFiles

STDIN, STDOUT = 0, 1
CHUNK = 64 * 1024
INTERRUPTED = 130
FAREWELL_SECONDS = 2.0


def serve(plan: ServePlan, files: WatchedFiles, grace: float) -> int:
    """Relay until the client leaves or a signal ends it, and return the exit code."""
    return asyncio.run(_serve(plan, files, grace))


async def _serve(plan: ServePlan, files: WatchedFiles, grace: float) -> int:
    ending = stop_signals()
    relay = Relay(LineWriter().write, grace)
    with tempfile.TemporaryDirectory(prefix="defserve-dev-") as folder:
        supervising = asyncio.create_task(ReloadSupervisor(plan, relay, files, Path(folder)).run())
        read_lines(relay.from_client, lambda: ending.done() or ending.set_result(0))
        supervising.add_done_callback(lambda task: ending.done() or ending.set_exception(_reason(task)))
        try:
            return await ending
        finally:
            supervising.cancel()
            await asyncio.gather(supervising, return_exceptions=True)
            await relay.close(FAREWELL_SECONDS)


def _reason(task: asyncio.Task[None]) -> BaseException:
    return asyncio.CancelledError() if task.cancelled() else task.exception() or RuntimeError("it ended")


def stop_signals() -> asyncio.Future[int]:
    """A future that gets the exit code when a signal comes."""
    loop = asyncio.get_running_loop()
    ending: asyncio.Future[int] = loop.create_future()
    for number, code in ((signal.SIGINT, INTERRUPTED), (signal.SIGTERM, 0)):
        with suppress(NotImplementedError):  # Windows
            loop.add_signal_handler(number, lambda code=code: ending.done() or ending.set_result(code))
    return ending


def read_lines(take: Callable[[bytes], Awaitable[None]], left: Callable[[], object]) -> None:
    """Pass each line of standard input to `take`, one after the other. At the end, `left` is called."""
    loop = asyncio.get_running_loop()

    async def hand_over(lines: list[bytes]) -> None:
        for line in lines:
            await take(line + b"\n")

    def read() -> None:
        rest = b""
        try:
            while chunk := os.read(STDIN, CHUNK):
                *lines, rest = (rest + chunk).split(b"\n")
                asyncio.run_coroutine_threadsafe(hand_over([line for line in lines if line.strip()]), loop).result()
        finally:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(left)

    # A thread, because nothing else reads pipes, files and terminals alike. Nothing waits for it at the end.
    start_new_thread(read, ())


class LineWriter:
    """Writes to standard output, one line at a time, without blocking the loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def write(self, line: bytes) -> None:
        async with self._turn:
            await asyncio.to_thread(_write_all, line)


def _write_all(line: bytes) -> None:
    with suppress(BrokenPipeError):  # a client that stops reading will close its other pipe too
        while line:
            line = line[os.write(STDOUT, line) :]
