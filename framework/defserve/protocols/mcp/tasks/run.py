"""One run of a task: the call goes on in a session of its own, after the request that made it was answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import from_json, to_json

from defserve.core.call import Call
from defserve.core.extension import Next, OutgoingMessage
from defserve.core.profile import error_object
from defserve.core.session import Session
from defserve.errors import Draining, LimitExceeded, Refused
from defserve.protocols.mcp.asking.marks import marks_of, restore_marks
from defserve.protocols.mcp.asking.round_trips import RoundTrips
from defserve.protocols.mcp.reporting import Reported
from defserve.protocols.mcp.tasks.current import InTask
from defserve.protocols.mcp.tasks.record import MOST_MESSAGE, NOBODY, StoredTask, TaskRecord
from defserve.protocols.mcp.tasks.storage import Alter
from defserve.wire.messages import INTERNAL_ERROR, Params

if TYPE_CHECKING:
    from defserve.auth.principals import Principal
    from defserve.core.composition import Terms
    from defserve.protocols.mcp.tasks.runner import TaskRunner

SAY_SECONDS: Final = 0.5
"""The least time between two status messages that are kept."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
SHUT_DOWN: Final = "the server was shut down before the task ended"

MakeRecord = Callable[[], TaskRecord]

log = logging.getLogger("defserve")


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
        make_record: MakeRecord,
        *,
        blocks: bool,
        terms: Terms | None = None,
        stranger: Principal | None = None,
    ) -> None:
        self.blocks = blocks
        self.begun: asyncio.Future[Params | bytes] = asyncio.get_running_loop().create_future()
        self.record: TaskRecord | None = None
        self.is_lost = self._is_cut = False
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
        self._session.on_cut = self._note_cut
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
        self._message = message[:MOST_MESSAGE]
        if self.call.engine.on_loop():
            self._tell_soon()
        else:
            self.call.engine.post(self._tell_soon)

    async def begin(self) -> None:
        if self.record is None:
            record = self._make_record()
            record.message = self._told = self._message
            if record.arguments is not None:
                rounds = self.call.local(RoundTrips)
                record.answers, record.effects = dict(rounds.answers), dict(rounds.effects.done)
                record.marks = marks_of(self.call)
            await self._runner.create(self, record)
            self._go_on(record)
            if not self.begun.done():
                self.begun.set_result({"resultType": "task", **record.wire()})

    # -- life --------------------------------------------------------------------------------------------

    def start(self, following: Next) -> None:
        """Run the rest of the call in the background."""
        self._runner.count(self)
        self._session.in_flight[self.call.id] = self.call
        self._session.composition.running += 1
        self.call.engine.start(self.call, following(self.call, self.call.params))  # pyright: ignore[reportArgumentType]

    def resume(self, record: TaskRecord, following: Next) -> None:
        """Run a task again whose runner has died. It has begun, and finds the answers that were given before."""
        rounds = self.call.local(RoundTrips)
        rounds.answers = {key: (asked, said) for key, (asked, said) in record.answers.items()}
        rounds.effects.done = dict(record.effects)
        restore_marks(self.call, record.marks)
        self._taken = dict.fromkeys(record.answers, "") | {key: one["digest"] for key, one in record.questions.items()}
        self._go_on(record)
        self.start(following)

    def _go_on(self, record: TaskRecord) -> None:
        self.record = record
        rounds = self.call.local(RoundTrips)
        rounds.wait_for_answer = self._ask
        if record.arguments is not None:
            rounds.keep_effect = self._keep_effect
        self.call.local(Reported).also = self._progressed
        left = (record.expires - self._runner.storage.now()) / 1000
        self._deadline = asyncio.get_running_loop().call_later(left, self.stop)

    def stop(self) -> None:
        """Cancel the call. What it still does makes no difference to the task."""
        self.is_lost = True
        self._session.cancel(self.call.id)

    def saw(self, task: StoredTask | None) -> None:
        """The task as it is in the store now: it may have been ended, or its questions answered, by another process."""
        if self.record is None or (task is not None and task.record.revision < self.record.revision):
            return  # it was read before this run began
        if task is None or task.record.is_over or task.record.runner != self._runner.id:
            self.stop()
            return
        for key, waiting in list(self._waiting.items()):
            if key in task.record.answers and not waiting.done():
                waiting.set_result(task.record.answers[key][1])

    def cut(self) -> None:
        """The server ends, so the run ends too."""
        self._session.fail(self.call, Draining("the server is shutting down"))
        self.call.stop()

    def _note_cut(self) -> None:
        self._is_cut = True

    def _receive(self, message: OutgoingMessage) -> None:
        """What the call sends. A task has no progress and no log messages on the wire, only its outcome."""
        if message.taken is not None:
            message.taken()
        if not message.answers:
            return
        self.call.engine.soon(self._session.close)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._telling is not None:
            self._telling.cancel()
        if self.record is None:
            self._runner.finish(self, None)
            if not self.begun.done():
                self.begun.set_result(message.data)
        else:
            self._runner.finish(self, self._finished(self.record, message.data))

    async def _finished(self, record: TaskRecord, reply: bytes) -> None:
        """Keep the outcome, however long it takes to reach the store."""
        pause = FIRST_PAUSE
        while not self.is_lost and record.expires > self._runner.storage.now():
            try:
                await self._keep(record, reply)
                return
            except Exception as error:
                if not isinstance(error, Refused):
                    log.error("the outcome of a task could not be kept yet", exc_info=error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _keep(self, record: TaskRecord, reply: bytes) -> None:
        outcome = b"" if self._is_cut else await charged(self._runner, record, self.call.principal, _outcome_in(reply))

        def alter(found: TaskRecord) -> bytes | bool:
            if self._is_cut and found.retries > 0:
                found.runner, found.retries = NOBODY, found.retries - 1
                return True
            if self._is_cut:
                return fail(found, SHUT_DOWN)
            error = from_json(outcome).get("error")
            if error is not None:
                found.end("failed", str(error["message"]))
            else:
                found.end("completed")
            return outcome

        await self._change(alter)

    async def _change(self, alter: Alter) -> None:
        """Change the task, unless somebody else runs it by now."""
        assert self.record is not None
        mine = self._runner.id
        await self._runner.change(self.record.id, lambda found: found.runner == mine and alter(found))

    # -- what the client is told and asked ---------------------------------------------------------------

    def _progressed(self, value: float, total: float | None, message: str | None) -> None:
        self.say(message or (f"{value:g} of {total:g}" if total is not None else f"{value:g}"))

    def _tell_soon(self) -> None:
        if self.record is not None and (self._telling is None or self._telling.done()) and not self.call.settled:
            self._telling = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
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
            if not self.is_lost and not self._is_cut:
                self._runner.afterwards(self._change(withdraw))
            raise
        finally:
            del self._waiting[key]

    async def _keep_effect(self, key: str, value: Any) -> None:
        """What `ctx.once` gave is kept, so that a further run does not do it again."""

        def alter(found: TaskRecord) -> bool:
            found.effects[key] = value
            found.marks |= marks_of(self.call)  # the effect may come of what they tell of
            return True

        await self._change(alter)


class TaskSession(Session):
    """The conversation of a call whose peer has its answer. `on_cut` is told that the server ends before the call."""

    __slots__ = ("on_cut",)

    on_cut: Callable[[], None]

    def fail(self, call: Call, error: BaseException) -> None:
        if isinstance(error, Draining) and not call.settled:
            self.on_cut()
        super().fail(call, error)


async def charged(runner: TaskRunner, record: TaskRecord, principal: str, outcome: bytes) -> bytes:
    """Charge an outcome to its principal. Returns it, or an outcome that says that there was no room."""
    try:
        await runner.accounts.charge(record, principal, len(record.encoded()) + len(outcome))
    except LimitExceeded as error:
        if error.data.get("limit") not in ("tasks", "task_bytes"):
            raise
        return to_json({"error": error_object(INTERNAL_ERROR, error.message, error.data)})
    return outcome


def fail(record: TaskRecord, message: str) -> bytes:
    """End a task that has no outcome. Returns the outcome that says so."""
    record.end("failed", message)
    return to_json({"error": error_object(INTERNAL_ERROR, message, {"error_type": "task_lost"})})


def _outcome_in(reply: bytes) -> bytes:
    """`{"result": …}` or `{"error": …}`, without what belongs to the message."""
    body = from_json(reply)
    return to_json({name: body[name] for name in ("result", "error") if name in body})
