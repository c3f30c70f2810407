"""Programs that call out: Monty pauses at a function that it does not know, and goes on with the answer.

How it works: the program is in a process of `workers`, which tells in frames what it prints, which calls it makes, and
when it waits. Of its values only JSON text comes here. All of it blocks, so it runs in threads. A paused program needs
no thread. A parked one needs no process either: its snapshot is kept here, as bytes that nobody reads.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from pydantic_core import from_json

from defserve.core.json_values import is_object
from defserve.sandbox import frames
from defserve.sandbox.job import Outcome, RunStopper, SandboxLimits
from defserve.sandbox.monty import GRACE, PATIENCE, decode_outcome, make_worker_gone_outcome
from defserve.sandbox.workers import LEAVE_SECONDS, MAX_ENVELOPE_BYTES, MontyWorker, SandboxPool, WorkerGone

ProgramErrorKind = Literal["RuntimeError", "PermissionError", "TimeoutError", "ValueError", "TypeError", "NameError"]

# A snapshot is about as large as the heap of its program.
SNAPSHOT_FACTOR = 4

_IDENTIFIER = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class ProgramCall:
    """A call that a program makes: `id` names it, `line` is where it stands. A `deferred` one is awaited later.

    The arguments are JSON values. If they cannot be, there are none, and `problem` says what the program is to see.
    """

    id: int
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    line: int
    deferred: bool
    problem: tuple[ProgramErrorKind, str] | None = None


@dataclass(frozen=True, slots=True)
class ProgramCallBudget:
    """What the calls of one program may take. One more, or one byte more, ends it."""

    calls: int
    """How many it may make."""
    argument_bytes: int
    """What the arguments of those without an answer may take: the host keeps them so long."""
    message_bytes: int = 4 * 1024 * 1024
    """What the arguments of one call may take. One that takes more fails, and the program goes on."""
    depth: int = 64
    """How deeply they may be nested."""


@dataclass(frozen=True, slots=True)
class ProgramPause:
    """A program waits: for the answer to `needs` or, if that is None, to any call that it has not got yet."""

    calls: tuple[ProgramCall, ...]
    """The calls it has made since the last pause."""
    needs: int | None


class ProgramCallAnswer:
    """What a call gave: a JSON value, or an exception that the program may catch."""

    __slots__ = ("result",)

    def __init__(self, value: Any = None, *, error: ProgramErrorKind | None = None, message: str = "") -> None:
        self.result: dict[str, Any] = (
            {"return_value": value} if error is None else {"exc_type": error, "message": message}
        )

    def encode_json(self) -> str:
        """It as JSON text. A value that has none is an error."""
        try:
            return json.dumps(self.result)
        except (TypeError, ValueError, RecursionError) as error:
            return json.dumps({"exc_type": "RuntimeError", "message": f"the result has no JSON form: {error}"})


class SandboxProgram:
    """One run of a program. `is_known` says whether a name is a function of the host's. One thread at a time.

    `limits.seconds` bounds the time that it computes: what it waits for does not count.
    """

    def __init__(
        self,
        workers: SandboxPool,
        source: str,
        limits: SandboxLimits,
        is_known: Callable[[str], bool],
        budget: ProgramCallBudget,
    ) -> None:
        self._workers, self._source, self._limits, self._is_known = workers, source, limits, is_known
        self._budget, self._made = budget, 0
        self._unanswered: dict[int, int] = {}  # id of a call → bytes of its arguments
        self._parts, self._room = list[str](), limits.output_bytes
        self._left = limits.seconds + PATIENCE
        self._stop, self._turn = RunStopper(), threading.Lock()
        self._worker: MontyWorker | None = None
        self._kept: bytes | None = None
        self._ended: Outcome | None = None
        names = MAX_ENVELOPE_BYTES + 24 * len(source)  # the most that a name of the source takes in JSON, twice
        self._most = {
            frames.CALL: budget.message_bytes + names,
            frames.NAME: names,
            frames.WAITS: MAX_ENVELOPE_BYTES,
            frames.OUTCOME: limits.output_bytes + names,
        }
        self.unmade: tuple[ProgramCall, ...] = ()
        """Calls that it deferred, and did not wait for before its end."""

    @property
    def printed(self) -> str:
        """What it has printed so far."""
        return "".join(self._parts)

    def start(self) -> ProgramPause | Outcome:
        """Run to the first pause, or to the end."""
        return self.resume({})

    def release_process(self) -> int:
        """Give the process back while the program waits. Returns the bytes that are kept instead."""
        with self._turn:
            if (worker := self._worker) is not None:
                try:
                    with worker.limit_time(self._limits.seconds + PATIENCE):
                        self._send(worker, frames.DUMP, {}, self._limits.seconds)
                        room = SNAPSHOT_FACTOR * self._limits.memory_bytes + MAX_ENVELOPE_BYTES
                        _, self._kept = worker.receive({frames.SNAPSHOT: room})
                except WorkerGone as gone:
                    self._end_with(make_worker_gone_outcome(gone))
                self._release_worker()
            return len(self._kept or b"")

    def stop(self) -> None:
        """End the program, even while it runs in another thread."""
        self._stop.stop_run()

    def close(self) -> None:
        """Give everything back. Waits for a turn that is not over."""
        with self._turn:
            self._kept = None
            if (worker := self._worker) is not None:
                with suppress(WorkerGone), worker.limit_time(LEAVE_SECONDS):
                    self._send(worker, frames.LEAVE, {}, LEAVE_SECONDS)
                    worker.receive({frames.LEAVE: 0})
                self._release_worker()

    # -- turns -------------------------------------------------------------------------------------------

    def resume(self, answers: Mapping[int, ProgramCallAnswer]) -> ProgramPause | Outcome:
        """Go on with answers to calls, by their ids, to the next pause or to the end."""
        with self._turn:
            if self._ended is None and self._stop.stopped:
                self._end_with(Outcome("killed", error="the program was stopped"))
            if self._ended is None:
                try:
                    step = self._take_turn(answers)
                    if isinstance(step, ProgramPause):
                        return step
                    self._end_with(step)
                except WorkerGone as gone:
                    self._end_with(make_worker_gone_outcome(gone))
                self._release_worker()
            assert self._ended is not None
            return self._ended

    def _take_turn(self, answers: Mapping[int, ProgramCallAnswer]) -> ProgramPause | Outcome:
        given = ",".join(f'"{id}":{answer.encode_json()}' for id, answer in answers.items())
        is_new = self._worker is None
        worker = self._worker = self._worker or self._workers.acquire_worker()
        self._left += GRACE
        self._stop.set_kill_function(worker.kill)
        began = time.monotonic()
        try:
            with worker.limit_time(self._left):
                if is_new:
                    kind = frames.START if self._kept is None else frames.LOAD
                    self._send(worker, kind, self._describe(), self._left, self._kept or b"")
                if not is_new or self._kept is not None:
                    for id in answers:
                        self._unanswered.pop(id, None)
                    self._send(worker, frames.RESUME, {}, self._left, f"{{{given}}}".encode())
                self._kept = None
                return self._listen(worker)
        finally:
            self._left -= time.monotonic() - began
            self._stop.mark_run_ended()

    def _describe(self) -> dict[str, Any]:
        """What the process needs to know of the program, as far as it has got."""
        limits, budget = self._limits, self._budget
        # A name that is not among them is asked for when the program reads it.
        known = [name for name in set(_IDENTIFIER.findall(self._source)) if self._is_known(name)]
        return {
            "source": self._source,
            "seconds": limits.seconds,
            "memory_bytes": limits.memory_bytes,
            "value_bytes": limits.output_bytes,
            "room": self._room,
            "suspensions": 1_000 + 4 * budget.calls,
            "known": known,
            "calls": budget.calls,
            "argument_bytes": budget.argument_bytes,
            "message_bytes": budget.message_bytes,
            "depth": budget.depth,
            "made": self._made,
            "unanswered": self._unanswered,
        }

    def _send(
        self, worker: MontyWorker, kind: bytes, message: dict[str, Any], seconds: float, rest: bytes = b""
    ) -> None:
        worker.send(kind, frames.join_parts({**message, "within": seconds}, rest))

    def _listen(self, worker: MontyWorker) -> ProgramPause | Outcome:
        calls: list[ProgramCall] = []
        while True:
            kind, data = worker.receive({**self._most, frames.PRINTED: self._room})
            if kind == frames.PRINTED:
                self._room -= len(data)
                self._parts.append(data.decode("utf-8", "replace"))
            elif kind == frames.CALL:
                calls.append(self._read_call(data))
            elif kind == frames.NAME:
                worker.send(frames.NAME, b"\x01" if self._is_known(data.decode("utf-8", "replace")) else b"\x00")
            elif kind == frames.WAITS:
                return ProgramPause(tuple(calls), frames.split_parts(data)[0]["needs"])
            else:
                outcome = decode_outcome(data)
                if outcome:
                    self.unmade = tuple(calls)
                return outcome

    def _read_call(self, data: bytes) -> ProgramCall:
        header, text = frames.split_parts(data)
        self._made += 1
        if self._made > self._budget.calls:
            raise frames.FrameError("more calls than there may be")
        self._unanswered[header["id"]] = header["size"]
        out = ProgramCall(header["id"], header["name"], (), {}, header["line"], header["deferred"])
        if "problem" in header:
            kind, message = header["problem"]
            return replace(out, problem=(cast("ProgramErrorKind", kind), message))
        given = from_json(text, allow_inf_nan=False)
        if not is_object(given):
            raise frames.FrameError("arguments that are no object")
        return replace(out, args=tuple(given["args"]), kwargs=given["kwargs"])

    def _end_with(self, outcome: Outcome) -> None:
        self._ended = replace(outcome, stdout=self.printed, engine="monty", layers=("interpreter",))

    def _release_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            self._workers.release_worker(worker)
