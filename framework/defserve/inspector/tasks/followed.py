"""One started tool: it is followed until it is over, and its questions are put to the person."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Protocol

from defserve.errors import DefserveError, PeerError, PeerGone, ProtocolError
from defserve.host.answers import Answers, responses
from defserve.host.client import Client
from defserve.host.fields import Json, object_of, texts_of
from defserve.host.tasks import ServerTask, StartedCall
from defserve.inspector.questions import Questions
from defserve.inspector.tasks.record import LONGEST_TEXT, FollowedRecord
from defserve.wire.messages import INVALID_PARAMS

LONGEST_CALL: Final = 24 * 3600.0
LONGEST_ID: Final = 4_096
MOST_QUESTIONS: Final = 20
NOTICED: Final = "notifications/tasks"
SELDOM_SECONDS: Final = 30.0
"""How often a task is asked for though the server tells its changes: a notice may be lost."""
AWAY_SECONDS: Final = 1.0
PUSH_SECONDS: Final = 0.05
ENDS: Final = ("result", "error", "inputRequests")


class TaskHost(Protocol):
    """What a started tool needs of the inspection."""

    questions: Questions

    async def client(self, era: str | None = None) -> Client: ...
    def failed(self, era: str | None, error: BaseException) -> None: ...
    def push(self, topic: str, data: Any) -> None: ...


class FollowedTask:
    """Begins with `begin`, or with `resume` for a task that is known by its id. `record` is what is known of it."""

    def __init__(self, host: TaskHost, record: FollowedRecord) -> None:
        self._host, self.record = host, record
        self._started: StartedCall | None = None
        self._asked: dict[str, asyncio.Task[None]] = {}
        self._answers: Answers = host.questions.answers(lambda: record.era, task=record.number)
        self._news = asyncio.Event()
        self._work: asyncio.Task[None] | None = None
        self._telling: asyncio.TimerHandle | None = None

    def begin(self, arguments: Json) -> None:
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
            self._tell(self._started)
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
                self.record.end("cancelled")
                self._push()
            raise
        except Exception as error:
            self._host.failed(self.record.era, error)
            self.record.end("failed", error=error)
            self._push()
        finally:
            for asked in self._asked.values():
                asked.cancel()

    async def _start(self, arguments: Json) -> None:
        record = self.record
        client = await self._host.client(record.era)
        record.era = "stateless" if client.stateless else "handshake"
        record.step("working")
        if not client.stateless:
            record.kind = "plain"
        self._push()
        started = self._started = await client.start_raw(
            record.tool, arguments, on_progress=self._progress, timeout=LONGEST_CALL
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
        record.end("completed", result)
        self._push()

    async def _follow(self, task: ServerTask) -> None:
        """Until it is over, whatever becomes of the conversation: the server may come back, and still have it."""
        if len(task.id or "") > LONGEST_ID:
            raise PeerError(f"the server gave the task an id of more than {LONGEST_ID} characters")
        record = self.record
        record.kind, record.id = "task", task.id
        self._started = task
        self._tell(task)
        while not task.is_over:
            client = await self._client()
            if client is None:
                continue
            try:
                await self._converse(client, task)
            except PeerGone as error:
                self._host.failed(record.era, error)
                record.by = ""
                task = await self._found(task)
        self._finish(task)

    async def _found(self, task: ServerTask) -> ServerTask:
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
                self._tell(task)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, client: Client, task: ServerTask) -> None:
        """Hear of its changes, if the server tells them."""
        self.record.by = "polls"
        try:
            async with client.listen(tasks=(task.id or "",)) as news:
                if task.id in texts_of(news.honoured.get("taskIds")):
                    self.record.by = "notices"
                    self._push()
                    self._news.set()
                async for each in news:
                    if each.method == NOTICED and each.params.get("taskId") == task.id:
                        task.hear(each.params)
                        self._news.set()
        except PeerError:
            pass  # it is asked for
        finally:
            self.record.by = "polls"
            self._news.set()

    def _finish(self, task: ServerTask) -> None:
        record = self.record
        if task.status == "completed":
            record.end("completed", object_of(task.told.get("result")))
        elif task.status == "cancelled":
            record.end("cancelled")
        else:
            error = object_of(task.told.get("error"))
            code = error.get("code")
            text = str(error.get("message") or task.message or "the server gave no reason")
            known = {"code": code} if isinstance(code, int) else {}
            record.end("failed", error=PeerError(text, **known, data=error.get("data")))
        record.by = ""
        # The result is the largest part of it, and is kept by the record, if at all.
        record.told = {name: told for name, told in task.told.items() if name not in ENDS}
        self._started = None
        self._push()

    # -- questions ---------------------------------------------------------------------------------------

    def _ask(self, task: ServerTask) -> None:
        """Put new questions to the person, and take back those that are no longer open."""
        wanted = object_of(task.told.get("inputRequests")) if task.status == "input_required" else {}
        for key in self._asked.keys() - wanted.keys():
            self._asked.pop(key).cancel()
        new = [key for key in wanted if key not in self._asked]
        for key in new[: MOST_QUESTIONS - sum(not asked.done() for asked in self._asked.values())]:
            self._asked[key] = asyncio.create_task(self._answer(key, wanted[key]))

    async def _answer(self, key: str, request: Any) -> None:
        # The key stays in `_asked`: an answer may not show in the task yet, and must not be given twice.
        try:
            given = await responses({"inputRequests": {key: request}}, self._answers)
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
        self.record.unanswered = message[:LONGEST_TEXT]
        self._push()

    # -- telling -----------------------------------------------------------------------------------------

    def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.record.progress = {"progress": progress, "total": total}
        self.record.step("working", message or "")
        self._push()

    def _tell(self, task: ServerTask) -> None:
        changed = task.told is not self.record.told
        self.record.told = task.told
        # The end is told once, with the result.
        if (not task.is_over and self.record.step(task.status, task.message)) or changed:
            self._push()

    def _push(self) -> None:
        """Tell the pages soon. A server that changes a task very often does not make it more often."""
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(PUSH_SECONDS, self._say)

    def _say(self) -> None:
        self._telling = None
        self._host.push("task", self.record.wire())
