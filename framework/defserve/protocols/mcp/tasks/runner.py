"""The tasks that run on one loop of this process, and those that somebody here wants to hear of.

What another process does to a task (an answer, a cancellation) is found by looking at the store every `LOOK_SECONDS`,
for as long as a task runs or is listened to here. What happens in this process is known at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, cast

from pydantic_core import to_json

from defserve.base.background import BackgroundTasks
from defserve.core.call import Call
from defserve.errors import LimitExceeded, Refused, TooManyCalls
from defserve.limits import Limits
from defserve.protocols.mcp.tasks.accounts import TaskAccounts
from defserve.protocols.mcp.tasks.heartbeat import Heartbeat
from defserve.protocols.mcp.tasks.record import StoredTask, TaskRecord
from defserve.protocols.mcp.tasks.run import TaskRun
from defserve.protocols.mcp.tasks.storage import Alter, TaskStorage
from defserve.protocols.mcp.tools.tools import Tool

LOOK_SECONDS: Final = 0.5
FAREWELL_SECONDS: Final = 5.0
"""How long the end of a server waits for outcomes that are on their way to the store."""

LATER: Final = {"retry_after_ms": 1000}

Listener = Callable[[StoredTask], None]


class TaskRunner:
    """Runs tasks on the loop it is made on. `is_alone`: no other process can reach the store."""

    def __init__(self, storage: TaskStorage, limits: Limits, *, is_alone: bool) -> None:
        self.storage, self.limits, self.accounts = storage, limits, TaskAccounts(storage, limits)
        self.heartbeat = Heartbeat(storage.store, limits.task_heartbeat)
        self.running: dict[str, TaskRun] = {}
        self.claiming: set[str] = set()
        """Tasks of others that are about to run here."""
        self.held: dict[str, int] = {}
        """Tasks that only this process can ask for, and when they expire: other servers run them."""
        self._runs: set[TaskRun] = set()
        self._is_alone = is_alone
        self._listeners: dict[str, list[Listener]] = {}
        self._finishing = BackgroundTasks()
        self._looking: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self.heartbeat.id

    def admit(self, call: Call, tool: Tool) -> None:
        """Raises TooManyCalls if one more task must not run here. Plain calls keep half of the room and the threads."""
        limits, runs = self.limits, self._runs
        is_full = {
            "in_flight": sum(run.call.principal == call.principal for run in runs) >= limits.in_flight,
            "in_flight_total": len(runs) * 2 >= limits.in_flight_total,
            "threads": blocks(tool) and sum(run.blocks for run in runs) * 2 >= limits.threads,
        }
        for limit, is_reached in is_full.items():
            if is_reached:
                raise TooManyCalls(f"too many tasks are running (Limits.{limit})", data={"limit": limit, **LATER})

    def count(self, run: TaskRun) -> None:
        """A run has started, although its task may not have begun. It counts until `finish`."""
        self._runs.add(run)

    async def beat(self) -> None:
        """Show that this process is alive, before it takes on a task."""
        await self.heartbeat.begin(self._is_busy)

    async def create(self, run: TaskRun, record: TaskRecord) -> None:
        """Keep a new task that runs here. When this returns, every process finds it."""
        self.running[record.id] = run
        try:
            await self.beat()
            # Its arguments are held for as long as it runs, in memory if not in the record.
            size = len(record.encoded()) + len(to_json(run.call.params))
            await self.accounts.charge(record, run.call.principal, size)
            await self.storage.create(record)
        except BaseException:
            del self.running[record.id]
            raise
        self._look_on()

    def adopt(self, run: TaskRun, record: TaskRecord) -> None:
        """A task runs here whose runner has died. Its record has this runner's id."""
        self.running[record.id] = run
        self._look_on()

    def finish(self, run: TaskRun, work: Coroutine[Any, Any, Any] | None) -> None:
        """A run has ended. With the last `work` for its task, it counts until that is done."""
        if work is None:
            self._runs.discard(run)
            return

        def done(task: asyncio.Task[Any]) -> None:
            self._runs.discard(run)
            self.running.pop(run.id, None)

        self.afterwards(work).add_done_callback(done)

    def afterwards(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Do something that the end of the server waits for."""
        return self._finishing.start(_quietly(work))

    async def change(self, id: str, alter: Alter) -> StoredTask | None:
        """Change a task and tell those who listen to it here."""
        task = await self.storage.change(id, alter)
        self.tell(id, task)
        return task

    def tell(self, id: str, task: StoredTask | None) -> None:
        """A task was changed in this process."""
        if (run := self.running.get(id)) is not None:
            run.saw(task)
        listeners = self._listeners.get(id, ())
        if task is None or task.record.is_over:
            # Nothing more is to be heard of it, and to look at its result again and again would cost.
            self._listeners.pop(id, None)
        for listener in listeners:
            if task is not None:
                listener(task)

    # -- listening ---------------------------------------------------------------------------------------

    def listen(self, id: str, listener: Listener) -> None:
        self._listeners.setdefault(id, []).append(listener)
        self._look_on()

    def unlisten(self, id: str, listener: Listener) -> None:
        left = [one for one in self._listeners.pop(id, []) if one != listener]
        if left:
            self._listeners[id] = left

    # -- life --------------------------------------------------------------------------------------------

    async def end(self) -> None:
        """The server ends: runs that are left are cut off, and outcomes get a moment to reach the store."""
        cut = list(self._runs)
        for run in cut:
            run.cut()
        # What they clean up may need what other extensions close next.
        if stopping := [cast("asyncio.Task[Any]", run.call.task) for run in cut if run.call.task is not None]:
            await asyncio.wait(stopping, timeout=self.limits.farewell)
        if self._looking is not None:
            self._looking.cancel()
        if self._finishing:
            await asyncio.wait(self._finishing, timeout=FAREWELL_SECONDS)
        self._finishing.cancel()
        await self.heartbeat.end()

    def _is_busy(self) -> bool:
        now = self.storage.now()
        return bool(self.running or self.claiming) or any(expires > now for expires in self.held.values())

    def _look_on(self) -> None:
        if not self._is_alone and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while self.running or self._listeners:
            await asyncio.sleep(LOOK_SECONDS)
            # A task that is being made may not be in the store yet.
            ids = {run.id for run in self.running.values() if run.id} | self._listeners.keys()
            with suppress(Refused):
                found = await asyncio.gather(*(self.storage.find(id) for id in ids))
                for id, task in zip(ids, found, strict=True):
                    self.tell(id, task)


def blocks(tool: Tool) -> bool:
    """Whether a tool takes a worker thread for as long as it runs."""
    return tool.function.signature.flow in ("sync", "generator") and not tool.function.inline


async def _quietly(work: Coroutine[Any, Any, Any]) -> None:
    with suppress(Refused, LimitExceeded):
        await work
