"""A child process and its three pipes: its environment, its messages one a line, its standard error.

Of a line that is too long, enough is kept to tell which request it answers. Of the standard error, no more is kept than
somebody could use.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Final, NamedTuple, cast

from defserve.base.redaction import escape_unprintable_lines, get_logger
from defserve.client.link import MAX_LOOP_TURN_SECONDS, ProgramMissing, split_into_pieces
from defserve.client.replies import KEPT_HEAD_BYTES, KEPT_TAIL_BYTES, TruncatedMessage
from defserve.core.messages import LineSplitter
from defserve.errors import PeerError, PeerGone

STDIN, STDOUT, STDERR = 0, 1, 2
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
MAX_READY_BYTES: Final = 1024 * 1024
MAX_UNREAD_INPUT_BYTES = 64 * 1024 * 1024
"""What a child that doesn't read its input may have waiting. Then it is sent nothing more."""
"""Bytes of messages that wait to be received. Then the child has to wait."""
LATE_OUTPUT_SECONDS = 0.2
"""How long what a process wrote may come after its exit. A grandchild may hold its pipes open for ever."""

log = get_logger("client")


class ChildProcessOptions(NamedTuple):
    """What to start, and how.

    bare          the child sees `env` and little else of the environment; if not, `env` is added to ours
    echo          its stderr is copied to ours, control characters escaped
    on_stderr     called with each line of its stderr, except those of more than 64 KB. If too many come at once, it
                  is told how many were left out
    ends_with_us  the kernel ends the child if we are killed (Linux, with the program `setpriv`). Without it a child
                  sees the end of its input then, and one that never reads stays.
    grace         seconds to exit after its input was closed, and after each signal
    """

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    cwd: str | os.PathLike[str] | None = None
    bare: bool = False
    echo: bool = False
    on_stderr: Callable[[str], object] | None = None
    ends_with_us: bool = False
    grace: float = 2.0

    def environment(self) -> dict[str, str] | None:
        if self.bare:
            return bare_environment(self.env or {})
        return None if self.env is None else {**os.environ, **self.env}

    def command_line(self, environment: Mapping[str, str] | None) -> tuple[str, ...]:
        line = (self.command, *self.args)
        if not (self.ends_with_us and sys.platform == "linux" and (wrapper := shutil.which("setpriv"))):
            return line
        # The wrapper would not say that a command does not exist, and looks for it elsewhere.
        if os.path.dirname(self.command):
            found = self.command if os.access(os.path.join(self.cwd or "", self.command), os.X_OK) else None
        else:
            found = shutil.which(
                self.command, path=(environment if environment is not None else os.environ).get("PATH")
            )
        return (wrapper, "--pdeathsig", "KILL", "--", found, *self.args) if found else line


class ChildProcess(asyncio.SubprocessProtocol):
    """A running process. `take` gets its messages, one a line; until it is set they wait. `ended` is called once.

    ended_output  whether nothing more comes: it closed its output, or it has exited
    """

    def __init__(self, options: ChildProcessOptions) -> None:
        loop = asyncio.get_running_loop()
        self.options = options
        self.take: Callable[[bytes], None] | None = None
        self.ended: Callable[[], None] | None = None
        self.ended_output = False
        self.exited: asyncio.Future[None] = loop.create_future()
        self.stderr = StderrLines(options.on_stderr, self._pause_stderr)
        self.stderr_ended: asyncio.Future[None] = loop.create_future()
        self._transport: asyncio.SubprocessTransport | None = None
        self._lines = MessageLines(MAX_MESSAGE_BYTES)
        self._uncut: deque[bytes] = deque()
        self._ready: deque[bytes] = deque()
        self._ready_size = 0
        self._next_turn: asyncio.Handle | None = None
        self._is_paused = self._is_dropped = False
        self._hears = self._has_written = False
        self._input: asyncio.WriteTransport | None = None
        self._output: asyncio.ReadTransport | None = None
        self._writable: asyncio.Future[None] | None = None
        self._waiter: asyncio.Future[None] | None = None

    @classmethod
    async def start(cls, options: ChildProcessOptions) -> ChildProcess:
        """Start it. Raises PeerGone if that fails."""
        environment = options.environment()
        # Through a pipe of its own, because what asyncio's pipe to a process brings is told a turn of the loop later.
        is_own = os.name == "posix"
        try:
            ours, theirs = os.pipe() if is_own else (-1, asyncio.subprocess.PIPE)
        except OSError as error:
            raise _not_started(options, error) from None
        try:
            _, child = await asyncio.get_running_loop().subprocess_exec(
                lambda: cls(options),
                *options.command_line(environment),
                env=environment,
                cwd=options.cwd,
                stdout=theirs,
                # A process group of its own, so that everything it started can be ended with it.
                start_new_session=is_own,
            )
        except BaseException as error:
            if is_own:
                os.close(ours)
            if isinstance(error, OSError | ValueError):
                raise _not_started(options, error) from None
            raise
        finally:
            if is_own:
                os.close(theirs)
        if is_own:
            await child._read_from(ours)
        return child

    async def _read_from(self, descriptor: int) -> None:
        pipe = os.fdopen(descriptor, "rb", buffering=0)
        try:
            self._output, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: _Output(self), pipe)
        except BaseException:
            pipe.close()
            self._running.close()
            raise

    @property
    def pid(self) -> int:
        return self._running.get_pid()

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._running.get_returncode()

    @property
    def is_silent(self) -> bool:
        """Whether it has never written anything to its output."""
        return not (self._has_written or self._hears)

    @property
    def _running(self) -> asyncio.SubprocessTransport:
        return cast("asyncio.SubprocessTransport", self._transport)

    def write(self, data: bytes) -> bool:
        """Whether it is written. If not, `drain_input` waits for it. Raises PeerError if too much waits already."""
        stdin = self._input or self._stdin
        if stdin.is_closing():
            return False
        if self._writable is not None and (size := stdin.get_write_buffer_size()) > MAX_UNREAD_INPUT_BYTES:
            raise PeerError(f"{self.options.command} does not read its input: {size:,} bytes wait for it")
        stdin.write(data)
        return self._writable is None and not stdin.is_closing()

    async def drain_input(self) -> None:
        """Wait until the child has read what was written. Raises ConnectionError if it has closed its input."""
        if self._writable is not None:
            await asyncio.shield(self._writable)
        if self._stdin.is_closing():
            raise BrokenPipeError

    async def next_line(self) -> bytes | None:
        """The next message; None once there are no more."""
        while not self._ready:
            if self.ended_output:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        line = self._ready.popleft()
        self._ready_size -= len(line)
        if self._is_paused and self._ready_size <= MAX_READY_BYTES:
            self._pause(False)
        return line

    def push(self, take: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        """From now on call `take` with every message, and `ended` once there are no more."""
        self.take, self.ended = take, ended
        self._hand_on_soon()

    def close_input(self) -> None:
        self._stdin.close()

    def drop_output(self) -> None:
        """What it still writes is read and forgotten: a full pipe would keep it from exiting."""
        self._is_dropped = True
        self._uncut.clear()
        self._ready.clear()
        self.push(lambda line: None, lambda: None)

    def signal(self, number: int) -> None:
        """To the child and everything that it started."""
        with suppress(ProcessLookupError):
            if os.name == "posix":
                os.killpg(self.pid, number)
            else:
                self._running.terminate()

    @property
    def has_left_processes(self) -> bool:
        """Whether processes are left that it has started. As long as they are, nobody else gets its number."""
        if os.name != "posix":
            return False
        try:
            os.killpg(self.pid, 0)
        except OSError:
            return False
        return True

    def release(self) -> None:
        """Close the pipes. Kills a process that still runs."""
        self._end_output()
        if self._output is not None:
            self._output.close()
        self._running.close()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == STDERR:
            if self.options.echo:
                sys.stderr.write(escape_unprintable_lines(data.decode(errors="replace")))
                sys.stderr.flush()
            self.stderr.feed(data)
        elif not self.ended_output:
            self._hears = True
            if self._is_dropped:
                return
            if self.take is None:
                self._queue_lines(self._lines.feed(data))
            elif self._next_turn is None and (line := self._lines.take_single_line(data)) is not None:
                self.take(line)
            else:
                self._uncut.extend(split_into_pieces(data))
                self._hand_on_soon()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == STDOUT:
            self._end_output()
        elif fd == STDERR:
            self.stderr.finish()
            if not self.stderr_ended.done():
                self.stderr_ended.set_result(None)
        else:
            self.resume_writing()

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)
        self._hear_out()

    def _hear_out(self) -> None:
        """Wait until nothing more comes of what it wrote, rather than for the end: a grandchild may hold the pipe."""
        self._has_written = self._has_written or self._hears
        self._hears = False

        def later() -> None:
            # What it wrote may still be in the pipe, if we do not read it now.
            (self._hear_out if self._hears or self._is_paused else self._end_output)()

        if not self.ended_output:
            asyncio.get_running_loop().call_later(LATE_OUTPUT_SECONDS, later)

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None

    @property
    def _stdin(self) -> asyncio.WriteTransport:
        self._input = cast("asyncio.WriteTransport", self._running.get_pipe_transport(STDIN))
        return self._input

    @property
    def _stdout(self) -> asyncio.ReadTransport:
        return self._output or cast("asyncio.ReadTransport", self._running.get_pipe_transport(STDOUT))

    def _queue_lines(self, lines: Sequence[bytes | None]) -> None:
        """Nobody has said yet where messages go to, so they wait to be received."""
        self._ready.extend(found := [line for line in lines if line is not None])
        self._ready_size += sum(map(len, found))
        if self._ready_size > MAX_READY_BYTES:
            self._pause(True)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _hand_on_soon(self) -> None:
        if self._next_turn is None:
            self._hand_on()

    def _hand_on(self) -> None:
        """Hand on what waits. A child that says much is read on in the next turn of the loop, which others share."""
        self._next_turn, until = None, monotonic() + MAX_LOOP_TURN_SECONDS
        while self._ready or self._uncut:
            self._hand_on_one()
            if (self._ready or self._uncut) and monotonic() > until:
                self._pause(True)
                self._next_turn = self._next_turn or asyncio.get_running_loop().call_soon(self._hand_on)
                return
        self._ready_size = 0
        self._pause(False)
        if self.ended_output and self.ended is not None:
            ended, self.ended = self.ended, None
            ended()

    def _hand_on_one(self) -> None:
        """Hand on the next message, or find out which are next."""
        if not self._ready:
            self._ready.extend(line for line in self._lines.feed(self._uncut.popleft()) if line is not None)
        elif self.take is not None:
            try:
                self.take(self._ready.popleft())
            except Exception:
                log.exception("a message could not be taken")

    def _pause(self, is_paused: bool) -> None:
        """Whether the child has to wait before we read more."""
        if is_paused is not self._is_paused and not self.ended_output:
            self._is_paused = is_paused
            # What it wrote meanwhile comes in the next turn.
            self._hears = True
            (self._stdout.pause_reading if is_paused else self._stdout.resume_reading)()

    def _pause_stderr(self, is_paused: bool) -> None:
        pipe = cast("asyncio.ReadTransport | None", self._running.get_pipe_transport(STDERR))
        if pipe is not None and not pipe.is_closing():
            (pipe.pause_reading if is_paused else pipe.resume_reading)()

    def _end_output(self) -> None:
        if self.ended_output:
            return
        self.ended_output = True
        if self.take is None:
            self._queue_lines([self._lines.finish()])
        else:
            # The line feed that is missing.
            self._uncut.append(b"\n")
            self._hand_on_soon()


class _Output(asyncio.Protocol):
    """What a child writes to its output, told at once."""

    def __init__(self, child: ChildProcess) -> None:
        self._child = child

    def data_received(self, data: bytes) -> None:
        self._child.pipe_data_received(STDOUT, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._child.pipe_connection_lost(STDOUT, exc)


def _not_started(options: ChildProcessOptions, error: OSError | ValueError) -> PeerGone:
    command, cwd = options.command, options.cwd
    if isinstance(error, ValueError):  # a NUL, or a variable whose name has an equals sign
        return ProgramMissing(f"cannot start {command!r}: no process can be given its words or variables: {error}")
    # A missing working folder gives the same error as a missing program.
    if cwd is not None and error.errno in (errno.ENOENT, errno.ENOTDIR) and not os.path.isdir(cwd):
        return PeerGone(f"cannot start {command!r}: there is no folder {os.fspath(cwd)!r} to run it in")
    text = f"cannot start {command!r}: {error.strerror or error}"
    is_about_command = error.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC) and os.path.isdir(cwd or ".")
    fix = _fix_for(command) if is_about_command else ""
    kind = ProgramMissing if is_about_command else PeerGone
    return kind(f"{text}\n  fix: {fix}" if fix else text)


def _fix_for(command: str) -> str:
    program, _, rest = command.partition(" ")
    if rest:
        return f"give the program and its arguments one by one: {program!r}, {rest!r}"
    if command.endswith(".py"):
        return f"name the program that runs it: python {command}"
    return "" if os.path.dirname(command) else "give its full path, or put it on PATH"


END_SIGNALS: Final = (None, signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM))
"""How a child is ended: first it sees the end of its input."""


# -- The messages of a child, one a line. Of a line that is too long, enough is kept to tell which request it answers.


# JSON allows this byte nowhere, so what is left of a line is never taken for a message.
GAP = b"\0"


class MessageLines(LineSplitter):
    """Like `LineSplitter`, but a `TruncatedMessage` stands for a line that is too long, when it is over."""

    __slots__ = ("_head", "_tail")

    def _buffer_rest(self, data: bytes, whole: list[bytes | None]) -> None:
        if self._skipping:
            self._tail = (self._tail + data)[-KEPT_TAIL_BYTES:]
            return
        self._rest += data
        if len(self._rest) > self.limit:
            self._head, self._tail = bytes(self._rest[:KEPT_HEAD_BYTES]), bytes(self._rest[-KEPT_TAIL_BYTES:])
            self._rest.clear()
            self._first, self._skipping = False, True

    def _complete(self, head: bytes, whole: list[bytes | None]) -> None:
        if self._skipping:
            self._skipping = False
            whole.append(self._cut(self._head, self._tail + head))
        else:
            super()._complete(head, whole)

    def _add(self, line: bytes, whole: list[bytes | None]) -> None:
        if len(line) > self.limit:
            self._first = False
            whole.append(self._cut(line, line))
        else:
            super()._add(line, whole)

    def _cut(self, head: bytes, tail: bytes) -> TruncatedMessage:
        found = TruncatedMessage(head[:KEPT_HEAD_BYTES] + GAP + tail[-KEPT_TAIL_BYTES:])
        found.limit = self.limit
        return found


# -- The standard error of a child, line by line, and no more of it than somebody could use.


MAX_STDERR_LINE: Final = 65_536
LAST_WORDS: Final = 20
MAX_LAST_LINE_LENGTH: Final = 500
PORTION: Final = 20
PORTION_SECONDS: Final = 0.02
"""So 1,000 lines a second are told. Hiding secrets in one takes about 10 µs."""
MAX_STDERR_LINES: Final = 1_000
MAX_STDERR_BYTES: Final = 1024 * 1024
"""What may wait to be told. Of more, the newest lines are kept: they say why a child left."""


class StderrLines:
    """Calls `told` with each line, but for those of more than 64 KB.

    Lines that come faster than they are told wait. If too many wait, the oldest are left out, and `told` gets a line
    that says how many. Then the child waits too (`pause`), for a moment.
    """

    def __init__(self, told: Callable[[str], object] | None, pause: Callable[[bool], None]) -> None:
        self._told, self._pause = told, pause
        self._lines = LineSplitter(MAX_STDERR_LINE)
        self._last: deque[bytes] = deque(maxlen=LAST_WORDS)
        self._waiting: deque[bytes] = deque()
        self._size = self._left_out = 0
        self._room = PORTION
        self._timer: asyncio.TimerHandle | None = None

    @property
    def last_stderr_lines(self) -> list[str]:
        """The last lines, each cut to a usual length."""
        return [_decode_line(line)[:MAX_LAST_LINE_LENGTH] for line in self._last]

    def feed(self, data: bytes) -> None:
        if (count := data.count(b"\n")) > MAX_STDERR_LINES:
            # The newest are all that is kept. To look at the others takes a microsecond each.
            kept = len(data) - len(data.rsplit(b"\n", MAX_STDERR_LINES)[0]) - 1
            data, self._lines = data[-kept:] if kept else b"", LineSplitter(MAX_STDERR_LINE)
            self._left_out += count - MAX_STDERR_LINES + 1
        self._add_lines(self._lines.feed(data))
        if self._timer is None:
            self._flush_lines()

    def finish(self) -> None:
        """Nothing more comes. What waits is told at once."""
        self._add_lines([self._lines.finish()])
        self._room = len(self._waiting)
        self._flush_lines()
        if self._timer is not None:
            self._timer.cancel()
        self._told = None

    def _add_lines(self, lines: Sequence[bytes | None]) -> None:
        found = [line for line in lines if line]
        self._last.extend(found[-LAST_WORDS:])
        if self._told is None:
            return
        self._waiting.extend(found)
        self._size += sum(map(len, found))
        if len(self._waiting) > MAX_STDERR_LINES or self._size > MAX_STDERR_BYTES:
            while len(self._waiting) > MAX_STDERR_LINES or self._size > MAX_STDERR_BYTES:
                self._size -= len(self._waiting.popleft())
                self._left_out += 1
            self._pause(True)

    def _flush_lines(self) -> None:
        if self._left_out and self._room:
            self._emit_line(f"… {self._left_out:,} lines were left out: it writes too many at once")
            self._left_out = 0
        while self._waiting and self._room:
            self._room -= 1
            line = self._waiting.popleft()
            self._size -= len(line)
            self._emit_line(_decode_line(line))
        if self._timer is None and self._room < PORTION:
            self._timer = asyncio.get_running_loop().call_later(PORTION_SECONDS, self._next_portion)

    def _next_portion(self) -> None:
        self._timer, self._room = None, PORTION
        self._pause(False)
        self._flush_lines()

    def _emit_line(self, text: str) -> None:
        assert self._told is not None
        try:
            self._told(text)
        except Exception:
            log.exception("the handler of stderr failed")


def _decode_line(line: bytes) -> str:
    return line.decode(errors="replace").rstrip()


# -- The environment of a child that is not meant to see ours.


INHERITED_NAMES: Final = frozenset(("PATH", "HOME", "LANG", "LANGUAGE", "TMPDIR", "USER"))

# Without some of these a program does not even start there.
WINDOWS_NAMES: Final = frozenset(
    "APPDATA COMSPEC HOMEDRIVE HOMEPATH LOCALAPPDATA NUMBER_OF_PROCESSORS OS PATH PATHEXT PROCESSOR_ARCHITECTURE "
    "PROGRAMDATA PROGRAMFILES SYSTEMDRIVE SYSTEMROOT TEMP TMP USERNAME USERPROFILE WINDIR".split()
)


def bare_environment(given: Mapping[str, str]) -> dict[str, str]:
    """What any program needs (where programs, the home folder and temporary files are, the language), and `given`."""
    names = WINDOWS_NAMES if os.name == "nt" else INHERITED_NAMES
    ours = {name: value for name, value in os.environ.items() if name in names or name.startswith("LC_")}
    return {**ours, **given}
