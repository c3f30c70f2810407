"""Keeps a group of workers: starts them, starts those again that died, replaces all of them, ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from defserve.base.background import BackgroundTasks
from defserve.serving.workers.gathering import Gathering
from defserve.serving.workers.process import GroupPlan, Timing, WorkerProcess

FAILED: Final = 1
SLOW_AFTER: Final = 3
"""So many quick deaths in a row are a crash loop."""


def counted(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


@dataclass(slots=True)
class WorkerPlace:
    """One of the numbers that workers have. `turn` is held by who starts a worker for it."""

    number: int
    worker: WorkerProcess | None = None
    restarts: int = 0
    quick_deaths: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Supervisor:
    """Runs until `stop`, or until the first worker cannot start. `say` tells a person what happens, a line each."""

    def __init__(self, plan: GroupPlan, say: Callable[[str], None], timing: Timing | None = None) -> None:
        self.plan, self.timing, self.say = plan, timing or Timing(), say
        self.places = [WorkerPlace(number) for number in range(1, plan.count + 1)]
        self.running: set[WorkerProcess] = set()
        """All processes that have not ended, with those that start or leave."""
        self._gathering = Gathering(self)
        self._stopping: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._at_once = asyncio.Event()
        self._is_reload_wanted = asyncio.Event()
        self._tasks = BackgroundTasks()

    # -- asked by signals and workers --------------------------------------------------------------------

    def stop(self, code: int) -> None:
        """Let the workers finish their calls, and end with this exit code. A second time: end at once."""
        if not self._stopping.done():
            self._stopping.set_result(code)
        else:
            self._at_once.set()

    def reload(self) -> None:
        """Replace the workers when nothing else keeps them from it."""
        self._is_reload_wanted.set()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.done()

    async def _asked(self, worker: WorkerProcess, what: str, about: Any) -> Any:
        match what:
            case "ready":
                worker.ready(float(about))
            case "ended":
                self.say(f"{worker} was ended by a client; the others end too")
                self.stop(0)
            case _:
                return await self._gathering.answer(what)
        return None

    # -- its life ----------------------------------------------------------------------------------------

    async def run(self, started: Callable[[], None] = lambda: None) -> int:
        """The exit code. `started` is called when all workers serve."""
        serving = asyncio.ensure_future(self._serve(started))
        try:
            await asyncio.wait((serving, self._stopping), return_when=asyncio.FIRST_COMPLETED)
            return self._stopping.result() if self._stopping.done() else serving.result()
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            if not self._stopping.done():
                self._stopping.set_result(FAILED)
            await self._end_all()

    async def _serve(self, started: Callable[[], None]) -> int:
        """Start the workers and keep them. Returns only if they cannot start."""
        workers = await self._generation()
        if isinstance(workers, str):
            self.say(workers)
            return FAILED
        self._put(workers)
        started()
        async with asyncio.TaskGroup() as group:
            for place in self.places:
                group.create_task(self._keep(place))
            while True:
                await self._is_reload_wanted.wait()
                self._is_reload_wanted.clear()
                await self._replace_all()

    async def _generation(self) -> list[WorkerProcess] | str:
        """A new worker for each place, all of them ready; or why there are none.

        The first one starts alone: if the server cannot be loaded, that is told once.
        """
        workers: list[WorkerProcess] = []
        for places in (self.places[:1], self.places[1:]):
            found = await asyncio.gather(*(self._start(place.number) for place in places))
            workers += [each for each in found if isinstance(each, WorkerProcess)]
            if problems := [each for each in found if isinstance(each, str)]:
                await asyncio.gather(*(worker.kill() for worker in workers))
                return problems[0]
        return workers

    async def _start(self, number: int) -> WorkerProcess | str:
        """A worker that is ready, or why there is none."""
        try:
            worker = await WorkerProcess.start(self.plan, number, self._asked)
        except OSError as error:
            return f"worker {number} cannot be started: {error}"
        self.running.add(worker)
        worker.exited.add_done_callback(lambda _: self.running.discard(worker))
        problem = await worker.until_ready(self.timing.start)
        if problem is None:
            return worker
        await worker.kill()
        return f"{worker} {problem}"

    def _put(self, workers: list[WorkerProcess]) -> None:
        for place, worker in zip(self.places, workers, strict=True):
            if place.worker is not None:
                place.worker.replaced.set_result(None)
            place.worker = worker

    async def _keep(self, place: WorkerPlace) -> None:
        """Start the worker of a place again, whenever it has ended or hangs."""
        while True:
            worker = place.worker
            reason = await worker.over(self.timing) if worker is not None else ""
            if place.worker is not worker:
                continue  # it was replaced
            if worker is not None and not worker.exited.done():
                self.say(f"{worker} {reason}; it is killed and replaced")
                await worker.report_and_kill()
            elif worker is not None:
                self.say(f"{worker} {reason}; it is replaced")
            place.quick_deaths = place.quick_deaths + 1 if worker is None or worker.age < self.timing.proven else 0
            await asyncio.sleep(self._wait_before(place))
            async with place.turn:
                if place.worker is worker:
                    await self._start_again(place)

    def _wait_before(self, place: WorkerPlace) -> float:
        """How long a place stays empty. A crash loop is told each time."""
        if not place.quick_deaths:
            return 0
        seconds = min(self.timing.base * 2 ** min(place.quick_deaths - 1, 16), self.timing.cap)
        if place.quick_deaths >= SLOW_AFTER:
            self.say(
                f"worker {place.number} ended early {place.quick_deaths} times in a row; next start in {seconds:g} s"
            )
        return seconds

    async def _start_again(self, place: WorkerPlace) -> None:
        place.restarts += 1
        found = await self._start(place.number)
        place.worker = found if isinstance(found, WorkerProcess) else None
        self.say(f"{found} started" if place.worker is not None else f"{found}; it is tried again")

    async def _replace_all(self) -> None:
        async with AsyncExitStack() as turns:
            for place in self.places:
                await turns.enter_async_context(place.turn)
            workers = await self._generation()
            if isinstance(workers, str):
                self.say(f"not reloaded: {workers}; the workers of before go on")
                return
            before = [place.worker for place in self.places if place.worker is not None]
            self._put(workers)
            for place in self.places:
                place.quick_deaths = 0
        self.say(f"reloaded: {counted(len(workers))} started; those of before finish their calls")
        for worker in before:
            self._tasks.start(self._retire(worker))

    async def _retire(self, worker: WorkerProcess) -> None:
        worker.link.send("leave")
        if not await worker.end(worker.drain_seconds + self.timing.kill_after):
            self.say(f"{worker} did not leave in time and was killed")

    async def _end_all(self) -> None:
        self._tasks.cancel()
        left = [*self.running]
        for worker in left:
            worker.link.send("end")
        ends = asyncio.gather(*(self._end(worker) for worker in left))
        at_once = asyncio.ensure_future(self._at_once.wait())
        await asyncio.wait((ends, at_once), return_when=asyncio.FIRST_COMPLETED)
        at_once.cancel()
        if not ends.done():
            await asyncio.gather(*(worker.kill() for worker in left))
        await ends

    async def _end(self, worker: WorkerProcess) -> None:
        if not worker.is_ready:  # it has no calls to finish, and cannot hear that it should end
            await worker.kill()
        elif not await worker.end(worker.drain_seconds + self.timing.kill_after) and not self._at_once.is_set():
            self.say(f"{worker} did not end in time and was killed")
