"""Tools that the person has started and that go on: tasks of the server, and plain calls where there are none.

Each is followed until it is over: by its notifications where the server sends them, else by asking as often as the
server wishes. What is kept of each is bounded, in number and in bytes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pydantic_core import to_json

from defserve.client.answers import Answers, answer_input_requests
from defserve.client.client import Client
from defserve.client.replies import Json, filter_strings, object_or_empty, string_or_none
from defserve.client.tasks import ServerTask, StartedCall
from defserve.core.messages import INVALID_PARAMS
from defserve.core.peer import make_peer_error
from defserve.errors import DefserveError, PeerError, PeerGone, ProtocolError
from defserve.inspector.era_connection import get_client_era
from defserve.inspector.protocol import BadMessage, describe_error_for_page

if TYPE_CHECKING:
    from defserve.inspector.inspection import Inspection

MAX_TASKS: Final = 100
MAX_BYTES: Final = 32 * 1024 * 1024
"""Of results. Those of the oldest are forgotten first; the timeline has them still."""


class FollowedTasks:
    """Started tools by number. If there are too many, the oldest of those that are over is dropped."""

    def __init__(self, host: Inspection) -> None:
        self._host = host
        self._tasks: dict[int, FollowedTask] = {}
        self._last = 0

    def start(self, era: str, tool: str, arguments: Json) -> FollowedTask:
        """Start a tool, and follow it."""
        task = self._add(era, tool, arguments)
        task.start_call(arguments)
        return task

    async def resume(self, client: Client, id: str) -> FollowedTask:
        """Follow a task by its id. Raises PeerError if the server does not know it."""
        found = await client.task(id)
        task = self._add(get_client_era(client), "", {})
        task.resume(found)
        return task

    def _add(self, era: str, tool: str, arguments: Json) -> FollowedTask:
        over = [number for number, task in self._tasks.items() if task.record.over is not None]
        if len(self._tasks) >= MAX_TASKS:
            if not over:
                raise BadMessage(f"{MAX_TASKS} tasks run already", fix="cancel some of them")
            del self._tasks[over[0]]
        size = 0
        for task in reversed(self._tasks.values()):
            size += task.record.size if task.record.result is not None else 0
            if size > MAX_BYTES:
                task.record.result = None
        self._last += 1
        task = self._tasks[self._last] = FollowedTask(self._host, FollowedRecord(self._last, era, tool, arguments))
        return task

    def __getitem__(self, number: int) -> FollowedTask:
        if (task := self._tasks.get(number)) is None:
            raise BadMessage("this task is not in the list any more")
        return task

    def to_wire(self) -> list[Json]:
        return [task.record.to_wire() for task in reversed(self._tasks.values())]

    def drop_finished(self) -> None:
        """Drop all that are over."""
        self._tasks = {number: task for number, task in self._tasks.items() if task.record.over is None}

    async def aclose(self) -> None:
        for task in self._tasks.values():
            await task.aclose()


# -- One started tool: it is followed until it is over, and its questions are put to the person.


MAX_CALL_SECONDS: Final = 24 * 3600.0
MAX_ID_LENGTH: Final = 4_096
MAX_QUESTIONS: Final = 20
SELDOM_SECONDS: Final = 30.0
"""How often a task is asked for though the server tells its changes: a notice may be lost."""
AWAY_SECONDS: Final = 1.0
PUSH_SECONDS: Final = 0.05
SHOWN: Final = ("createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs")


class FollowedTask:
    """Begins with `start_call`, or with `resume` for a task whose id is known. `record` is what is known of it."""

    def __init__(self, host: Inspection, record: FollowedRecord) -> None:
        self._host, self.record = host, record
        self._started: StartedCall | None = None
        self._asked: dict[str, asyncio.Task[None]] = {}
        self._answers: Answers = host.questions.make_client_answers(lambda: record.era, task=record.number)
        self._news = asyncio.Event()
        self._work: asyncio.Task[None] | None = None
        self._telling: asyncio.TimerHandle | None = None

    def start_call(self, arguments: Json) -> None:
        self._work = asyncio.create_task(
            self._until_over(partial(self._start, arguments)), name="defserve.inspector task"
        )

    def resume(self, task: ServerTask) -> None:
        self._work = asyncio.create_task(self._until_over(partial(self._follow, task)), name="defserve.inspector task")

    # -- what the person does ----------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Ask now, rather than when the pause is over."""
        if isinstance(self._started, ServerTask):
            await self._started.refresh()
            self._record_status(self._started)
            self._news.set()

    async def cancel(self) -> None:
        """A task of the server is asked to stop. A plain call is cancelled."""
        if isinstance(self._started, ServerTask):
            await self._started.cancel()
            await self.refresh()
        elif self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def aclose(self) -> None:
        """Follow it no longer. A task of the server goes on."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, *self._asked.values(), return_exceptions=True)
        if self._telling is not None:
            self._telling.cancel()

    # -- following ---------------------------------------------------------------------------------------

    async def _until_over(self, work: Callable[[], Awaitable[None]]) -> None:
        """Await the work. Its failure is that of the task."""
        try:
            await work()
        except asyncio.CancelledError:
            if not isinstance(self._started, ServerTask):
                self.record.record_end("cancelled")
                self._push()
            raise
        except Exception as error:
            self._host.on_request_failed(self.record.era, error)
            self.record.record_end("failed", error=error)
            self._push()
        finally:
            for asked in self._asked.values():
                asked.cancel()

    async def _start(self, arguments: Json) -> None:
        record = self.record
        client = await self._host.client(record.era)
        record.era = get_client_era(client)
        record.record_status("working")
        if not client.stateless:
            record.kind = "plain"
        self._push()
        started = self._started = await client.start_raw(
            record.tool, arguments, on_progress=self._progress, timeout=MAX_CALL_SECONDS
        )
        if isinstance(started, ServerTask):
            await self._follow(started)
            return
        record.kind = "plain"
        try:
            result = await started.result_raw()
        except asyncio.CancelledError:
            await started.cancel()
            raise
        record.record_end("completed", result)
        self._push()

    async def _follow(self, task: ServerTask) -> None:
        """Until it is over, whatever becomes of the conversation: the server may come back, and still have it."""
        if len(task.id or "") > MAX_ID_LENGTH:
            raise PeerError(f"the server gave the task an id of more than {MAX_ID_LENGTH} characters")
        record = self.record
        record.kind, record.id = "task", task.id
        self._started = task
        self._record_status(task)
        while not task.is_over:
            client = await self._client()
            if client is None:
                continue
            try:
                await self._converse(client, task)
            except PeerGone as error:
                self._host.on_request_failed(record.era, error)
                record.by = ""
                task = await self._find_task_again(task)
        self._finish(task)

    async def _find_task_again(self, task: ServerTask) -> ServerTask:
        """The same task in a new conversation, as soon as there is one."""
        while (client := await self._client()) is None:
            pass
        try:
            self._started = await client.task(task.id or "", task.tool)
        except PeerGone:
            return task
        except PeerError as error:
            if error.code == INVALID_PARAMS:
                raise PeerError("the server does not know this task any more", code=error.code) from error
            raise
        return self._started

    async def _client(self) -> Client | None:
        try:
            return await self._host.client(self.record.era)
        except PeerGone:
            await asyncio.sleep(AWAY_SECONDS)
            return None

    async def _converse(self, client: Client, task: ServerTask) -> None:
        listening = asyncio.create_task(self._listen(client, task), name="defserve.inspector task news")
        try:
            while not task.is_over:
                self._ask(task)
                self._news.clear()
                pause = max(task.pause, SELDOM_SECONDS) if self.record.by == "notices" else task.pause
                try:
                    async with asyncio.timeout(pause):
                        await self._news.wait()
                except TimeoutError:
                    await task.refresh()
                self._record_status(task)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, client: Client, task: ServerTask) -> None:
        """Hear of its changes, if the server tells them."""
        self.record.by = "polls"
        try:
            async with client.listen(tasks=(task.id or "",)) as news:
                if task.id in filter_strings(news.honoured.get("taskIds")):
                    self.record.by = "notices"
                    self._push()
                    self._news.set()
                async for each in news:
                    if each.method == "notifications/tasks" and each.params.get("taskId") == task.id:
                        task.apply_status(each.params)
                        self._news.set()
        except PeerError:
            pass  # it is asked for
        finally:
            self.record.by = "polls"
            self._news.set()

    def _finish(self, task: ServerTask) -> None:
        record = self.record
        if task.status == "completed":
            record.record_end("completed", object_or_empty(task.told.get("result")))
        elif task.status == "cancelled":
            record.record_end("cancelled")
        else:
            error = object_or_empty(task.told.get("error"))
            record.record_end("failed", error=make_peer_error(error, task.message or "the server gave no reason"))
        record.by = ""
        # The result is kept by the record, if at all. Of the rest, what the list shows.
        record.told = {
            name: told for name, told in task.told.items() if name in SHOWN and _size(told) <= MAX_TEXT_LENGTH
        }
        self._started = None
        self._push()

    # -- questions ---------------------------------------------------------------------------------------

    def _ask(self, task: ServerTask) -> None:
        """Put new questions to the person, and take back those that are no longer open."""
        wanted = object_or_empty(task.told.get("inputRequests")) if task.status == "input_required" else {}
        for key in self._asked.keys() - wanted.keys():
            self._asked.pop(key).cancel()
        new = [key for key in wanted if key not in self._asked]
        for key in new[: MAX_QUESTIONS - sum(not asked.done() for asked in self._asked.values())]:
            self._asked[key] = asyncio.create_task(self._answer(key, wanted[key]))

    async def _answer(self, key: str, request: Any) -> None:
        # The key stays in `_asked`: an answer may not show in the task yet, and must not be given twice.
        try:
            given = await answer_input_requests({"inputRequests": {key: request}}, self._answers)
        except ProtocolError:
            self._explain("You did not let the model answer. Cancel the task if it waits for that.")
            return
        except Exception as error:
            self._explain(f"A question cannot be answered: {error or type(error).__name__}. Cancel the task.")
            return
        try:
            if isinstance(task := self._started, ServerTask):
                await task.answer(given)
                self.record.unanswered = ""
                await self.refresh()
        except DefserveError as error:
            self._explain(f"The answer did not reach the server: {error}")
            # It is asked again, but not at once: some answers need no person, and a server may refuse each of them.
            await asyncio.sleep(AWAY_SECONDS)
            self._asked.pop(key, None)
            self._news.set()

    def _explain(self, message: str) -> None:
        """Tell the pages why the task waits."""
        self.record.unanswered = message[:MAX_TEXT_LENGTH]
        self._push()

    # -- telling -----------------------------------------------------------------------------------------

    def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.record.progress = {"progress": progress, "total": total}
        self.record.record_status("working", message or "")
        self._push()

    def _record_status(self, task: ServerTask) -> None:
        changed = task.told is not self.record.told
        self.record.told = task.told
        # The end is told once, with the result.
        if (not task.is_over and self.record.record_status(task.status, task.message)) or changed:
            self._push()

    def _push(self) -> None:
        """Tell the pages soon. A server that changes a task very often does not make it more often."""
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(PUSH_SECONDS, self._push_record)

    def _push_record(self) -> None:
        self._telling = None
        self._host.push("task", self.record.to_wire())


# -- What is known of one started tool, and how the page gets it.


Kind: TypeAlias = Literal["starting", "task", "plain"]
"""`plain`: a call that is no task, because there are none in a session, or because the server answered at once."""

MAX_TEXT_LENGTH: Final = 2_000
MAX_RESULT_BYTES: Final = 4 * 1024 * 1024
MAX_ARGUMENTS_BYTES: Final = 64 * 1024
MAX_STEPS: Final = 100


class FollowedRecord:
    """The facts. `steps` are its states so far, newest last; `result` is None while it has none, or a too long one."""

    def __init__(self, number: int, era: str, tool: str, arguments: Json) -> None:
        self.number, self.era, self.tool = number, era, tool
        self.arguments = arguments if _size(arguments) <= MAX_ARGUMENTS_BYTES else None
        self.kind: Kind = "starting"
        self.id: str | None = None
        self.told: Json = {}
        self.status, self.message = "starting", ""
        self.unanswered = ""
        """Why a question of its has no answer. It is shown while the task waits for one, whatever the server says."""
        self.progress: Json | None = None
        self.by = ""
        self.since = time.time()
        self.over: float | None = None
        self.result: Json | None = None
        self.size = 0
        self.error: Json | None = None
        self.steps: deque[Json] = deque(maxlen=MAX_STEPS)

    def record_status(self, status: str, message: str = "") -> bool:
        """Note the state, and whether it is a new one."""
        message = message[:MAX_TEXT_LENGTH]
        if (status, message) == (self.status, self.message):
            return False
        self.status, self.message = status[:MAX_TEXT_LENGTH], message
        self.steps.append({"at": time.time(), "status": self.status, "message": message})
        return True

    def record_end(self, status: str, result: Json | None = None, error: BaseException | None = None) -> None:
        """It is over. Of a result that is too long only the size is kept."""
        self.over = time.time()
        self.error = describe_error_for_page(error) if error is not None else None
        if self.error is not None and _size(self.error) > MAX_ARGUMENTS_BYTES:
            short = {name: value for name, value in self.error.items() if _size(value) <= MAX_TEXT_LENGTH}
            self.error = {**short, "message": str(self.error["message"])[:MAX_TEXT_LENGTH]}
        if result is not None:
            self.size = _size(result)
            self.result = result if self.size <= MAX_RESULT_BYTES else None
        self.record_status(status, self.message)

    def to_wire(self) -> Json:
        """For the list: all but the result, the arguments and the steps."""
        told = self.told
        return {
            "task": self.number,
            "era": self.era,
            "tool": self.tool,
            "kind": self.kind,
            "id": self.id,
            "status": self.status,
            "message": (self.status == "input_required" and self.unanswered) or self.message,
            "progress": self.progress,
            "by": self.by,
            "since": self.since,
            "over": self.over,
            "created": _text(told, "createdAt"),
            "updated": _text(told, "lastUpdatedAt"),
            "ttl": _number(told, "ttlMs"),
            "poll": _number(told, "pollIntervalMs"),
            "asks": len(object_or_empty(told.get("inputRequests"))) if self.status == "input_required" else 0,
            "failed": self.error is not None or object_or_empty(self.result).get("isError") is True,
            "error": self.error,
            "size": self.size,
        }

    def to_full_wire(self) -> Json:
        return {**self.to_wire(), "result": self.result, "arguments": self.arguments, "steps": list(self.steps)}


def _size(value: Any) -> int:
    return len(to_json(value, fallback=str, inf_nan_mode="null"))


def _text(told: Json, name: str) -> str | None:
    found = string_or_none(told.get(name))
    return found[:100] if found else None


def _number(told: Json, name: str) -> float | None:
    found = told.get(name)
    return found if isinstance(found, int | float) and not isinstance(found, bool) and abs(found) < 2**53 else None
