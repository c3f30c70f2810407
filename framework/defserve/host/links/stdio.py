"""A server as a child process. Its standard input and output are the link. The last lines of its standard error are
kept, to say why it left."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from defserve.errors import PeerGone
from defserve.wire.framing import Lines

CHUNK = 65_536
LONGEST_MESSAGE = 64 * 1024 * 1024
LAST_WORDS = 20
LONGEST_LAST_WORD = 500
GRACE_SECONDS = 2.0
ECHO_SECONDS = 0.2

StartProcess: TypeAlias = Callable[[], Awaitable[asyncio.subprocess.Process]]

log = logging.getLogger("defserve.host")


class ProcessLink:
    """Speaks to a child process, one JSON message per line. `ProcessLink.spawn` starts it.

    Closing the link closes the child's input and waits. A child that does not exit is terminated, then killed, with
    everything that it started.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        start: StartProcess,
        command: str,
        *,
        echo: bool,
        grace: float,
        on_stderr: Callable[[str], None] | None = None,
    ) -> None:
        self._start, self._command, self._echo, self._grace = start, command, echo, grace
        self._on_stderr = on_stderr
        self._attach(process)

    def _attach(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._lines = Lines(LONGEST_MESSAGE)
        self._ready: deque[bytes] = deque()
        self._ended = False
        self._stderr_tail: deque[str] = deque(maxlen=LAST_WORDS)
        self._stderr = asyncio.create_task(self._listen_to_stderr(), name="defserve.host stderr")

    @classmethod
    async def spawn(
        cls,
        command: str,
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        echo: bool = False,
        grace: float = GRACE_SECONDS,
        on_stderr: Callable[[str], None] | None = None,
    ) -> ProcessLink:
        """Start `command args…`. `env` is added to our environment; `echo` copies its stderr to ours.

        `on_stderr` is called with every line of its stderr. Raises PeerGone if it cannot be started.
        """

        async def start() -> asyncio.subprocess.Process:
            try:
                return await asyncio.create_subprocess_exec(
                    command,
                    *args,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env=None if env is None else {**os.environ, **env},
                    cwd=cwd,
                    # A process group of its own, so that everything it started can be ended with it.
                    start_new_session=os.name == "posix",
                )
            except OSError as error:
                raise _not_started(command, error, cwd) from None

        return cls(await start(), start, command, echo=echo, grace=grace, on_stderr=on_stderr)

    async def reopen(self) -> None:
        """End the child and start the same command again. Raises PeerGone if it cannot be started."""
        await self.aclose()
        self._attach(await self._start())

    @property
    def pid(self) -> int:
        """The child's process."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._process.returncode

    async def send(self, message: bytes) -> None:
        """Write one message to the child. Raises PeerGone, with the end of its stderr, if it has exited."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(message + b"\n")
            await stdin.drain()
        except (ConnectionError, RuntimeError):
            raise await self._exit_error() from None

    async def receive(self) -> bytes | None:
        """The next message of the child. Raises PeerGone, with the end of its stderr, once it has exited."""
        stdout = self._process.stdout
        assert stdout is not None
        while not self._ready:
            if self._ended:
                raise await self._exit_error()
            self._take(await stdout.read(CHUNK))
        return self._ready.popleft()

    def _take(self, chunk: bytes) -> None:
        if not chunk:
            self._ended = True
            rest = self._lines.finish()
            self._ready.extend([rest] if rest else [])
        for line in self._lines.feed(chunk) if chunk else ():
            if line is None:
                log.warning("%s wrote a line of more than %d bytes; skipped", self._command, LONGEST_MESSAGE)
            else:
                self._ready.append(line)

    async def aclose(self) -> None:
        """Close the child's input, and end the child if it does not exit by itself."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        # A child that still writes must not be blocked by a full pipe: otherwise it cannot exit.
        drain = asyncio.create_task(self._drain())
        for end in (None, signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
            if end is not None:
                self._signal(end)
            try:
                await asyncio.wait_for(self._process.wait(), self._grace)
                break
            except TimeoutError:
                continue
        await asyncio.wait((drain,), timeout=ECHO_SECONDS)
        drain.cancel()
        await self._finish_stderr()

    async def _drain(self) -> None:
        stdout = self._process.stdout
        while stdout is not None and await stdout.read(CHUNK):
            pass

    def _signal(self, number: int) -> None:
        try:
            if os.name == "posix":
                os.killpg(self._process.pid, number)
            else:
                self._process.terminate()
        except ProcessLookupError:
            pass

    async def _exit_error(self) -> PeerGone:
        """Why the child is gone: its exit code and its last lines on stderr."""
        try:
            code = await asyncio.wait_for(self._process.wait(), self._grace)
            how = f"exited with code {code}" if code >= 0 else f"was killed by signal {-code}"
        except TimeoutError:
            how = "closed its output but still runs"
        else:
            await self._finish_stderr()
        words = "".join(f"\n  | {line}" for line in self._stderr_tail)
        return PeerGone(f"{self._command} {how}" + (f"; its last words:{words}" if words else ""))

    async def _finish_stderr(self) -> None:
        """Read stderr to its end. A grandchild may hold it open, so this waits only a moment."""
        await asyncio.wait((self._stderr,), timeout=ECHO_SECONDS)
        self._stderr.cancel()

    async def _listen_to_stderr(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None
        lines = Lines(CHUNK)
        while chunk := await stderr.read(CHUNK):
            if self._echo:
                sys.stderr.write(chunk.decode(errors="replace"))
                sys.stderr.flush()
            self._remember(lines.feed(chunk))
        self._remember([lines.finish()])

    def _remember(self, lines: Sequence[bytes | None]) -> None:
        for line in lines:
            if line:
                text = line.decode(errors="replace").rstrip()
                self._stderr_tail.append(text[:LONGEST_LAST_WORD])
                if self._on_stderr is not None:
                    self._on_stderr(text)


def _not_started(command: str, error: OSError, cwd: str | os.PathLike[str] | None) -> PeerGone:
    text = f"cannot start {command!r}: {error.strerror or error}"
    # A missing working folder gives the same error.
    if isinstance(error, FileNotFoundError) and not os.path.dirname(command) and os.path.isdir(cwd or "."):
        text += "\n  fix: give its full path, or put it on PATH"
    return PeerGone(text)
