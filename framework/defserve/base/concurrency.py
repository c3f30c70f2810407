"""Background tasks, futures that several wait for, and changes in a folder that one process makes at a time."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

T = TypeVar("T")


class BackgroundTasks(set["asyncio.Task[Any]"]):
    """Those that have not ended. They are kept here because an event loop alone may lose a task before its end."""

    def start(self, work: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    def cancel(self) -> None:
        """Ask all of them to end."""
        for task in self:
            task.cancel()


async def wait_for_shared(shared: asyncio.Future[T]) -> T:
    """The outcome of what others wait for, too. A caller that is cancelled cancels nothing.

    Not `asyncio.shield`: from Python 3.14 on, it logs an error that comes after one of those who wait has left.
    """
    try:
        await asyncio.wait((shared,))
    except asyncio.CancelledError:
        shared.add_done_callback(_read_error)
        raise
    try:
        return shared.result()
    finally:
        del shared  # it knows the error, whose traceback knows this frame: a circle


def _read_error(done: asyncio.Future[Any]) -> None:
    """An error that nobody reads is logged when its future is freed."""
    if not done.cancelled():
        done.exception()


# -- Changes in a folder that only one process makes at a time.


LOCK_TIMEOUT_SECONDS: Final = 1.0
LOCK_RETRY_SECONDS: Final = 0.01


@contextmanager
def lock_folder(folder: str | os.PathLike[str]) -> Generator[None]:
    """While the block runs, no other process that asks for this puts a file in place there, or removes one.

    After a second the block runs all the same: anybody who may read a folder can lock it for ever.
    """
    import fcntl  # not on every system; who calls this has files that only those systems have

    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        until = time.monotonic() + LOCK_TIMEOUT_SECONDS
        while time.monotonic() < until:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(LOCK_RETRY_SECONDS)
                continue
            except OSError:  # a file system without locks
                pass
            break
        yield
    finally:
        os.close(opened)
