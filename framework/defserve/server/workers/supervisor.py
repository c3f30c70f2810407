"""Keeps a group of workers: starts them, starts those again that died, replaces all of them, ends them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from defserve.base.backoff import compute_backoff
from defserve.base.concurrency import BackgroundTasks, wait_for_shared
from defserve.server.metrics import format_metric_head, format_metric_labels, merge_metrics
from defserve.server.workers.worker import (
    MAX_LINE_BYTES,
    WORKER_LINGER_SECONDS,
    WORKER_VARIABLE,
    WorkerGroupSecrets,
    WorkerLink,
    WorkerLinkLost,
    WorkerMembership,
)

FAILED: Final = 1
SLOW_AFTER: Final = 3
"""So many quick deaths in a row are a crash loop."""


def format_worker_count(workers: int) -> str:
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

    def __init__(
        self, plan: WorkerGroupPlan, say: Callable[[str], None], timing: SupervisorTiming | None = None
    ) -> None:
        self.plan, self.timing, self.say = plan, timing or SupervisorTiming(), say
        self.places = [WorkerPlace(number) for number in range(1, plan.count + 1)]
        self.running: set[WorkerProcess] = set()
        """All processes that have not ended, with those that start or leave."""
        self._gathering = WorkerQueries(self)
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

    async def _answer_worker(self, worker: WorkerProcess, what: str, about: Any) -> Any:
        match what:
            case "ready":
                worker.mark_ready(float(about))
            case "ended":
                self.say(f"{worker} was ended by a client; the others end too")
                self.stop(0)
            case _:
                return await self._gathering.answer_worker(what)
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
        self._place_workers(workers)
        started()
        async with asyncio.TaskGroup() as group:
            for place in self.places:
                group.create_task(self._keep_place_running(place))
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
            worker = await WorkerProcess.start(self.plan, number, self._answer_worker)
        except OSError as error:
            return f"worker {number} cannot be started: {error}"
        self.running.add(worker)
        worker.exited.add_done_callback(lambda _: self.running.discard(worker))
        problem = await worker.wait_until_ready(self.timing.start)
        if problem is None:
            return worker
        await worker.kill()
        return f"{worker} {problem}"

    def _place_workers(self, workers: list[WorkerProcess]) -> None:
        for place, worker in zip(self.places, workers, strict=True):
            if place.worker is not None:
                place.worker.replaced.set_result(None)
            place.worker = worker

    async def _keep_place_running(self, place: WorkerPlace) -> None:
        """Start the worker of a place again, whenever it has ended or hangs."""
        while True:
            worker = place.worker
            reason = await worker.wait_for_end(self.timing) if worker is not None else ""
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
        seconds = compute_backoff(place.quick_deaths - 1, self.timing.base, self.timing.cap)
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
            self._place_workers(workers)
            for place in self.places:
                place.quick_deaths = 0
        self.say(f"reloaded: {format_worker_count(len(workers))} started; those of before finish their calls")
        for worker in before:
            self._tasks.start(self._retire(worker))

    async def _retire(self, worker: WorkerProcess) -> None:
        worker.link.send("leave")
        if not await worker.wait_or_kill(WORKER_LINGER_SECONDS + worker.drain_seconds + self.timing.kill_after):
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
        elif (
            not await worker.wait_or_kill(worker.drain_seconds + self.timing.kill_after) and not self._at_once.is_set()
        ):
            self.say(f"{worker} did not end in time and was killed")


# -- A worker as its supervisor sees it: a process, and a link to it.


Asked: TypeAlias = Callable[["WorkerProcess", str, Any], Awaitable[Any]]
"""Answers what a worker asks."""

REPORT_SECONDS: Final = 1.0
"""How long a worker that hangs has to write where it is."""


@dataclass(frozen=True, slots=True)
class WorkerGroupPlan:
    """`command` starts a worker. It must end in `Server.run(workers=…)`. `sockets` are bound file descriptors."""

    command: tuple[str, ...]
    count: int
    sockets: tuple[int, ...]
    secrets: WorkerGroupSecrets


@dataclass(frozen=True, slots=True)
class SupervisorTiming:
    """Seconds. A worker that is not ready after `start`, or misses the pings of `hang`, is replaced.

    One that died sooner than `proven` is started again after a wait, which doubles from `base` to `cap`. One that
    should have ended is killed `kill_after` so many seconds more.
    """

    start: float = 120.0
    ping: float = 2.0
    hang: float = 30.0
    proven: float = 10.0
    base: float = 0.5
    cap: float = 30.0
    kill_after: float = 2.0
    answer: float = 2.0


class WorkerProcess:
    """`is_ready` when it serves. `drain_seconds` is how long it may take to finish its calls, in its own words."""

    link: WorkerLink

    def __init__(self, number: int, process: Process) -> None:
        loop = asyncio.get_running_loop()
        self.number, self.pid, self.began = number, process.pid, loop.time()
        self.drain_seconds = 0.0
        self._process, self._loop = process, loop
        self._ready: asyncio.Future[None] = loop.create_future()
        self._reading: asyncio.Task[None] | None = None
        self.exited = loop.create_task(process.wait())
        self.replaced: asyncio.Future[None] = loop.create_future()
        """Done when another worker has its place."""

    @classmethod
    async def start(cls, plan: WorkerGroupPlan, number: int, asked: Asked) -> WorkerProcess:
        """Raises OSError if the system has no room for a process, or cannot find its program."""
        worker: WorkerProcess | None = None
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                worker = cls(
                    number,
                    await _run(plan, WorkerMembership.from_sockets(number, plan.count, theirs, plan.sockets), theirs),
                )
            ours.sendall(plan.secrets.to_json_line())
            ours.setblocking(False)
            worker.link = await WorkerLink.open_link(ours, lambda what, about: asked(worker, what, about))
        except BaseException:
            ours.close()
            if worker is not None:
                worker.send_signal(signal.SIGKILL)
            raise
        worker._reading = worker._loop.create_task(worker.link.run())
        return worker

    def __str__(self) -> str:
        return f"worker {self.number} (process {self.pid})"

    @property
    def is_ready(self) -> bool:
        return self._ready.done() and not self.exited.done()

    def mark_ready(self, drain_seconds: float) -> None:
        self.drain_seconds = drain_seconds
        if not self._ready.done():
            self._ready.set_result(None)

    @property
    def age(self) -> float:
        return self._loop.time() - self.began

    async def wait_until_ready(self, seconds: float) -> str | None:
        """None when it serves; otherwise why it does not. It may still run then."""
        await asyncio.wait((self._ready, self.exited), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if self._ready.done():
            return None
        return self.describe_end() if self.exited.done() else f"is not ready after {seconds:g} s"

    async def wait_for_end(self, timing: SupervisorTiming) -> str:
        """Wait until it has ended, hangs or is replaced. Says how it ended, or that it hangs."""
        unanswered, received = 0, self.link.last_received
        while not self.exited.done():
            self.link.send("ping")
            await asyncio.wait((self.exited, self.replaced), timeout=timing.ping, return_when=asyncio.FIRST_COMPLETED)
            if self.replaced.done():
                return ""
            # Pings are counted, not seconds: a machine that slept has done nothing wrong.
            unanswered = unanswered + 1 if received == self.link.last_received else 0
            received = self.link.last_received
            if unanswered * timing.ping >= timing.hang and not self.exited.done():
                return f"has not answered for {timing.hang:g} s"
        return self.describe_end()

    def describe_end(self) -> str:
        code = self.exited.result()
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"

    async def report_and_kill(self) -> None:
        """Kill one that hangs. It first writes where each of its threads is, if it still can."""
        self.send_signal(signal.SIGQUIT)
        await asyncio.wait((self.exited,), timeout=REPORT_SECONDS)
        await self.kill()

    async def wait_or_kill(self, seconds: float) -> bool:
        """Wait so long until it has ended by itself, then kill it. Returns whether it ended by itself."""
        await asyncio.wait((self.exited,), timeout=seconds)
        by_itself = self.exited.done()
        await self.kill()
        return by_itself

    async def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
        await self.exited
        if self._reading is not None:
            await self._reading  # the socket is at its end: what it said last is heard

    def send_signal(self, number: signal.Signals) -> None:
        if not self.exited.done():
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


async def _run(plan: WorkerGroupPlan, member: WorkerMembership, theirs: socket.socket) -> Process:
    return await asyncio.create_subprocess_exec(
        *plan.command,
        stdin=DEVNULL,
        env={**os.environ, WORKER_VARIABLE: member.to_json()},
        pass_fds=(theirs.fileno(), *plan.sockets),
        # Ctrl-C is for the supervisor. As a second signal it would end a worker at once.
        process_group=0,
    )


# -- What a group says of itself: the metrics of all workers, and whether they live and are ready.
#
# Whoever asks while the workers are being asked gets the same answer, so that a caller cannot multiply its requests.


UP: Final = "defserve_worker_up"
RESTARTS: Final = "defserve_worker_restarts_total"


class WorkerQueries:
    """Asks the workers of a supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._underway: dict[str, asyncio.Task[Any]] = {}

    async def answer_worker(self, what: str) -> Any:
        """The answer to a worker's question about its group."""
        if (task := self._underway.get(what)) is None:
            work = self._metrics() if what == "metrics" else self._state()
            task = self._underway[what] = asyncio.create_task(work)
            task.add_done_callback(lambda _: self._underway.pop(what))
        return await wait_for_shared(task)

    async def _state(self) -> dict[str, Any]:
        """How many workers there should be, how many live, and how many of these want calls."""
        words = await self._from_all("readiness")
        return {
            "count": self._supervisor.plan.count,
            "live": len(words),
            "ready": sum(status == 200 for status, _ in words.values()),
            "stopping": self._supervisor.is_stopping,
        }

    async def _metrics(self) -> str:
        most = MAX_LINE_BYTES // (4 * self._supervisor.plan.count)  # JSON may double it, and all of them are sent on
        texts = await self._from_all("metrics", most)
        return merge_metrics(["".join(f"{line}\n" for line in self._lines(texts)), *texts.values()])

    async def _from_all(self, what: str, about: Any = None) -> dict[int, Any]:
        """The answers of those that answer in time, by number."""
        workers = [p.worker for p in self._supervisor.places if p.worker is not None and p.worker.is_ready]
        asked = (worker.link.send_request(what, about, seconds=self._supervisor.timing.answer) for worker in workers)
        found = await asyncio.gather(*asked, return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, WorkerLinkLost):
                raise each
        answered = zip(workers, found, strict=True)
        return {worker.number: value for worker, value in answered if not isinstance(value, BaseException)}

    def _lines(self, answered: dict[int, Any]) -> Iterator[str]:
        """The metrics that a supervisor knows itself."""
        places = self._supervisor.places
        yield from format_metric_head(UP, "gauge", "Whether a worker answers.")
        for place in places:
            yield f"{UP}{format_metric_labels(worker=str(place.number))} {int(place.number in answered)}"
        yield from format_metric_head(RESTARTS, "counter", "How often a worker was started again.")
        for place in places:
            yield f"{RESTARTS}{format_metric_labels(worker=str(place.number))} {place.restarts}"
