"""`tasks/get`, `tasks/update`, `tasks/cancel`, and calls of tools that run as tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pydantic_core import from_json

from defserve.auth.authority import LONGEST_ADDRESS, is_stranger, stranger_at
from defserve.auth.principals import ANONYMOUS_PREFIX
from defserve.core.call import Call
from defserve.core.extension import Next
from defserve.errors import InvalidParams, NoBackChannel, ProtocolError, TooManyCalls
from defserve.protocols.mcp.asking.client_requests import ACCEPTABLE
from defserve.protocols.mcp.authorization.authorization import identity
from defserve.protocols.mcp.params import fields, text
from defserve.protocols.mcp.tasks.current import current_task
from defserve.protocols.mcp.tasks.elsewhere import TasksElsewhere
from defserve.protocols.mcp.tasks.offer import NEEDED, takes_tasks
from defserve.protocols.mcp.tasks.record import StoredTask, TaskRecord
from defserve.protocols.mcp.tasks.run import TaskRun, fail
from defserve.protocols.mcp.tasks.runner import TaskRunner, blocks
from defserve.protocols.mcp.tasks.storage import new_id
from defserve.protocols.mcp.tools.task_options import TASK, TaskOptions
from defserve.protocols.mcp.tools.tools import Tool
from defserve.wire.messages import Params, Request

_KEPT_APART: Final = frozenset(("name", "arguments", "inputResponses", "requestState"))
"""What of a request is in fields of its own in the record, or in the answers."""

LOST: Final = "the process that ran the task has died; whether the task did its work is not known"


class TaskSection:
    """Answers for tasks, whichever process runs them. `runner` gives the runner of the running loop."""

    def __init__(
        self,
        runner: Callable[[], TaskRunner],
        find_tool: Callable[[str], Tool | None],
        elsewhere: TasksElsewhere | None = None,
    ) -> None:
        self._runner, self._find_tool, self._elsewhere = runner, find_tool, elsewhere

    # -- creation ----------------------------------------------------------------------------------------

    def around_call(self, call: Call, params: Params, following: Next) -> Awaitable[Any]:
        """`tools/call` of the stateless era: a tool that runs as a task does so for a client that takes tasks."""
        name = params.get("name")
        tool = self._find_tool(name) if isinstance(name, str) else None
        if tool is None or TASK not in tool.facets or not takes_tasks(call) or current_task(call) is not None:
            return following(call, params)
        if call.outer is not None:
            return following(call, params)  # who calls it waits for its result
        return self._start(call, params, tool, following)

    async def _start(self, call: Call, params: Params, tool: Tool, following: Next) -> Params:
        runner = self._runner()
        runner.admit(call, tool)
        run = TaskRun(runner, call, params, lambda: _record(call, params, tool, runner), blocks=blocks(tool))
        run.start(following)
        try:
            begun = await run.begun
        except BaseException:
            run.stop()  # nobody has its id
            raise
        return begun if isinstance(begun, dict) else _replied(begun)

    def admit(self, call: Call, item: Any) -> None:
        """A stage. Raises NoBackChannel if the client must take tasks to call this tool, and does not."""
        options: TaskOptions = item.facets[TASK]
        if options.is_required and call.outer is None and _is_stateless(call) and not takes_tasks(call):
            raise NoBackChannel(f"{item.name} runs only as a task: the client must take tasks", needs=NEEDED)

    # -- methods -----------------------------------------------------------------------------------------

    async def get(self, call: Call, params: Params) -> Params:
        return {**await self.look(call, await self._found(call, params)), "resultType": "complete"}

    async def look(self, call: Call, task: StoredTask) -> Params:
        """A task of the caller as it is now."""
        if (elsewhere := self._running_elsewhere(task)) is not None:
            return await elsewhere.look(call, task)
        return (await self._alive(call, task)).detailed()

    def _running_elsewhere(self, task: StoredTask) -> TasksElsewhere | None:
        return self._elsewhere if task.record.elsewhere is not None and not task.record.is_over else None

    async def update(self, call: Call, params: Params) -> Params:
        task = await self._found(call, params)
        given = fields(params, "inputResponses")
        if (elsewhere := self._running_elsewhere(task)) is not None:
            await elsewhere.update(call, task, given)
            return {}

        def answer(record: TaskRecord) -> bool:
            answered = [key for key in given if key in record.questions]
            for key in answered:
                question = record.questions.pop(key)
                if not ACCEPTABLE[question["method"]](given[key]):
                    raise InvalidParams(
                        f"Invalid params: the answer {key!r} has not the form of an answer to {question['method']}"
                    )
                record.answers[key] = (question["digest"], given[key])
            if answered and not record.questions:
                record.status = "working"
            return bool(answered)

        await self._runner().change(task.record.id, answer)
        return {}

    async def cancel(self, call: Call, params: Params) -> Params:
        require_tasks(call)
        task = _known(await self._own(call, text(params, "taskId")))
        if (elsewhere := self._running_elsewhere(task)) is not None:
            await elsewhere.cancel(call, task)
            return {}

        def end(record: TaskRecord) -> bool:
            record.end("cancelled", "cancelled by the client")
            return True

        await self._runner().change(task.record.id, end)
        return {}

    async def find(self, call: Call, id: str) -> StoredTask | None:
        """The task of this id, if there is one, and this caller may use it and still sees its tool."""
        if (task := await self._own(call, id)) is None:
            return None
        tool = self._find_tool(task.record.tool)
        return task if tool is None or call.session.composition.visible(call, tool) else None

    async def _own(self, call: Call, id: str) -> StoredTask | None:
        task = await self._runner().storage.find(id)
        return task if task is not None and _may_use(call, task.record) else None

    async def _found(self, call: Call, params: Params) -> StoredTask:
        require_tasks(call)
        id = text(params, "taskId")
        return _known(await self.find(call, id))

    # -- lost runners ------------------------------------------------------------------------------------

    async def _alive(self, call: Call, task: StoredTask) -> StoredTask:
        """The task; if its runner has died, run again or failed."""
        runner, record = self._runner(), task.record
        if record.is_over or record.id in runner.running or record.id in runner.claiming:
            return task
        if record.runner != runner.id and not await runner.heartbeat.is_dead(record.runner):
            return task
        if record.id in runner.running or record.id in runner.claiming:
            return task  # it began while the other process was looked for
        tool = self._find_tool(record.tool)
        if tool is None or TASK not in tool.facets:
            return await self._fail(record, runner)
        try:
            runner.admit(call, tool)
        except TooManyCalls:
            return task  # a later look finds room, or another process does
        # Whoever asks in the same moment must not take it for lost again.
        runner.claiming.add(record.id)
        try:
            return await self._again(call, record, tool, runner)
        finally:
            runner.claiming.discard(record.id)

    async def _fail(self, lost: TaskRecord, runner: TaskRunner) -> StoredTask:
        return _known(await runner.change(lost.id, lambda record: record.runner == lost.runner and fail(record, LOST)))

    async def _again(self, call: Call, lost: TaskRecord, tool: Tool, runner: TaskRunner) -> StoredTask:
        is_claimed = False
        await runner.beat()

        def claim(record: TaskRecord) -> bytes | bool:
            nonlocal is_claimed
            if record.runner == runner.id and is_claimed:
                return False  # a store that repeats a change finds its own first attempt
            is_claimed = False
            if record.runner != lost.runner:
                return False  # another process was faster
            if (lost.runner and record.retries == 0) or record.arguments is None:
                return fail(record, LOST)
            record.runner, record.retries = runner.id, record.retries - bool(lost.runner)
            is_claimed = True
            return True

        task = _known(await runner.change(lost.id, claim))
        if is_claimed and not task.record.is_over:
            run = _next_run(call, task.record, runner, blocks=blocks(tool))
            runner.adopt(run, task.record)
            run.resume(task.record, run.call.terms.methods["tools/call"].run)
        return task


def _known(task: StoredTask | None) -> StoredTask:
    if task is None:
        raise InvalidParams("Unknown task: there is none of this id, or none any more")
    return task


def require_tasks(call: Call) -> None:
    """Raises NoBackChannel for a client that did not declare tasks. Comes before anything is looked up."""
    if not takes_tasks(call):
        raise NoBackChannel(f"{call.method} needs a client that takes tasks", needs=NEEDED)


def _is_stateless(call: Call) -> bool:
    return call.terms.offer is not None and call.terms.offer.stateless


def _record(call: Call, params: Params, tool: Tool, runner: TaskRunner) -> TaskRecord:
    options: TaskOptions = tool.facets[TASK]
    record = new_record(call, tool.name, runner, round(options.ttl * 1000), round(options.poll * 1000))
    record.retries = options.retry
    if options.retry:
        record.arguments = params.get("arguments") or {}
        record.brought = {name: value for name, value in params.items() if name not in _KEPT_APART}
        if record.owner is None:
            record.stranger = identity(call).id.removeprefix(ANONYMOUS_PREFIX)[:LONGEST_ADDRESS]
    return record


def new_record(call: Call, tool: str, runner: TaskRunner, ttl: int, poll: int) -> TaskRecord:
    """A task that belongs to a caller. The times are milliseconds."""
    caller, now = identity(call), runner.storage.now()
    return TaskRecord(
        id=new_id(),
        tool=tool,
        created=now,
        updated=now,
        ttl=max(1, ttl),
        poll=max(1, poll),
        owner=None if is_stranger(caller) else caller.id,
        rights=caller.rights,
        runner=runner.id,
        retries=0,
    )


def _next_run(call: Call, record: TaskRecord, runner: TaskRunner, *, blocks: bool) -> TaskRun:
    """A further run of a task: the request that made it, by its own terms and for who sent it.

    `call` only looks at the task. Its owner may do that, and who does not own it runs nothing: the task of a stranger
    is a stranger's again.
    """
    params = {**record.brought, "name": record.tool, "arguments": record.arguments}
    composition = call.session.composition
    offer = composition.offer_in(Request("task", "tools/call", params, params))
    terms = composition.agree(offer) if offer is not None else None
    stranger = stranger_at(record.stranger) if record.owner is None else None
    return TaskRun(runner, call, params, lambda: record, blocks=blocks, terms=terms, stranger=stranger)


def _may_use(call: Call, record: TaskRecord) -> bool:
    """Whether the caller made the task, with at least the rights it has. A stranger's task is for who has its id."""
    if record.owner is None:
        return True
    caller = identity(call)
    return not is_stranger(caller) and caller.id == record.owner and caller.has_rights(record.rights)


def _replied(reply: bytes) -> Params:
    """The result of a call that ended before its task began. Raises ProtocolError if the reply is an error."""
    if not reply:
        raise asyncio.CancelledError
    body = from_json(reply)
    if "error" in body:
        error = body["error"]
        raise ProtocolError(error["message"], code=error["code"], data=error.get("data"))
    return body["result"]
