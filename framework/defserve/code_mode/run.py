"""One run of a model's code: turns of the program in a thread, and between them the calls that it makes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from defserve.code_mode.arguments import BadCall, as_json
from defserve.code_mode.calling import CALL_TOOL, answer, requested, seen
from defserve.code_mode.clock import RunClock
from defserve.code_mode.options import CodeMode
from defserve.code_mode.slots import WorkerSlots
from defserve.core.call import Call, InnerCall
from defserve.core.registry import Registry
from defserve.limits import Limits
from defserve.protocols.mcp import reporting
from defserve.protocols.mcp.asking.parking import AsksParked, ParkedWork, Parking
from defserve.protocols.mcp.tools.inner_calls import inner_call
from defserve.protocols.mcp.tools.tools import Tool
from defserve.sandbox.callouts import Answer, CallOut, Pause, Program, Workers
from defserve.sandbox.outcome import Outcome, SandboxLimits

# How many of the calls are named in an error.
NAMED = 20
# Bytes of all runs that wait for an answer within their request, and have given their worker back.
MOST_KEPT = 64 * 1024 * 1024


class RunPlace:
    """What the runs of a server share on one event loop: tools, worker processes, and the runs that are parked."""

    def __init__(self, options: CodeMode, tools: Registry[Tool]) -> None:
        self.options, self.tools = options, tools
        self.workers = Workers(options.workers, options.compute_seconds)
        self.slots = WorkerSlots(options.workers)
        self.parking = Parking(most=options.parked)
        self.kept = 0


class CodeRun:
    """Runs a program to its end. It may be parked meanwhile: `work` knows the request that waits for it."""

    def __init__(self, place: RunPlace, work: ParkedWork, source: str) -> None:
        options = place.options
        self._place, self._work, self._options = place, work, options
        limits = SandboxLimits(
            seconds=options.compute_seconds, memory_bytes=options.memory_bytes, output_bytes=options.output_bytes
        )
        self._program = Program(place.workers, source, limits, self._is_known, options.calls)
        self._calls: dict[int, asyncio.Task[Answer]] = {}
        self._requests: dict[int, CallOut | BadCall] = {}
        self._inner: set[InnerCall] = set()
        self._at_once, self._turns = asyncio.Semaphore(options.at_once), asyncio.Lock()
        self._slot_of: str | None = None
        self._began = False
        self.made: list[str] = []
        self._resting: asyncio.Task[None] | None = None
        self._kept = 0
        self.clock = RunClock(options.seconds, self._out_of_time, self._asking)
        work.note, work.prepare, work.attached = self.note, self._park, self._attached
        self.clock.follow(work.call)

    def note(self) -> str:
        """Which tools it has called, in words."""
        if not self.made:
            return "No tool had been called."
        more = f" and {len(self.made) - NAMED} more" if len(self.made) > NAMED else ""
        return f"These tools had been called: {', '.join(self.made[:NAMED])}{more}."

    async def run(self) -> Outcome:
        """Never raises for what the code does."""
        try:
            step, left = await self._turn(self._program.start), self._options.calls
            while isinstance(step, Pause):
                left -= len(step.calls)
                if left < 0:
                    most = f"the code has called more than {self._options.calls} tools"
                    return Outcome("error", stdout=self._program.printed, error=most)
                for out in step.calls:
                    self._begin(out)
                if not self._calls:
                    return Outcome("error", stdout=self._program.printed, error="the code waits for what never comes")
                step = await self._turn(partial(self._program.resume, await self._answers(step)))
            if forgotten := [out.line for out in self._program.unmade] if step else []:
                note = f"(a call on line {forgotten[0]} was not awaited, so it was not made)\n"
                return replace(step, stdout=step.stdout + note)
            return step
        except asyncio.CancelledError:
            if not self.clock.over:
                raise
            return Outcome("timeout", stdout=self._program.printed, error=self._late())
        finally:
            await self._end()

    # -- the program -------------------------------------------------------------------------------------

    def _is_known(self, name: str) -> bool:
        return name == CALL_TOOL or seen(self._work.call, self._place.tools, name) is not None

    async def _turn(self, turn: Callable[[], Pause | Outcome]) -> Pause | Outcome:
        async with self._turns:
            call = await self._work.caller()
            self._place.kept -= self._kept
            self._kept = 0
            if self._slot_of is None:
                await self._place.slots.take(call.principal, self)
                self._slot_of = call.principal
            self._began = True
            return await call.engine.in_thread(partial(self._read, turn, call.session.composition.limits))

    def _read(self, turn: Callable[[], Pause | Outcome], limits: Limits) -> Pause | Outcome:
        """A turn in a thread, and the arguments of the calls that it ends with."""
        step = turn()
        for out in step.calls if isinstance(step, Pause) else ():
            try:
                self._requests[out.id] = as_json(out, limits)
            except BadCall as bad:
                self._requests[out.id] = bad
        return step

    async def _park(self) -> int:
        """Give the worker back before the run is parked. Waits for a turn that is not over."""
        async with self._turns:
            self.clock.leave()
            size = await self._work.call.engine.in_thread(self._program.park)
            self._give_back()
            return size

    def _asking(self) -> None:
        if self._resting is None or self._resting.done():
            self._resting = asyncio.create_task(self._rest())

    async def _rest(self) -> None:
        """Somebody is asked within the request: leave the worker to others meanwhile, if little is kept for that."""
        async with self._turns:
            if not self.clock.paused or self._slot_of is None:
                return
            size = await self._work.call.engine.in_thread(self._program.park)
            if self._place.kept + size <= MOST_KEPT:
                self._place.kept += size
                self._kept = size
                self._give_back()

    def _attached(self, call: Call) -> None:
        self.clock.follow(call)
        for inner in self._inner:
            inner.attach(call)

    def _give_back(self) -> None:
        if self._slot_of is not None:
            self._place.slots.give_back(self._slot_of, self)
            self._slot_of = None

    def _out_of_time(self) -> None:
        if self._work.task is not None:
            self._work.task.cancel()

    def _late(self) -> str:
        seconds = f"{self._options.seconds:g} s"
        if not self._began:
            return f"the code was not run: within {seconds} no worker was free, because too much other code runs"
        return f"the code ran out of time: a run, with the calls it makes, has {seconds}"

    async def _end(self) -> None:
        self.clock.leave()
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
            self._give_back()

    # -- the calls ---------------------------------------------------------------------------------------

    def _begin(self, out: CallOut) -> None:
        self._calls[out.id] = asyncio.create_task(self._call(self._requests.pop(out.id)))

    async def _call(self, out: CallOut | BadCall) -> Answer:
        if isinstance(out, BadCall):
            return out.answer
        async with self._at_once:
            call = await self._work.caller()
            try:
                tool, arguments = requested(call, self._place.tools, out)
            except BadCall as bad:
                return bad.answer
            inner = inner_call(call, tool.name, arguments)
            inner.nth = len(self.made)
            inner.local(AsksParked).work = self._work
            self.made.append(tool.name)
            self._inner.add(inner)
            try:
                return await answer(inner, tool)
            finally:
                self._inner.discard(inner)
                reporting.progress(self._work.call, inner.nth + 1, None, f"{tool.name} was called")

    async def _answers(self, pause: Pause) -> Mapping[int, Answer]:
        """The answer that the program needs, or those that are there when the first one is."""
        if pause.needs is not None:
            return {pause.needs: await self._taken(pause.needs)}
        await asyncio.wait(self._calls.values(), return_when=asyncio.FIRST_COMPLETED)
        done = [id for id, task in self._calls.items() if task.done()]
        return {id: await self._taken(id) for id in done}

    async def _taken(self, id: int) -> Answer:
        try:
            return await self._calls[id]
        finally:
            del self._calls[id]
