"""One run of a task: the call goes on in a session of its own, after the request that made it was answered.

`TaskRunner` has the runs of one loop of this process; `ctx.task` is the run as its function sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from pydantic_core import from_json, to_json

from defserve.base.concurrency import BackgroundTasks
from defserve.base.redaction import get_logger
from defserve.core.call import Call
from defserve.core.extension import Next, OutgoingMessage
from defserve.core.messages import INTERNAL_ERROR, Params
from defserve.core.peer import make_error_object
from defserve.core.session import Session
from defserve.errors import Draining, LimitExceeded, Refused, TooManyCalls
from defserve.limits import Limits
from defserve.protocols.mcp.asking.round_trips import RoundTrips, get_call_marks, restore_call_marks
from defserve.protocols.mcp.reporting import CallReports
from defserve.protocols.mcp.tasks.records import (
    MAX_STATUS_MESSAGE_LENGTH,
    NO_RUNNER,
    Heartbeat,
    RecordChange,
    StoredTask,
    TaskQuotas,
    TaskRecord,
    TaskStorage,
)
from defserve.protocols.mcp.tools import Tool

if TYPE_CHECKING:
    from defserve.auth.principals import Principal
    from defserve.core.composition import NegotiatedTerms


SAY_SECONDS: Final = 0.5
"""The least time between two status messages that are kept."""
FIRST_PAUSE: Final = 0.1
MAX_PAUSE_SECONDS: Final = 5.0
SHUT_DOWN: Final = "the server was shut down before the task ended"


log = get_logger()


class TaskRun:
    """A call in the background. `begun` is its task's creation, or the reply if it ended before it began.

    It runs for who makes `origin`, by its terms, unless a `stranger` or other `terms` are given.
    `record` is None until the task has begun. `is_lost`: somebody else has ended the task, or runs it. `blocks`: it
    takes a worker thread.
    """

    def __init__(
        self,
        runner: TaskRunner,
        origin: Call,
        params: Params,
        make_record: Callable[[], TaskRecord],
        *,
        blocks: bool,
        terms: NegotiatedTerms | None = None,
        stranger: Principal | None = None,
    ) -> None:
        self.blocks = blocks
        self.begun: asyncio.Future[Params | bytes] = asyncio.get_running_loop().create_future()
        self.record: TaskRecord | None = None
        self.is_lost = False
        self._runner, self._make_record = runner, make_record
        session, caller = origin.session, stranger or origin.identity
        self._session = TaskSession(
            session.composition,
            session.engine,
            self._receive,
            principal=stranger.id if stranger is not None else origin.principal,
            is_local=session.is_local and stranger is None,
            identity=caller,
            is_shared_identity=stranger.is_shared_identity if stranger is not None else session.is_shared_identity,
            counted=False,
        )
        self._session.is_cut = False
        self.call = Call(self._session, "task", "tools/call", params, params, terms or origin.terms)
        self.call.identity = caller
        self.call.local(InTask).task = self
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._taken: dict[str, str] = {}
        self._message = self._told = ""
        self._telling: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None

    # -- for the function --------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self.record.id if self.record is not None else ""

    @property
    def retries(self) -> int:
        return self.record.retries if self.record is not None else 0

    def say(self, message: str) -> None:
        self._message = message[:MAX_STATUS_MESSAGE_LENGTH]
        if self.call.engine.is_on_loop():
            self._tell_soon()
        else:
            self.call.engine.post_to_loop(self._tell_soon)

    async def begin(self) -> None:
        if self.record is None:
            record = self._make_record()
            record.message = self._told = self._message
            if record.arguments is not None:
                rounds = self.call.local(RoundTrips)
                record.answers, record.effects = dict(rounds.answers), dict(rounds.effects.done)
                record.marks = get_call_marks(self.call)
            await self._runner.create_task(self, record)
            self._go_on(record)
            if not self.begun.done():
                self.begun.set_result({"resultType": "task", **record.to_wire()})

    # -- life --------------------------------------------------------------------------------------------

    def start(self, following: Next) -> None:
        """Run the rest of the call in the background."""
        self._runner.runs.add(self)
        self._session.in_flight[self.call.id] = self.call
        self._session.composition.running += 1
        self.call.engine.start_call(self.call, following(self.call, self.call.params))  # pyright: ignore[reportArgumentType]

    def resume(self, record: TaskRecord, following: Next) -> None:
        """Run a task again whose runner has died. It has begun, and finds the answers that were given before."""
        rounds = self.call.local(RoundTrips)
        rounds.answers = {key: (asked, said) for key, (asked, said) in record.answers.items()}
        rounds.effects.done = dict(record.effects)
        restore_call_marks(self.call, record.marks)
        self._taken = dict.fromkeys(record.answers, "") | {key: one["digest"] for key, one in record.questions.items()}
        self._go_on(record)
        self.start(following)

    def _go_on(self, record: TaskRecord) -> None:
        self.record = record
        rounds = self.call.local(RoundTrips)
        rounds.wait_for_answer = self._ask
        if record.arguments is not None:
            rounds.keep_effect = self._keep_effect
        self.call.local(CallReports).also = self._on_progress
        left = (record.expires - self._runner.storage.now()) / 1000
        self._deadline = asyncio.get_running_loop().call_later(left, self.stop)

    def stop(self) -> None:
        """Cancel the call. What it still does makes no difference to the task."""
        self.is_lost = True
        self._session.cancel(self.call.id)

    def apply_stored_task(self, task: StoredTask | None) -> None:
        """The task as it is in the store now: it may have been ended, or its questions answered, by another process."""
        if self.record is None or (task is not None and task.record.revision < self.record.revision):
            return  # it was read before this run began
        if task is None or task.record.is_over or task.record.runner != self._runner.id:
            self.stop()
            return
        for key, waiting in list(self._waiting.items()):
            if key in task.record.answers and not waiting.done():
                waiting.set_result(task.record.answers[key][1])

    def abort(self) -> None:
        """The server ends, so the run ends too."""
        self._session.fail(self.call, Draining("the server is shutting down"))
        self.call.stop()

    def _receive(self, message: OutgoingMessage) -> None:
        """What the call sends. A task has no progress and no log messages on the wire, only its outcome."""
        if message.taken is not None:
            message.taken()
        if not message.answers:
            return
        self.call.engine.call_soon(self._session.close)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._telling is not None:
            self._telling.cancel()
        if self.record is None:
            self._runner.finish_run(self, None)
            if not self.begun.done():
                self.begun.set_result(message.data)
        else:
            self._runner.finish_run(self, self._persist_outcome(self.record, message.data))

    async def _persist_outcome(self, record: TaskRecord, reply: bytes) -> None:
        """Keep the outcome, however long it takes to reach the store."""
        pause = FIRST_PAUSE
        while not self.is_lost and record.expires > self._runner.storage.now():
            try:
                await self._store_outcome(record, reply)
                return
            except Exception as error:
                if not isinstance(error, Refused):
                    log.error("the outcome of a task could not be kept yet", exc_info=error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_PAUSE_SECONDS)

    async def _store_outcome(self, record: TaskRecord, reply: bytes) -> None:
        outcome = (
            b""
            if self._session.is_cut
            else await charge_outcome(self._runner, record, self.call.principal, _outcome_in(reply))
        )

        def alter(found: TaskRecord) -> bytes | bool:
            if self._session.is_cut and found.retries > 0:
                found.runner, found.retries = NO_RUNNER, found.retries - 1
                return True
            if self._session.is_cut:
                return fail_task(found, SHUT_DOWN)
            error = from_json(outcome).get("error")
            if error is not None:
                found.finish("failed", str(error["message"]))
            else:
                found.finish("completed")
            return outcome

        await self._change(alter)

    async def _change(self, alter: RecordChange) -> None:
        """Change the task, unless somebody else runs it by now."""
        assert self.record is not None
        await self._runner.change_task(self.record.id, lambda found: found.runner == self._runner.id and alter(found))

    # -- what the client is told and asked ---------------------------------------------------------------

    def _on_progress(self, value: float, total: float | None, message: str | None) -> None:
        self.say(message or (f"{value:g} of {total:g}" if total is not None else f"{value:g}"))

    def _tell_soon(self) -> None:
        if self.record is not None and (self._telling is None or self._telling.done()) and not self.call.settled:
            self._telling = asyncio.create_task(self._store_status_messages())

    async def _store_status_messages(self) -> None:
        while self._told != self._message:
            self._told = message = self._message

            def alter(found: TaskRecord, message: str = message) -> bool:
                found.message = message
                return True

            with suppress(Refused):  # the next message, or the outcome, says more
                await self._change(alter)
            await asyncio.sleep(SAY_SECONDS)

    async def _ask(self, key: str, digest: str, request: Params) -> Any:
        """Leave a question in the task and wait for its answer."""
        if self._taken.get(key, digest) != digest:
            # A run before this one asked something else by this key, and a key must not come back.
            key = f"{key}~{self.retries}"
        waiting = self._waiting[key] = asyncio.get_running_loop().create_future()

        def ask(found: TaskRecord) -> bool:
            found.questions[key] = {**request, "digest": digest}
            found.status = "input_required"
            return True

        def withdraw(found: TaskRecord) -> bool:
            if found.questions.pop(key, None) is None:
                return False
            found.status = "input_required" if found.questions else "working"
            return True

        try:
            await self._change(ask)
            return await waiting
        except BaseException:
            # Others of the same function may go on, so what nobody waits for must not be asked.
            if not self.is_lost and not self._session.is_cut:
                self._runner.start_before_shutdown(self._change(withdraw))
            raise
        finally:
            del self._waiting[key]

    async def _keep_effect(self, key: str, value: Any) -> None:
        """What `ctx.once` gave is kept, so that a further run does not do it again."""

        def alter(found: TaskRecord) -> bool:
            found.effects[key] = value
            found.marks |= get_call_marks(self.call)  # the effect may come of what they tell of
            return True

        await self._change(alter)


class TaskSession(Session):
    """The conversation of a call whose peer has its answer. `is_cut`: the server ends before the call."""

    __slots__ = ("is_cut",)

    is_cut: bool

    def fail(self, call: Call, error: BaseException) -> None:
        if isinstance(error, Draining) and not call.settled:
            self.is_cut = True
        super().fail(call, error)


async def charge_outcome(runner: TaskRunner, record: TaskRecord, principal: str, outcome: bytes) -> bytes:
    """Charge an outcome to its principal. Returns it, or an outcome that says that there was no room."""
    try:
        await runner.accounts.charge_bytes(record, principal, len(record.to_bytes()) + len(outcome))
    except LimitExceeded as error:
        if error.data.get("limit") not in ("tasks", "task_bytes"):
            raise
        return to_json({"error": make_error_object(INTERNAL_ERROR, error.message, error.data)})
    return outcome


def fail_task(record: TaskRecord, message: str) -> bytes:
    """End a task that has no outcome. Returns the outcome that says so."""
    record.finish("failed", message)
    return to_json({"error": make_error_object(INTERNAL_ERROR, message, {"error_type": "task_lost"})})


def _outcome_in(reply: bytes) -> bytes:
    """`{"result": …}` or `{"error": …}`, without what belongs to the message."""
    body = from_json(reply)
    return to_json({name: body[name] for name in ("result", "error") if name in body})


# -- The tasks that run on one loop of this process, and those that somebody here wants to hear of.
#
# What another process does to a task (an answer, a cancellation) is found by looking at the store every `LOOK_SECONDS`,
# for as long as a task runs or is listened to here. What happens in this process is known at once.


LOOK_SECONDS: Final = 0.5
FAREWELL_SECONDS: Final = 5.0
"""How long the end of a server waits for outcomes that are on their way to the store."""


TaskListener = Callable[[StoredTask], None]


class TaskRunner:
    """Runs tasks on the loop it is made on. `is_alone`: no other process can reach the store."""

    def __init__(self, storage: TaskStorage, limits: Limits, *, is_alone: bool) -> None:
        self.storage, self.limits, self.accounts = storage, limits, TaskQuotas(storage, limits)
        self.heartbeat = Heartbeat(storage.store, limits.task_heartbeat)
        self.running: dict[str, TaskRun] = {}
        self.claiming: set[str] = set()
        """Tasks of others that are about to run here."""
        self.held: dict[str, int] = {}
        """Tasks that only this process can ask for, and when they expire: other servers run them."""
        self.runs: set[TaskRun] = set()
        """Those that have started, although their task may not have begun. A run counts until `finish_run`."""
        self._is_alone = is_alone
        self._listeners: dict[str, list[TaskListener]] = {}
        self._finishing = BackgroundTasks()
        self._looking: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self.heartbeat.id

    def check_capacity(self, call: Call, tool: Tool) -> None:
        """Raises TooManyCalls if one more task must not run here. Plain calls keep half of the room and the threads."""
        limits, runs = self.limits, self.runs
        is_full = {
            "in_flight": sum(run.call.principal == call.principal for run in runs) >= limits.in_flight,
            "in_flight_total": len(runs) * 2 >= limits.in_flight_total,
            "threads": needs_worker_thread(tool) and sum(run.blocks for run in runs) * 2 >= limits.threads,
        }
        for limit, is_reached in is_full.items():
            if is_reached:
                data = {"limit": limit, "retry_after_ms": 1000}
                raise TooManyCalls("too many tasks are running", data=data)

    async def renew_lease(self) -> None:
        """Show that this process is alive, before it takes on a task."""
        await self.heartbeat.start(self._is_busy)

    async def create_task(self, run: TaskRun, record: TaskRecord) -> None:
        """Keep a new task that runs here. When this returns, every process finds it."""
        self.running[record.id] = run
        try:
            await self.renew_lease()
            # Its arguments are held for as long as it runs, in memory if not in the record.
            size = len(record.to_bytes()) + len(to_json(run.call.params))
            await self.accounts.charge_bytes(record, run.call.principal, size)
            await self.storage.create(record)
        except BaseException:
            del self.running[record.id]
            raise
        self._look_on()

    def take_over_task(self, run: TaskRun, record: TaskRecord) -> None:
        """A task runs here whose runner has died. Its record has this runner's id."""
        self.running[record.id] = run
        self._look_on()

    def finish_run(self, run: TaskRun, work: Coroutine[Any, Any, Any] | None) -> None:
        """A run has ended. With the last `work` for its task, it counts until that is done."""
        if work is None:
            self.runs.discard(run)
            return

        def done(task: asyncio.Task[Any]) -> None:
            self.runs.discard(run)
            self.running.pop(run.id, None)

        self.start_before_shutdown(work).add_done_callback(done)

    def start_before_shutdown(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Do something that the end of the server waits for."""
        return self._finishing.start(_quietly(work))

    async def change_task(self, id: str, alter: RecordChange) -> StoredTask | None:
        """Change a task and tell those who listen to it here."""
        task = await self.storage.change(id, alter)
        self.notify_listeners(id, task)
        return task

    def notify_listeners(self, id: str, task: StoredTask | None) -> None:
        """A task was changed in this process."""
        if (run := self.running.get(id)) is not None:
            run.apply_stored_task(task)
        listeners = self._listeners.get(id, ())
        if task is None or task.record.is_over:
            # Nothing more is to be heard of it, and to look at its result again and again would cost.
            self._listeners.pop(id, None)
        for listener in listeners:
            if task is not None:
                listener(task)

    # -- listening ---------------------------------------------------------------------------------------

    def add_listener(self, id: str, listener: TaskListener) -> None:
        self._listeners.setdefault(id, []).append(listener)
        self._look_on()

    def remove_listener(self, id: str, listener: TaskListener) -> None:
        left = [one for one in self._listeners.pop(id, []) if one != listener]
        if left:
            self._listeners[id] = left

    # -- life --------------------------------------------------------------------------------------------

    async def shut_down(self) -> None:
        """The server ends: runs that are left are cut off, and outcomes get a moment to reach the store."""
        cut = list(self.runs)
        for run in cut:
            run.abort()
        # What they clean up may need what other extensions close next.
        if stopping := [cast("asyncio.Task[Any]", run.call.task) for run in cut if run.call.task is not None]:
            await asyncio.wait(stopping, timeout=self.limits.farewell)
        if self._looking is not None:
            self._looking.cancel()
        if self._finishing:
            await asyncio.wait(self._finishing, timeout=FAREWELL_SECONDS)
        self._finishing.cancel()
        await self.heartbeat.stop()

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
            await asyncio.gather(*map(self._look_at, ids))

    async def _look_at(self, id: str) -> None:
        """Tell what the store says of a task now. One that cannot be read keeps nobody from hearing of the others."""
        try:
            self.notify_listeners(id, await self.storage.find(id))
        except Exception as error:
            if not isinstance(error, Refused):
                log.exception("a task could not be looked for")


def needs_worker_thread(tool: Tool) -> bool:
    """Whether a tool takes a worker thread for as long as it runs."""
    return tool.function.signature.flow in ("sync", "generator") and not tool.function.inline


async def _quietly(work: Coroutine[Any, Any, Any]) -> None:
    with suppress(Refused, LimitExceeded):
        await work


# -- The task that a call runs as, for the function that runs in it: `ctx.task`.


class RunningTask(Protocol):
    """The task that this function runs as. Use it from any thread, except for `begin`."""

    @property
    def id(self) -> str:
        """The id that the client has. Empty until the task has begun."""
        ...

    @property
    def retries(self) -> int:
        """How often the task may still be run again if this process dies."""
        ...

    def say(self, message: str) -> None:
        """Set the status message, which the client sees when it asks for the task."""
        ...

    async def begin(self) -> None:
        """Begin the task now, if it has not begun. The client gets its id; what follows runs in the background.

        Needed only with `begin="later"`. Raises LimitExceeded if too many tasks are kept, and what the store raises.
        """
        ...


class InTask:
    """The place of the running task in a call."""

    task: RunningTask | None = None


def get_current_task(call: Call) -> RunningTask | None:
    """The task that a call runs as; None for a plain call."""
    found = call.peek(InTask)
    return found.task if found is not None else None
