"""A server as a child process: its standard input and output are the link, its standard error is kept for the
obituary."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence

from defserve.errors import PeerGone
from defserve.wire.framing import Lines

CHUNK = 65_536
LONGEST_MESSAGE = 64 * 1024 * 1024
LAST_WORDS = 20
LONGEST_LAST_WORD = 500
GRACE_SECONDS = 2.0
ECHO_SECONDS = 0.2

log = logging.getLogger("defserve.host")


class ProcessLink:
    """Speaks to a child process, one JSON message a line. `ProcessLink.spawn` starts one.

    Closing it closes the child's input and waits; a child that stays is terminated, then killed, with everything it
    started.
    """

    def __init__(self, process: asyncio.subprocess.Process, command: str, *, echo: bool, grace: float) -> None:
        self._process, self._command, self._echo, self._grace = process, command, echo, grace
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
    ) -> ProcessLink:
        """Start `command args…`. `env` is added to our own environment; `echo` passes its stderr on to ours.

        Raises PeerGone when it cannot be started.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                command,
                *args,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=None if env is None else {**os.environ, **env},
                cwd=cwd,
                # A group of its own, so that what it started can be ended with it.
                start_new_session=os.name == "posix",
            )
        except OSError as error:
            raise _not_started(command, error, cwd) from None
        return cls(process, command, echo=echo, grace=grace)

    @property
    def returncode(self) -> int | None:
        """How the process ended, negative for a signal; None while it runs."""
        return self._process.returncode

    async def send(self, message: bytes) -> None:
        """Write one message to the child. Raises PeerGone, with its last words, if it has left."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(message + b"\n")
            await stdin.drain()
        except (ConnectionError, RuntimeError):
            raise await self._obituary() from None

    async def receive(self) -> bytes | None:
        """The next message of the child's. Raises PeerGone, with its last words, once it has left."""
        stdout = self._process.stdout
        assert stdout is not None
        while not self._ready:
            if self._ended:
                raise await self._obituary()
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
        """Close the child's input, and end it if it does not leave by itself."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        # A child that still has something to say must not wait for us to read it before it can leave.
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
        await self._hear_out()

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

    async def _obituary(self) -> PeerGone:
        """Why the child is gone: its exit code and the last lines it wrote to stderr."""
        try:
            code = await asyncio.wait_for(self._process.wait(), self._grace)
            how = f"exited with code {code}" if code >= 0 else f"was killed by signal {-code}"
        except TimeoutError:
            how = "closed its output but still runs"
        else:
            await self._hear_out()
        words = "".join(f"\n  | {line}" for line in self._stderr_tail)
        return PeerGone(f"{self._command} {how}" + (f"; its last words:{words}" if words else ""))

    async def _hear_out(self) -> None:
        """Read stderr to its end; a grandchild that holds it open is not waited for."""
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
                self._stderr_tail.append(line.decode(errors="replace").rstrip()[:LONGEST_LAST_WORD])


def _not_started(command: str, error: OSError, cwd: str | os.PathLike[str] | None) -> PeerGone:
    text = f"cannot start {command!r}: {error.strerror or error}"
    # A folder that is not there is the same error.
    if isinstance(error, FileNotFoundError) and not os.path.dirname(command) and os.path.isdir(cwd or "."):
        text += "\n  fix: give its full path, or put it on PATH"
    return PeerGone(text)
