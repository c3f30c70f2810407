"""The processes that own Monty's interpreter, as the server sees them: warm, reused, and killed when they are late.

How it works: each is a Python of ours (`monty_child`) that leads a process group, with a worker of Monty's in it. A
turn of a program is a few frames over its pipes. It blocks, so it runs in a thread, and a watchdog kills the group when
the turn takes too long: then the pipe ends, and the thread goes on. Nothing that a program makes can hold this process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from math import inf
from pathlib import Path

from defserve.errors import Refused
from defserve.sandbox import frames

PACKAGE = Path(__file__).parents[2]

# Imported rather than run as a file, so that its bytecode is cached.
CHILD = "import sys; sys.path += sys.argv[2:]; from defserve.sandbox.monty_child import main; main()"
IMPORTS = ("pydantic_monty", "pydantic_core", "typing_extensions")

# How long a process may take to start, and to leave a program.
START_SECONDS, LEAVE_SECONDS = 60.0, 2.0

# How many milliseconds the end of what a process started is waited for.
MAX_POLLS = 50

# Room for what is said around a value.
MAX_ENVELOPE_BYTES = 64 * 1024

_locating = threading.Lock()


class WorkerGone(Exception):
    """The process has ended, or was ended, within a turn."""

    def __init__(self, timed_out: bool) -> None:
        super().__init__()
        self.timed_out = timed_out


class MontyWorker:
    """One process. One thread at a time talks with it; any may kill it."""

    def __init__(self) -> None:
        binary, paths = locate_parts()
        self.deadline, self.timed_out = inf, False
        self._ending, self._ended, self._is_ready = threading.Lock(), False, False
        command = [sys.executable, "-I", "-S", "-X", "utf8", "-W", "ignore", "-c", CHILD, binary, *paths]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise Refused(
                f"the code was not run: the interpreter did not start ({error.strerror})",
                data={"fix": "see how many files and processes the server may have, and try again"},
            ) from error
        assert self._process.stdin is not None and self._process.stdout is not None
        self._writer, self._reader = self._process.stdin, self._process.stdout

    @property
    def pid(self) -> int:
        """The id of the process, and of its group."""
        return self._process.pid

    def await_start(self) -> None:
        """Wait until it can run a program. Raises Refused if it cannot."""
        if self._is_ready:
            return
        try:
            with self.limit_time(START_SECONDS):
                self.receive({frames.READY: 0})
        except WorkerGone:
            fix = f"run `{Path(sys.executable).name} -c 'import pydantic_monty'` to see why"
            raise Refused("the code was not run: the interpreter did not start", data={"fix": fix}) from None
        self._is_ready = True

    def is_usable(self) -> bool:
        """Whether it is there, as far as is known."""
        return not self._ended and not self.timed_out and self._process.poll() is None

    @contextmanager
    def limit_time(self, seconds: float) -> Generator[None]:
        """Kill it if this takes longer. Raises WorkerGone if it is gone, or says what it may not say."""
        watchdog().watch(self, time.monotonic() + seconds)
        try:
            yield
        except (EOFError, OSError, ValueError, frames.FrameError):
            self.kill_and_clean_up()
            raise WorkerGone(self.timed_out) from None
        except BaseException:
            self.kill_and_clean_up()
            raise
        finally:
            with self._ending:
                self.deadline = inf

    def send(self, kind: bytes, data: bytes = b"") -> None:
        frames.send_frame(self._writer, kind, data)

    def receive(self, most: Mapping[bytes, int]) -> tuple[bytes, bytes]:
        return frames.receive_frame(self._reader, most)

    def kill_if_expired(self) -> None:
        """Kill it if its time is over. If the turn has ended meanwhile, it may run another program by now."""
        with self._ending:
            if self.deadline <= time.monotonic():
                self.timed_out = True
                self._kill_group()

    def kill(self) -> None:
        """Kill it with all that it started. From any thread."""
        with self._ending:
            self._kill_group()

    def _kill_group(self) -> None:
        # Its id is its own until it is reaped.
        if not self._ended:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL) if hasattr(os, "killpg") else self._process.kill()

    def kill_and_clean_up(self) -> None:
        """Kill it, and leave nothing of it."""
        self.kill()
        with self._ending:
            if self._ended:
                return
            self._process.wait()
            self._ended = True
        # What it started is ours now if we are the first process of a container: no one else would reap it.
        with suppress(ChildProcessError, AttributeError):
            while True:
                os.waitpid(-self.pid, 0)
        # Wait a moment for what it started: killed, but not ours to reap. Who inherits it may be slow to do so.
        with suppress(ProcessLookupError, PermissionError, AttributeError):
            for _ in range(MAX_POLLS):
                os.killpg(self.pid, 0)
                time.sleep(0.001)
        for file in (self._writer, self._reader):
            with suppress(OSError):
                file.close()


class SandboxPool:
    """Warm processes, at most so many in use at a time: others wait. `open` starts the first before it is needed."""

    def __init__(self, most: int | None = None, *, kept: int | None = None) -> None:
        self._slots = threading.Semaphore(most) if most is not None else None
        self._kept = kept if kept is not None else most or 1
        self._idle: list[MontyWorker] = []
        self._starting: set[MontyWorker] = set()
        self._lock, self._closed, self._owner = threading.Lock(), False, os.getpid()

    def open(self) -> None:
        """Have one process ready."""
        self.release_worker(self.acquire_worker())

    def acquire_worker(self) -> MontyWorker:
        """A process that nobody else has until it is given back. Raises Refused if none can be started."""
        if self._slots is not None:
            self._slots.acquire()
        try:
            return self._find_idle() or self._start()
        except BaseException:
            if self._slots is not None:
                self._slots.release()
            raise

    def release_worker(self, worker: MontyWorker) -> None:
        """Nothing of the last program may be left in it. One that is gone is forgotten."""
        with self._lock:
            is_kept = not self._closed and len(self._idle) < self._kept and worker.is_usable()
            if is_kept:
                self._idle.append(worker)
        if not is_kept:
            worker.kill_and_clean_up()
        if self._slots is not None:
            self._slots.release()

    def close(self) -> None:
        """End the processes that are idle or start now, and the others when they are given back."""
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
            for worker in self._starting:
                worker.kill()
        for worker in idle:
            worker.kill_and_clean_up()

    def _start(self) -> MontyWorker:
        worker = MontyWorker()
        with self._lock:
            self._starting.add(worker)
        try:
            worker.await_start()
            return worker
        finally:
            with self._lock:
                self._starting.discard(worker)

    def _find_idle(self) -> MontyWorker | None:
        while True:
            with self._lock:
                self._closed = False
                if self._owner != os.getpid():
                    # After a fork they are the parent's.
                    self._owner, self._idle = os.getpid(), []
                if not self._idle:
                    return None
                worker = self._idle.pop()
            if worker.is_usable():
                return worker
            worker.kill_and_clean_up()


@cache
def find_parts() -> tuple[str, tuple[str, ...]]:
    """What `locate_parts` gives, which has the lock for it."""
    specs = [find_spec(name) for name in IMPORTS]
    if not sys.executable or None in specs:
        raise Refused(
            "the code was not run: Python or Monty is not found", data={"fix": "pip install 'defserve[sandbox]'"}
        )
    files = [Path(spec.origin) for spec in specs if spec is not None and spec.origin is not None]
    roots = [file.parents[1] if file.name == "__init__.py" else file.parent for file in files]
    # Monty itself is not imported here: this process has nothing to do with it.
    spec = spec_from_file_location("_monty_binary", files[0].with_name("_binary.py"))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.find_monty_binary(), tuple(dict.fromkeys(map(str, (PACKAGE, *roots))))


def locate_parts() -> tuple[str, tuple[str, ...]]:
    """Where Monty's binary is, and where the child finds what it imports.

    The binary is looked for in the interpreter's paths, and `sysconfig` fills those in without a lock. If several
    threads did that at once, some would find the paths incomplete.
    """
    with _locating:
        sysconfig.get_config_vars()
        return find_parts()


class Watchdog:
    """One thread for all processes. It wakes when the first of them may be late."""

    def __init__(self) -> None:
        self._changed, self._wakes, self.owner = threading.Condition(), inf, os.getpid()
        self._watched: set[MontyWorker] = set()
        threading.Thread(target=self._run, name="defserve-watchdog", daemon=True).start()

    def watch(self, worker: MontyWorker, deadline: float) -> None:
        """Expire the worker at this moment of the monotonic clock, unless its deadline was changed."""
        with self._changed:
            worker.deadline = deadline
            self._watched.add(worker)
            if deadline < self._wakes:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                # Those without a deadline come again when they have one.
                self._watched = {worker for worker in self._watched if worker.deadline < inf}
                self._wakes = min((worker.deadline for worker in self._watched), default=inf)
                left = self._wakes - time.monotonic()
                if left > 0:
                    self._changed.wait(left if left < inf else None)
                    continue
                late = [worker for worker in self._watched if worker.deadline <= self._wakes]
                self._watched.difference_update(late)
            for worker in late:
                worker.kill_if_expired()


_watching = threading.Lock()
_watchdogs: list[Watchdog] = []


def watchdog() -> Watchdog:
    """The one of this process. Threads do not come along in a fork."""
    with _watching:
        if not _watchdogs or _watchdogs[0].owner != os.getpid():
            _watchdogs[:] = [Watchdog()]
        return _watchdogs[0]
