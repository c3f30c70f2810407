"""One run of a model's code: turns of the program in a thread, and between them the calls that it makes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

from defserve.code_mode.calls import (
    CALL_TOOL_FUNCTION_NAME,
    BadToolCall,
    check_call_arguments,
    find_visible_tool,
    resolve_tool_call,
    run_tool_call,
)
from defserve.core.call import Call, InnerCall
from defserve.core.registry import Registry
from defserve.errors import TimedOut, UsageError, explain_arguments
from defserve.limits import Limits, is_positive_number
from defserve.protocols.mcp import reporting
from defserve.protocols.mcp.asking.client_requests import ParkedWork, ParkedWorkMarker, ParkedWorkRegistry
from defserve.protocols.mcp.tools import Tool, make_inner_call
from defserve.sandbox.callouts import ProgramCall, ProgramCallAnswer, ProgramCallBudget, ProgramPause, SandboxProgram
from defserve.sandbox.job import Outcome, SandboxLimits
from defserve.sandbox.workers import SandboxPool

# How many of the calls are named in an error.
MAX_NAMED_CALLS = 20

# Bytes of all runs that wait for an answer within their request, and have given their worker back.
MAX_KEPT_BYTES = 64 * 1024 * 1024


class CodeRunSharedState:
    """What the runs of a server share on one event loop: tools, worker processes, and the runs that are parked."""

    def __init__(self, options: CodeMode, tools: Registry[Tool]) -> None:
        self.options, self.tools = options, tools
        self.workers = SandboxPool(options.workers)
        self.slots = WorkerSlots(options.workers)
        self.parking = ParkedWorkRegistry(most=options.parked)
        self.kept = 0


class CodeRun:
    """Runs a program to its end. It may be parked meanwhile: `work` knows the request that waits for it."""

    def __init__(self, place: CodeRunSharedState, work: ParkedWork, source: str) -> None:
        options = place.options
        self._place, self._work, self._options = place, work, options
        limits = SandboxLimits(
            seconds=options.compute_seconds, memory_bytes=options.memory_bytes, output_bytes=options.output_bytes
        )
        messages = work.call.session.composition.limits
        budget = ProgramCallBudget(options.calls, options.argument_bytes, messages.message, messages.depth)
        self._program = SandboxProgram(place.workers, source, limits, self._is_known, budget)
        self._calls: dict[int, asyncio.Task[ProgramCallAnswer]] = {}
        self._requests: dict[int, ProgramCall | BadToolCall] = {}
        self._inner: set[InnerCall] = set()
        self._at_once, self._turns = asyncio.Semaphore(options.at_once), asyncio.Lock()
        self._slot_of: str | None = None
        self._began = False
        self.made: list[str] = []
        self._resting: asyncio.Task[None] | None = None
        self._kept = 0
        self.clock = RunClock(options.seconds, self._on_timeout, self._on_question)
        work.note, work.prepare, work.attached = self.describe_calls, self._park, self._attach_call
        self.clock.start_with_call(work.call)

    def describe_calls(self) -> str:
        """Which tools it has called, in words."""
        if not self.made:
            return "No tool had been called."
        more = f" and {len(self.made) - MAX_NAMED_CALLS} more" if len(self.made) > MAX_NAMED_CALLS else ""
        return f"These tools had been called: {', '.join(self.made[:MAX_NAMED_CALLS])}{more}."

    async def run(self) -> Outcome:
        """Never raises for what the code does."""
        try:
            step = await self._turn(self._program.start)
            while isinstance(step, ProgramPause):
                for out in step.calls:
                    self._calls[out.id] = asyncio.create_task(self._call(self._requests.pop(out.id)))
                if not self._calls:
                    return Outcome("error", stdout=self._program.printed, error="the code waits for what never comes")
                step = await self._turn(partial(self._program.resume, await self._await_answers(step)))
            if forgotten := [out.line for out in self._program.unmade] if step else []:
                note = f"(a call on line {forgotten[0]} was not awaited, so it was not made)\n"
                return replace(step, stdout=step.stdout + note)
            return step
        except asyncio.CancelledError:
            if not self.clock.over:
                raise
            return Outcome("timeout", stdout=self._program.printed, error=self._describe_timeout())
        finally:
            await self._end()

    # -- the program -------------------------------------------------------------------------------------

    def _is_known(self, name: str) -> bool:
        return (
            name == CALL_TOOL_FUNCTION_NAME or find_visible_tool(self._work.call, self._place.tools, name) is not None
        )

    async def _turn(self, turn: Callable[[], ProgramPause | Outcome]) -> ProgramPause | Outcome:
        async with self._turns:
            call = await self._work.wait_for_caller()
            self._place.kept -= self._kept
            self._kept = 0
            if self._slot_of is None:
                await self._place.slots.acquire_slot(call.principal, self)
                self._slot_of = call.principal
            self._began = True
            return await call.engine.in_thread(partial(self._run_turn, turn, call.session.composition.limits))

    def _run_turn(self, turn: Callable[[], ProgramPause | Outcome], limits: Limits) -> ProgramPause | Outcome:
        """A turn in a thread, and the arguments of the calls that it ends with."""
        step = turn()
        for out in step.calls if isinstance(step, ProgramPause) else ():
            try:
                self._requests[out.id] = check_call_arguments(out, limits)
            except BadToolCall as bad:
                self._requests[out.id] = bad
        return step

    async def _park(self) -> int:
        """Give the worker back before the run is parked. Waits for a turn that is not over."""
        async with self._turns:
            self.clock.stop_and_detach()
            size = await self._work.call.engine.in_thread(self._program.release_process)
            self._release_slot()
            return size

    def _on_question(self) -> None:
        if self._resting is None or self._resting.done():
            self._resting = asyncio.create_task(self._rest())

    async def _rest(self) -> None:
        """Somebody is asked within the request: leave the worker to others meanwhile, if little is kept for that."""
        async with self._turns:
            if not self.clock.paused or self._slot_of is None:
                return
            size = await self._work.call.engine.in_thread(self._program.release_process)
            if self._place.kept + size <= MAX_KEPT_BYTES:
                self._place.kept += size
                self._kept = size
                self._release_slot()

    def _attach_call(self, call: Call) -> None:
        self.clock.start_with_call(call)
        for inner in self._inner:
            inner.attach(call)

    def _release_slot(self) -> None:
        if self._slot_of is not None:
            self._place.slots.release_slot(self._slot_of, self)
            self._slot_of = None

    def _on_timeout(self) -> None:
        if self._work.task is not None:
            self._work.task.cancel()

    def _describe_timeout(self) -> str:
        seconds = f"{self._options.seconds:g} s"
        if not self._began:
            return f"the code was not run: within {seconds} no worker was free, because too much other code runs"
        return f"the code ran out of time: a run, with the calls it makes, has {seconds}"

    async def _end(self) -> None:
        self.clock.stop_and_detach()
        self._program.stop()
        self._place.kept -= self._kept
        self._kept = 0
        under_way = [task for task in (*self._calls.values(), self._resting) if task is not None and not task.done()]
        for task in under_way:
            task.cancel()
        # In a thread, because it waits for a turn that is being stopped.
        closing = asyncio.ensure_future(self._work.call.engine.in_thread(self._program.close))
        try:
            await asyncio.wait([closing, *under_way])
        finally:
            self._release_slot()

    # -- the calls ---------------------------------------------------------------------------------------

    async def _call(self, out: ProgramCall | BadToolCall) -> ProgramCallAnswer:
        if isinstance(out, BadToolCall):
            return out.answer
        async with self._at_once:
            call = await self._work.wait_for_caller()
            try:
                tool, arguments = resolve_tool_call(call, self._place.tools, out)
            except BadToolCall as bad:
                return bad.answer
            inner = make_inner_call(call, tool.name, arguments)
            inner.nth = len(self.made)
            inner.local(ParkedWorkMarker).work = self._work
            self.made.append(tool.name)
            self._inner.add(inner)
            try:
                return await run_tool_call(inner, tool)
            finally:
                self._inner.discard(inner)
                reporting.send_progress(self._work.call, inner.nth + 1, None, f"{tool.name} was called")

    async def _await_answers(self, pause: ProgramPause) -> Mapping[int, ProgramCallAnswer]:
        """The answer that the program needs, or those that are there when the first one is."""
        if pause.needs is not None:
            return {pause.needs: await self._pop_answer(pause.needs)}
        await asyncio.wait(self._calls.values(), return_when=asyncio.FIRST_COMPLETED)
        done = [id for id, task in self._calls.items() if task.done()]
        return {id: await self._pop_answer(id) for id in done}

    async def _pop_answer(self, id: int) -> ProgramCallAnswer:
        try:
            return await self._calls[id]
        finally:
            del self._calls[id]


# -- What code mode may use: the options of `Server(code_mode=…)`.


KiB, MiB = 1024, 1024 * 1024


@explain_arguments
@dataclass(frozen=True, slots=True)
class CodeMode:
    """The limits of code mode, and how it is offered. `Server(code_mode=True)` stands for the defaults."""

    seconds: float = 30.0
    """How long one run may take. The calls it makes count, waiting for a person does not."""
    compute_seconds: float = 5.0
    """How much of that the code itself may compute."""
    memory_bytes: int = 64 * MiB
    """The heap of the code."""
    output_bytes: int = 64 * KiB
    """The most that it may print, and the most that its value may take. One byte more ends the run."""
    source_bytes: int = 64 * KiB
    """The most that the code itself may have."""
    calls: int = 100
    """How many tools one run may call."""
    argument_bytes: int = 16 * MiB
    """What the arguments of its calls may take as long as they have no answer. One byte more ends the run."""
    at_once: int = 8
    """How many of them may run at the same time."""
    workers: int = 8
    """How many runs may go on at the same time, half of them for one caller. More wait. Each has its own processes."""
    parked: int = 64
    """How many runs may wait for an answer, where a question ends the request (2026-07-28)."""
    scopes: Sequence[str] = ()
    """What a caller's token must hold to run code. The tools that the code calls keep their own."""
    list_tools: bool = True
    """False leaves the other tools out of `tools/list`: a model finds them with `describe_tools`."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("scopes", "list_tools") and not is_positive_number(value):
                raise UsageError(
                    f"CodeMode({field.name}={value!r}) must be positive and finite", fix="leave it out for the default"
                )


def parse_code_mode_option(given: object) -> CodeMode:
    """The options of `Server(code_mode=given)`. Raises UsageError for what is neither True nor a CodeMode."""
    if given is True:
        return CodeMode()
    if not isinstance(given, CodeMode):
        raise UsageError(f"Server(code_mode={given!r}) is not possible", fix="use True, or CodeMode(…)")
    return given


# -- The time of one run: it stands still while a person is asked, and goes on in the next request of the same run.


class RunClock:
    """Calls `expired` when the seconds are over, and `asking` when somebody is asked.

    It stands in for the timer of the call that waits for the run.
    """

    def __init__(self, seconds: float, expired: Callable[[], object], asking: Callable[[], object]) -> None:
        self.over = self.paused = False
        self._seconds, self._left, self._expired, self._on_question = seconds, seconds, expired, asking
        self._since, self._handle = 0.0, None
        self._call: Call | None = None
        self._outer = None

    def start_with_call(self, call: Call) -> None:
        """Run while this call does. Whoever pauses its timer pauses the clock too."""
        self._call, self._outer = call, call.timer
        call.timer = self
        self._start()

    def stop_and_detach(self) -> None:
        """Stop, and give the call its own timer back."""
        self._stop()
        if self._call is not None and self._call.timer is self:
            self._call.timer = self._outer

    def pause(self) -> None:
        self.paused = True
        self._stop()
        if self._outer is not None:
            self._outer.pause()
        self._on_question()

    def resume(self) -> None:
        self.paused = False
        self._start()
        if self._outer is not None:
            self._outer.resume()

    def extend(self, most: float) -> None:
        """A run has its seconds, whatever the tools that it calls report."""

    @property
    def error(self) -> TimedOut:
        if self._outer is not None:
            return self._outer.error
        return TimedOut(f"timed out after {self._seconds:g} s", data={"timeout_ms": int(self._seconds * 1000)})

    def _start(self) -> None:
        if self._handle is None and not self.over:
            loop = asyncio.get_running_loop()
            self._since = loop.time()
            self._handle = loop.call_later(max(self._left, 0.0), self._expire)

    def _stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._left -= asyncio.get_running_loop().time() - self._since

    def _expire(self) -> None:
        self.over = True
        self._handle = None
        self._expired()


# -- The workers of code mode, shared by its callers.


class WorkerSlots:
    """Who may use a worker now. One caller has at most half of them, so that it cannot keep out the others."""

    def __init__(self, most: int) -> None:
        self._all, self._each = asyncio.Semaphore(most), max(1, most // 2)
        self._callers: dict[str, tuple[asyncio.Semaphore, set[object]]] = {}

    async def acquire_slot(self, caller: str, run: object) -> None:
        own, runs = self._callers.setdefault(caller, (asyncio.Semaphore(self._each), set()))
        runs.add(run)
        try:
            await own.acquire()
            try:
                await self._all.acquire()
            except BaseException:
                own.release()
                raise
        except BaseException:
            self._drop_run(caller, run)
            raise

    def release_slot(self, caller: str, run: object) -> None:
        self._all.release()
        self._callers[caller][0].release()
        self._drop_run(caller, run)

    def _drop_run(self, caller: str, run: object) -> None:
        runs = self._callers[caller][1]
        runs.discard(run)
        if not runs:
            del self._callers[caller]
