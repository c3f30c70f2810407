"""A server as a child process. Its standard input and output are the link. The last lines of its standard error are
kept, to say why it left."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence

from defserve.client.links.child_process import END_SIGNALS, LATE_OUTPUT_SECONDS, ChildProcess, ChildProcessOptions
from defserve.errors import PeerGone

GRACE_SECONDS = 2.0
LOOK_SECONDS, OTHERS_LOOKS = 0.02, 25
"""Half a second for what a child has left behind."""


class ProcessLink:
    """Speaks to a child process, one JSON message per line. `ProcessLink.spawn` starts it.

    Closing the link closes the child's input and waits. A child that does not exit is terminated, then killed, with
    everything that it started.
    """

    def __init__(self, child: ChildProcess) -> None:
        self._child = child
        self._leaving: asyncio.Task[None] | None = None

    @classmethod
    async def spawn(
        cls,
        command: str,
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        bare: bool = False,
        echo: bool = False,
        on_stderr: Callable[[str], object] | None = None,
        ends_with_us: bool = False,
        grace: float = GRACE_SECONDS,
    ) -> ProcessLink:
        """Start `command args…`. `env` is added to our environment; `echo` copies its stderr to ours.

        bare          the child sees `env` and what any program needs (PATH, HOME, LANG, LC_…, TMPDIR, USER), no more
        on_stderr     called with each line of its stderr
        ends_with_us  the child is killed if we are, even by SIGKILL (Linux, where `setpriv` is installed)

        Raises PeerGone if it cannot be started.
        """
        return cls(
            await ChildProcess.start(
                ChildProcessOptions(command, args, env, cwd, bare, echo, on_stderr, ends_with_us, grace)
            )
        )

    async def reopen(self) -> None:
        """End the child and start the same command again. Raises PeerGone if it cannot be started."""
        await self.aclose()
        self._child = await ChildProcess.start(self._child.options)

    @property
    def target(self) -> str:
        """What was started, and where: the same relative path is another program in another directory."""
        options = self._child.options
        return "\0".join((os.path.abspath(options.cwd or "."), options.command, *options.args))

    @property
    def pid(self) -> int:
        """The child's process."""
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._child.returncode

    async def wait(self) -> int | None:
        """Wait until the process has exited. Its exit code."""
        await asyncio.shield(self._child.exited)
        return self.returncode

    async def send(self, message: bytes) -> None:
        """Write one message to the child. Raises PeerGone, with the end of its stderr, if it has exited."""
        if waits := self.write(message):
            await waits

    def write(self, message: bytes) -> Awaitable[None] | None:
        """Like `send`, but done if it gives None. Else the child has not taken it yet: await what it gives."""
        return None if self._child.write(message + b"\n") else self._drain_input(self._child)

    async def _drain_input(self, child: ChildProcess) -> None:
        try:
            await child.drain_input()
        except (ConnectionError, RuntimeError):
            raise await self._exit_error(child) from None

    async def receive(self) -> bytes | None:
        """The next message of the child. Raises PeerGone, with the end of its stderr, once it has exited."""
        line = await self._child.next_line()
        if line is None:
            raise await self._exit_error(self._child)
        return line

    def push(self, take: Callable[[bytes], None], gone: Callable[[PeerGone], None]) -> None:
        """From now on call `take` with each message and `gone` at the end, instead of being asked by `receive`."""
        child = self._child

        async def leave() -> None:
            gone(await self._exit_error(child))

        def on_child_ended() -> None:
            self._leaving = asyncio.create_task(leave(), name="defserve.client leaving")

        child.push(take, on_child_ended)

    async def aclose(self) -> None:
        """Close the child's input, and end the child if it does not exit by itself."""
        child = self._child
        child.close_input()
        child.drop_output()
        for number in END_SIGNALS:
            if number is not None:
                child.signal(number)
            await asyncio.wait((child.exited,), timeout=child.options.grace)
            if child.exited.done():
                break
        await self._end_others(child)
        await self._finish_stderr(child)
        child.release()
        if self._leaving is not None:
            self._leaving.cancel()

    async def _end_others(self, child: ChildProcess) -> None:
        """End what the child has started and left behind. One that moved to a session of its own is not known."""
        if not child.exited.done() or not child.has_left_processes:
            return
        child.signal(signal.SIGTERM)
        for _ in range(OTHERS_LOOKS):
            await asyncio.sleep(LOOK_SECONDS)
            if not child.has_left_processes:
                return
        child.signal(signal.SIGKILL)

    async def _exit_error(self, child: ChildProcess) -> PeerGone:
        """Why the child is gone: its exit code and its last lines on stderr."""
        await asyncio.wait((child.exited,), timeout=child.options.grace)
        if (code := child.returncode) is None:
            how = "closed its output but still runs"
        else:
            how = f"exited with code {code}" if code >= 0 else f"was killed by signal {-code}"
            await self._finish_stderr(child)
            if code == 0 and child.is_silent:
                how += ": it ended without serving; does the file end with server.main()?"
        words = "".join(f"\n  | {line}" for line in child.stderr.last_stderr_lines)
        return PeerGone(f"{child.options.command} {how}" + (f"; its last words:{words}" if words else ""))

    async def _finish_stderr(self, child: ChildProcess) -> None:
        """Let stderr come to its end. A grandchild may hold it open, so this waits only a moment."""
        await asyncio.wait((child.stderr_ended,), timeout=LATE_OUTPUT_SECONDS)
