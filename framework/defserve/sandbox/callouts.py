"""Programs that call out: Monty pauses at a function that it does not know, and goes on with the answer.

All of it blocks, so it runs in threads. A paused program needs no thread. A parked one needs no process either.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

from defserve.sandbox.job import EXPLANATION, Outcome, RunStop, SandboxLimits
from defserve.sandbox.monty import GRACE, PrintedText, engine, failed, kill, killed, measure_value, valued

if TYPE_CHECKING:
    from pydantic_monty import ExternalResult, ExternalSettledResult, Monty, MontySession, SyncSnapshot


ErrorKind = Literal["RuntimeError", "PermissionError", "TimeoutError", "ValueError", "TypeError", "NameError"]

# A worker that has served so many programs is replaced.
PROGRAMS_EACH = 200


@dataclass(frozen=True, slots=True)
class CallOut:
    """A call that a program makes: `id` names it, `line` is where it stands. A `deferred` one is awaited later."""

    id: int
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    line: int
    deferred: bool


@dataclass(frozen=True, slots=True)
class CallBudget:
    """What the calls of one program may take. One more, or one byte more, ends it."""

    calls: int
    """How many it may make."""
    argument_bytes: int
    """What the arguments of those without an answer may take: the host keeps them so long."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A program waits: for the answer to `needs` or, if that is None, to any call that it has not got yet."""

    calls: tuple[CallOut, ...]
    """The calls it has made since the last pause."""
    needs: int | None


class Answer:
    """What a call gave: a JSON value, or an exception that the program may catch."""

    __slots__ = ("result",)

    def __init__(self, value: Any = None, *, error: ErrorKind | None = None, message: str = "") -> None:
        self.result: ExternalSettledResult = (
            {"return_value": value} if error is None else {"exc_type": error, "message": message}
        )


class Workers:
    """Warm worker processes. `open` them before the first program, or the first program does."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._pool: Monty | None = None
        self._lock = threading.Lock()

    def open(self) -> Monty:
        with self._lock:
            if self._pool is None:
                pool = engine()(
                    max_processes=self._most,
                    request_timeout=self._seconds + GRACE,
                    feed_duration_limit_grace=GRACE,
                    max_checkouts_per_worker=PROGRAMS_EACH,
                )
                self._pool = pool.__enter__()
            return self._pool

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.__exit__(None, None, None)


class Program:
    """One run of a program. `is_known` says whether a name is a function of the host's. One thread at a time.

    `limits.seconds` bounds the time that it computes: what it waits for does not count.
    """

    def __init__(
        self, workers: Workers, source: str, limits: SandboxLimits, is_known: Callable[[str], bool], budget: CallBudget
    ) -> None:
        self._workers, self._source, self._limits, self._is_known = workers, source, limits, is_known
        self._budget, self._made = budget, 0
        self._unanswered: dict[int, int] = {}  # id of a call → bytes of its arguments
        self._suspensions = 1_000 + 4 * budget.calls
        self._awaited = AwaitedCalls(source)
        self._printed = PrintedText(limits.output_bytes)
        self._stop, self._turn = RunStop(), threading.Lock()
        self._session: MontySession | None = None
        self._at: SyncSnapshot | None = None
        self._kept: bytes | None = None
        self.unmade: tuple[CallOut, ...] = ()
        """Calls that it deferred, and did not wait for before its end."""

    @property
    def printed(self) -> str:
        """What it has printed so far."""
        return "".join(self._printed.parts)

    def start(self) -> Pause | Outcome:
        """Run to the first pause, or to the end."""
        return self._advanced(lambda: self._open().feed_start(self._source, print_callback=self._printed))

    def resume(self, answers: Mapping[int, Answer]) -> Pause | Outcome:
        """Go on with answers to calls, by their ids, to the next pause or to the end."""
        for id in answers:
            self._unanswered.pop(id, None)
        return self._advanced(lambda: self._answered({id: answer.result for id, answer in answers.items()}))

    def park(self) -> int:
        """Give the process back while the program waits. Returns the bytes that are kept instead."""
        with self._turn:
            if self._kept is None and self._at is not None and self._session is not None:
                self._kept, self._at = self._session.dump(), None
                self._leave()
            return len(self._kept or b"")

    def stop(self) -> None:
        """End the program, even while it runs in another thread."""
        self._stop.now()

    def close(self) -> None:
        """Give everything back. Waits for a turn that is not over."""
        with self._turn:
            self._kept = self._at = None
            self._leave()

    # -- turns -------------------------------------------------------------------------------------------

    def _advanced(self, turn: Callable[[], SyncSnapshot]) -> Pause | Outcome:
        from pydantic_monty import MontyCrashedError, MontyError, MontyRuntimeError, MontySyntaxError

        with self._turn:
            try:
                step = self._until_pause(turn())
            except MontyError as error:
                if self._printed.over:
                    step = Outcome("output", error=EXPLANATION["output"])
                elif isinstance(error, MontyRuntimeError | MontySyntaxError):
                    step = failed(error)
                else:
                    step = killed(isinstance(error, MontyCrashedError) and error.timed_out)
            if isinstance(step, Outcome):
                self._leave()
                return replace(step, stdout=self.printed, engine="monty", layers=("interpreter",))
            return step

    def _open(self) -> MontySession:
        limits = self._limits
        session = self._workers.open().checkout(
            limits={
                "max_feed_duration_secs": limits.seconds,
                "max_memory": limits.memory_bytes,
                "max_suspensions": self._suspensions,
            },
            os_policy={"sleep": "zero"},
        )
        self._session = session.__enter__()
        self._printed.kill = partial(kill, session.worker_pid)
        self._stop.arm(self._printed.kill)
        return session

    def _leave(self) -> None:
        session, self._session = self._session, None
        self._stop.disarm()
        if session is not None:
            from pydantic_monty import MontyError

            with suppress(MontyError):
                session.__exit__(None, None, None)

    def _answered(self, results: dict[int, ExternalSettledResult]) -> SyncSnapshot:
        from pydantic_monty import FunctionSnapshot, FutureSnapshot

        if self._kept is not None:
            kept, self._kept = self._kept, None
            self._at = self._open().load_snapshot(kept, print_callback=self._printed)
        at, self._at = self._at, None
        if isinstance(at, FutureSnapshot):
            return at.resume(results)
        assert isinstance(at, FunctionSnapshot)
        return at.resume(results[at.call_id])

    def _until_pause(self, at: SyncSnapshot) -> Pause | Outcome:
        from pydantic_monty import FutureSnapshot, MontyComplete, NameLookupSnapshot

        calls: list[CallOut] = []
        while not isinstance(at, MontyComplete):
            if isinstance(at, FutureSnapshot):
                self._at = at
                return Pause(tuple(calls), None)
            if isinstance(at, NameLookupSnapshot):
                known = at.object_id is None and self._is_known(at.variable_name)
                at = at.resume(value=_function(at.variable_name)) if known else at.resume()
            elif at.is_os_function:
                at = at.resume_not_handled()
            else:
                name, start = str(at.function_name), at.position.start
                deferred = at.allow_eager_await or self._awaited.is_deferred(start, name)
                out = CallOut(at.call_id, name, at.args, at.kwargs, self._awaited.line(start), deferred)
                if (problem := self._count(out)) is not None:
                    return Outcome("error", error=problem)
                calls.append(out)
                if not deferred:
                    self._at = at
                    return Pause(tuple(calls), at.call_id)
                pending: ExternalResult = {"future": ...}
                at = at.resume(pending)
        self.unmade = tuple(calls)
        return valued(self._value(at.output), self._limits.output_bytes)

    def _count(self, out: CallOut) -> str | None:
        """Charge a call to the budget when it is made: a program may make many before it waits. Else why it ends."""
        budget, self._made = self._budget, self._made + 1
        if self._made > budget.calls:
            return f"the code has called more than {budget.calls} tools; call fewer in one run"
        left = budget.argument_bytes - sum(self._unanswered.values())
        size = measure_value((out.args, out.kwargs), left)
        if size > left:
            return (
                f"the arguments of the calls that have no answer yet take more than {budget.argument_bytes} bytes "
                f"(line {out.line}); await calls before you make more, or give them less"
            )
        self._unanswered[out.id] = size
        return None

    def _value(self, last: Any) -> Any:
        """The value of the last line or, if that has none, of the variable `result`."""
        if last is not None or self._session is None:
            return last
        from pydantic_monty import MontyRuntimeError

        try:
            return self._session.feed_run("result")
        except MontyRuntimeError:
            return None


def _function(name: str) -> Callable[[], None]:
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
        if name == ASYNCHRONOUS or start in self._gathered:
            return True
        return _AWAIT.search(self._source, max(0, start - 64), start) is not None

    def line(self, start: int) -> int:
        """The line of a position, from 1."""
        return 1 + len(_LINE.findall(self._source, 0, start))

    @cached_property
    def _gathered(self) -> frozenset[int]:
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
