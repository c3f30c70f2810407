"""Worker threads for blocking functions, whose finished results wake the event loop once for many.

`concurrent.futures` wakes the loop for every result and joins its threads at exit, so a blocking
function would keep a process alive whose peer has left; these threads are daemons.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any

IDLE_SECONDS = 30.0


class Pool:
    """At most `size` threads at work; those that were given up on (`abandon`) no longer count."""

    def __init__(self, size: int, wake: Callable[[Callable[[], None]], Any]) -> None:
        self._size, self._wake = size, wake
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = SimpleQueue()
        self._done: deque[Callable[[], None]] = deque()
        self._waking = False
        self._lock = threading.Lock()
        self._threads = self._idle = 0

    def submit(self, job: Callable[[], Any], finished: Callable[[Any, BaseException | None], None]) -> None:
        """Run `job` in a thread, with the caller's context variables; `finished(result, error)` on the loop."""
        context = copy_context()
        self._jobs.put((lambda: context.run(job), finished))
        with self._lock:
            if self._idle < self._jobs.qsize() and self._threads < self._size:
                self._threads += 1
                threading.Thread(target=self._work, name="defserve-worker", daemon=True).start()

    def post(self, action: Callable[[], None]) -> None:
        """Run `action` on the loop, behind what this thread posted before."""
        self._done.append(action)
        # The flag is cleared before the deque is emptied, so an action that sees it set is always picked up.
        if not self._waking:
            self._waking = True
            self._wake(self._drain)

    def abandon(self) -> None:
        """A thread is stuck in a job nobody waits for: let another take its place."""
        with self._lock:
            self._size += 1

    def regain(self) -> None:
        """An abandoned thread came back after all."""
        with self._lock:
            self._size -= 1

    def _drain(self) -> None:
        self._waking = False
        while self._done:
            self._done.popleft()()

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            try:
                job, finished = self._jobs.get(timeout=IDLE_SECONDS)
            except Empty:
                with self._lock:
                    self._idle -= 1
                    if self._jobs.empty():
                        self._threads -= 1
                        return
                continue
            with self._lock:
                self._idle -= 1
            self._run(job, finished)
            del job, finished  # an idle thread must not keep the last call alive

    def _run(self, job: Callable[[], Any], finished: Callable[[Any, BaseException | None], None]) -> None:
        try:
            result, error = job(), None
        except BaseException as raised:  # SystemExit and the like end the call, never the server
            result, error = None, raised
        self.post(lambda: finished(result, error))
