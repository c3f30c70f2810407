"""What the process does that owns Monty's interpreter: it runs programs, one at a time, and tells of them as text.

How it works: `workers` starts it, and talks with it in frames on its stdin and stdout. Below it is the worker of Monty,
in the same process group. Values of a program become Python objects here and nowhere else: that may take for ever and
cannot be interrupted, so whoever waits for this process kills it, and the kernel does if nobody waits any more.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any

from pydantic_monty import (
    FunctionSnapshot,
    FutureSnapshot,
    Monty,
    MontyComplete,
    MontyCrashedError,
    MontyError,
    MontyRuntimeError,
    MontySyntaxError,
    NameLookupSnapshot,
)

from defserve.sandbox import frames
from defserve.sandbox.values import (
    MAX_REPR,
    EncodedValue,
    UnencodableArguments,
    encode_arguments,
    encode_sandbox_value,
    measure_min_text_bytes,
)

if TYPE_CHECKING:
    from pydantic_monty import ExternalResult, ExternalSettledResult, MontySession, ResourceLimits, SyncSnapshot


# After its own limit, the worker has this many seconds to report it. Then it is killed.
GRACE = 0.05

# The kernel ends this process so many seconds after whoever waits for it should have.
LAST_GRACE = 2.0

# A worker that has served so many programs is replaced.
PROGRAMS_EACH = 200

# The same as in `job`, which is not imported here.
MAX_FRAMES, MAX_MESSAGE, MAX_NAME = 10, 2_000, 200


def main() -> None:
    reader, writer = take_pipes()
    with Monty(
        binary_path=sys.argv[1],
        max_processes=1,
        feed_duration_limit_grace=GRACE,
        max_checkouts_per_worker=PROGRAMS_EACH,
    ) as pool:
        frames.send_frame(writer, frames.READY)
        with suppress(EOFError, BrokenPipeError):
            ProgramHost(pool, reader, writer).serve()
    os._exit(0)


def take_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """What was stdin and stdout. Nothing else that reads or prints here uses them, nor does a process that we start."""
    pipes = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)
    os.close(nothing)
    return pipes


def set_alarm(seconds: float) -> None:
    """Have the kernel end this process after so many seconds, whatever it does then. 0 calls it off."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


class ProgramHost:
    """Answers the frames of the server. A turn of a program ends with WAITS or with OUTCOME."""

    def __init__(self, pool: Monty, reader: IO[bytes], writer: IO[bytes]) -> None:
        self._pool, self._reader, self._writer = pool, reader, writer
        self._session: MontySession | None = None
        self._at: SyncSnapshot | None = None
        self._kept: bytes | None = None
        self._task: Mapping[str, Any] = {}

    def serve(self) -> None:
        """Until the pipe ends."""
        turns: dict[bytes, Callable[[], EncodedValue | None]] = {
            frames.RUN: self._run,
            frames.START: self._start,
            frames.RESUME: self._resume,
        }
        while True:
            kind, data = frames.receive_frame(self._reader)
            message, rest = frames.split_parts(data)
            set_alarm(message["within"] + LAST_GRACE)
            if kind in (frames.RUN, frames.START, frames.LOAD):
                self._load_task(message)
                self._kept = rest if kind == frames.LOAD else None
            elif kind == frames.RESUME:
                self._answers = json.loads(rest)
            elif kind == frames.DUMP:
                assert self._session is not None
                snapshot = self._session.dump()
                self._leave()
                frames.send_frame(self._writer, frames.SNAPSHOT, snapshot)
            elif kind == frames.LEAVE:
                self._leave()
                frames.send_frame(self._writer, frames.LEAVE)
            if kind in turns:
                self._advance(turns[kind])
            set_alarm(0)

    def _load_task(self, task: Mapping[str, Any]) -> None:
        self._task, self._at = task, None
        self._awaited, self._known = AwaitedCalls(task["source"]), frozenset[str](task.get("known", ()))
        self._made, self._unanswered = task.get("made", 0), {int(k): v for k, v in task.get("unanswered", {}).items()}
        self._answers: dict[str, Any] = {}
        self._printed = PrintedText(task["room"], self._writer)

    # -- turns -------------------------------------------------------------------------------------------

    def _advance(self, turn: Callable[[], EncodedValue | None]) -> None:
        """One turn, and how it ended."""
        try:
            done = turn()
        except MontyError as error:
            if self._printed.over:
                done = EncodedValue("output")
            elif isinstance(error, MontyRuntimeError | MontySyntaxError):
                done = describe_failure(error)
            else:
                late = isinstance(error, MontyCrashedError) and error.timed_out
                done = EncodedValue("timeout" if late else "killed")
        except MemoryError:
            done = EncodedValue("memory")
        except (EOFError, BrokenPipeError):
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {error}"[:MAX_MESSAGE]
            done = EncodedValue("error", error=f"a value cannot cross between the program and the server: {text}")
        if done is not None:
            self._leave()
            header = {"status": done.status, "is_repr": done.is_repr, "error": done.error}
            frames.send_frame(self._writer, frames.OUTCOME, frames.join_parts(header, done.text))

    def _run(self) -> EncodedValue:
        """A program that calls nothing. Its result is its variable `result` or, without one, its last expression."""
        session, task = self._open(), self._task
        value = session.feed_run(task["source"], inputs=json.loads(task["inputs"]), print_callback=self._printed)
        with suppress(MontyRuntimeError):
            value = session.feed_run("result", print_callback=self._printed)
            # A function crosses as a text about it.
            if isinstance(value, str) and not session.feed_run("isinstance(result, str)"):
                return EncodedValue("ok", json.dumps(value[:MAX_REPR]).encode(), is_repr=True)
        return encode_sandbox_value(value, task["value_bytes"])

    def _start(self) -> EncodedValue | None:
        return self._until_pause(self._open().feed_start(self._task["source"], print_callback=self._printed))

    def _resume(self) -> EncodedValue | None:
        if self._kept is not None:
            kept, self._kept = self._kept, None
            self._at = self._open().load_snapshot(kept, print_callback=self._printed)
        at, self._at = self._at, None
        results: dict[int, ExternalSettledResult] = {int(id): result for id, result in self._answers.items()}
        self._answers = {}
        for id in results:
            self._unanswered.pop(id, None)
        if isinstance(at, FutureSnapshot):
            return self._until_pause(at.resume(results))
        assert isinstance(at, FunctionSnapshot)
        return self._until_pause(at.resume(results[at.call_id]))

    def _open(self) -> MontySession:
        task = self._task
        limits: ResourceLimits = {"max_feed_duration_secs": task["seconds"], "max_memory": task["memory_bytes"]}
        if "suspensions" in task:
            limits["max_suspensions"] = task["suspensions"]
        session = self._pool.checkout(limits=limits, os_policy={"sleep": "zero"}).__enter__()
        self._session = session
        # It cannot be asked while a turn is under way.
        self._printed.worker = session.worker_pid
        return session

    def _leave(self) -> None:
        session, self._session, self._at, self._kept = self._session, None, None, None
        if session is not None:
            with suppress(MontyError):
                session.__exit__(None, None, None)

    def _until_pause(self, at: SyncSnapshot) -> EncodedValue | None:
        while not isinstance(at, MontyComplete):
            if isinstance(at, FutureSnapshot):
                return self._pause(at, None)
            if isinstance(at, NameLookupSnapshot):
                known = at.object_id is None and self._is_known(at.variable_name)
                at = at.resume(value=_make_function(at.variable_name)) if known else at.resume()
            elif at.is_os_function:
                at = at.resume_not_handled()
            else:
                name, start = str(at.function_name), at.position.start
                deferred = at.allow_eager_await or self._awaited.is_deferred(start, name)
                if (problem := self._report_call(at, name, self._awaited.find_line(start), deferred)) is not None:
                    return EncodedValue("error", error=problem)
                if not deferred:
                    return self._pause(at, at.call_id)
                pending: ExternalResult = {"future": ...}
                at = at.resume(pending)
        return encode_sandbox_value(self._find_value(at.output), self._task["value_bytes"])

    def _pause(self, at: SyncSnapshot, needs: int | None) -> None:
        self._at = at
        frames.send_frame(self._writer, frames.WAITS, frames.join_parts({"needs": needs}))

    def _is_known(self, name: str) -> bool:
        """Whether a name is a function of the server's. It has told us those that it saw in the source."""
        if name in self._known:
            return True
        frames.send_frame(self._writer, frames.NAME, name.encode("utf-8", "replace"))
        return frames.receive_frame(self._reader)[1] == b"\x01"

    def _report_call(self, at: FunctionSnapshot, name: str, line: int, deferred: bool) -> str | None:
        """Charge a call to the budget when it is made, and tell the server. Else why the program ends.

        A program may make many before it waits.
        """
        task, self._made = self._task, self._made + 1
        if self._made > task["calls"]:
            return f"the code has called more than {task['calls']} tools; call fewer in one run"
        args, kwargs = at.args, at.kwargs
        left = task["argument_bytes"] - sum(self._unanswered.values())
        size = measure_min_text_bytes((args, kwargs), left)
        if size > left:
            return (
                f"the arguments of the calls that have no answer yet take more than {task['argument_bytes']} bytes "
                f"(line {line}); await calls before you make more, or give them less"
            )
        self._unanswered[at.call_id] = size
        header: dict[str, Any] = {"id": at.call_id, "name": name, "line": line, "deferred": deferred, "size": size}
        try:
            data = encode_arguments(name, {"args": args, "kwargs": kwargs}, task["message_bytes"], task["depth"])
        except UnencodableArguments as bad:
            data, header["problem"] = b"", [bad.kind, bad.message]
        frames.send_frame(self._writer, frames.CALL, frames.join_parts(header, data), more=True)
        return None

    def _find_value(self, last: Any) -> Any:
        """The value of the last line or, if that has none, of the variable `result`."""
        if last is not None or self._session is None:
            return last
        try:
            return self._session.feed_run("result", print_callback=self._printed)
        except MontyRuntimeError:
            return None


class PrintedText:
    """Passes on what is printed. One byte too many kills the worker, which would otherwise print on."""

    def __init__(self, room: int, writer: IO[bytes]) -> None:
        self.over = False
        self.worker: int | None = None
        self._room, self._writer = room, writer

    def __call__(self, stream: str, text: str) -> None:
        if self.over:
            return
        data = text.encode("utf-8", "replace")
        # A character that does not fit is left out as a whole.
        kept = data[: self._room].decode("utf-8", "ignore").encode()
        self._room -= len(data)
        frames.send_frame(self._writer, frames.PRINTED, kept)
        if self._room < 0:
            self.over = True
            # 0 would kill our own process group.
            if self.worker:
                with suppress(ProcessLookupError):
                    os.kill(self.worker, getattr(signal, "SIGKILL", signal.SIGTERM))


def describe_failure(error: MontyRuntimeError | MontySyntaxError) -> EncodedValue:
    """The end of a program that raised, or reached a limit of Monty's."""
    name, trace = type(error.exception()).__name__, error.traceback()
    # The error of a limit has no frames; an error of the program has the line it came from.
    if name == "TimeoutError" and not trace:
        return EncodedValue("timeout")
    if name == "MemoryError":
        return EncodedValue("memory")
    lines = [
        f"  line {frame.line}"
        + (f", in {frame.function_name[:MAX_NAME]}" if frame.function_name not in (None, "<module>") else "")
        for frame in trace[-MAX_FRAMES:]
    ]
    head = ["Traceback (most recent call last):"] if lines else []
    return EncodedValue("error", error="\n".join([*head, *lines, error.display("type-msg")[:MAX_MESSAGE]]))


def _make_function(name: str) -> Callable[[], None]:
    """Stands for a function of the host's in the program. Only its name crosses."""

    def function() -> None: ...

    function.__name__ = name
    return function


# -- Which calls of a program are awaited, read from its source: their answer is a future, that of others a value.


# Functions whose arguments are awaited together or later.
GATHERING = frozenset({b"gather", b"create_task", b"ensure_future", b"wait_for", b"wait", b"as_completed", b"shield"})

# Of the host's functions, the one that is asynchronous by its contract.
ASYNCHRONOUS = "call_tool"

_AWAIT = re.compile(rb"\bawait[\s(\\]*\Z")
_LINE = re.compile(rb"\r\n|\r|\n")

# Not Python's parser: its time and its stack are for sources that one trusts. A wrong guess costs the program an error.
# A text ends with the source at the latest, and what was taken is never given back, so each byte is read once.
_TOKEN = re.compile(
    rb"(\"\"\"|''')(?:\\.|(?!\1)[^\\])*+\1?+"
    rb"|\"(?:\\.|[^\"\\\n])*+\"?+|'(?:\\.|[^'\\\n])*+'?+"
    rb"|#[^\n]*"
    rb"|(?P<name>[A-Za-z_\x80-\xff][A-Za-z0-9_\x80-\xff]*)"
    rb"|(?P<opens>[(\[{])|(?P<closes>[)\]}])",
    re.DOTALL,
)


class AwaitedCalls:
    """Reads a source when its first call is asked about. Positions are offsets in its UTF-8 bytes."""

    def __init__(self, source: str) -> None:
        self._source = source.encode("utf-8", "replace")

    def is_deferred(self, start: int, name: str) -> bool:
        """Whether the call at this position is awaited: there, by a function that gathers, or by its contract."""
        return (
            name == ASYNCHRONOUS
            or start in self._find_gathered_calls
            or _AWAIT.search(self._source, max(0, start - 64), start) is not None
        )

    def find_line(self, start: int) -> int:
        """The line of a position, from 1."""
        return 1 + len(_LINE.findall(self._source, 0, start))

    @cached_property
    def _find_gathered_calls(self) -> frozenset[int]:
        """Where names stand among the arguments of a gathering function, at any depth."""
        if not any(word in self._source for word in GATHERING):
            return frozenset()
        found: set[int] = set()
        inside, before = [False], b""
        for token in _TOKEN.finditer(self._source):
            if token["name"] is not None:
                before = token["name"]
                if inside[-1]:
                    found.add(token.start())
                continue
            if token["opens"] is not None:
                inside.append(inside[-1] or (token["opens"] == b"(" and before in GATHERING))
            elif token["closes"] is not None and len(inside) > 1:
                inside.pop()
            before = b""
        return frozenset(found)
