"""Tasks that other servers run for callers of this one: our id for theirs, and an owner.

Whoever asks for such a task is passed on to its server. When it is over, its outcome is kept here: then that server
need not last any longer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, get_args

from pydantic_core import to_json

from defserve.core.call import Call
from defserve.core.profile import error_object
from defserve.errors import DefserveError, InvalidParams
from defserve.protocols.mcp.tasks.record import MOST_MESSAGE, TERMINAL, Status, StoredTask, TaskRecord
from defserve.protocols.mcp.tasks.run import charged, fail
from defserve.protocols.mcp.tasks.runner import TaskRunner
from defserve.wire.jsonvalue import is_object
from defserve.wire.messages import INTERNAL_ERROR, Params

LOST: Final = "the server that ran the task has ended; whether the task did its work is not known"
STATES: Final = frozenset(get_args(Status))
TEXTS: Final = ("createdAt", "lastUpdatedAt", "statusMessage")


class TaskLost(DefserveError):
    """The server that ran a task is gone, and the task with it."""


class TaskServers(Protocol):
    """Servers elsewhere. `where` is what they gave with a task: JSON, and nothing that a client sees."""

    async def ask_task(self, call: Call, where: Params, method: str, params: Params) -> Params:
        """The result of a method of tasks, for one of theirs. Raises TaskLost, and what the caller is told."""
        ...

    def release_task(self, where: Params) -> None:
        """A task is over, and nobody will ask for it any more."""
        ...


class TasksElsewhere:
    """Keeps and asks for the tasks of `servers`. `begin` makes the record of a new task of a caller."""

    def __init__(
        self, runner: Callable[[], TaskRunner], servers: TaskServers, begin: Callable[[Call, Params], TaskRecord]
    ) -> None:
        self._runner, self._servers, self._begin = runner, servers, begin

    async def keep(self, call: Call, created: Params, where: Params) -> Params:
        """A server has begun a task for a caller: the answer to the caller. Raises LimitExceeded."""
        runner, record = self._runner(), self._begin(call, created)
        record.elsewhere = where
        await runner.accounts.charge(record, call.principal, len(record.encoded()))
        await runner.storage.create(record)
        now = runner.storage.now()
        runner.held = {id: expires for id, expires in runner.held.items() if expires > now} | {
            record.id: record.expires
        }
        await runner.beat()
        return {**_told(record, created), "resultType": "task"}

    async def look(self, call: Call, task: StoredTask) -> Params:
        """The task as it is now."""
        where, runner = _where(task), self._runner()
        try:
            found = await self._servers.ask_task(call, where, "tasks/get", {})
        except TaskLost:
            return await self._lost(task)
        if found.get("status") not in TERMINAL:
            told = _told(task.record, found)
            asked: Any = found.get("inputRequests")
            return {**told, "inputRequests": asked} if told["status"] == "input_required" and is_object(asked) else told
        outcome = _outcome(found)
        if outcome is not None:
            outcome = await charged(runner, task.record, call.principal, outcome)

        def end(record: TaskRecord) -> bytes | bool:
            record.end(found["status"], _told(record, found).get("statusMessage", ""))
            return True if outcome is None else outcome

        ended = _detailed(await runner.change(task.record.id, end))
        runner.held.pop(task.record.id, None)
        self._servers.release_task(where)
        return ended

    async def update(self, call: Call, task: StoredTask, given: Params) -> None:
        await self._tell(call, task, "tasks/update", {"inputResponses": given})

    async def cancel(self, call: Call, task: StoredTask) -> None:
        await self._tell(call, task, "tasks/cancel", {})

    async def _tell(self, call: Call, task: StoredTask, method: str, params: Params) -> None:
        try:
            await self._servers.ask_task(call, _where(task), method, params)
        except TaskLost:
            await self._lost(task)

    async def _lost(self, task: StoredTask) -> Params:
        """The server of a task cannot be reached from here. The process that began the task may still reach it."""
        runner, record = self._runner(), task.record
        if record.runner != runner.id and not await runner.heartbeat.is_dead(record.runner):
            return task.detailed()
        runner.held.pop(record.id, None)
        return _detailed(await runner.change(record.id, lambda found: fail(found, LOST)))


def _where(task: StoredTask) -> Params:
    assert task.record.elsewhere is not None
    return task.record.elsewhere


def _told(record: TaskRecord, found: Params) -> Params:
    """What a server says of a task, under our id. Its times and texts are taken if they are what they should be."""
    said = {name: found[name][:MOST_MESSAGE] for name in TEXTS if isinstance(found.get(name), str)}
    status = found["status"] if found.get("status") in STATES else "working"
    return {**record.wire(), **said, "status": status}


def _outcome(found: Params) -> bytes | None:
    if found["status"] == "completed":
        return to_json({"result": found.get("result") if is_object(found.get("result")) else {"content": []}})
    if found["status"] == "cancelled":
        return None
    error: Any = found.get("error")
    if not is_object(error) or type(error.get("code")) is not int or not isinstance(error.get("message"), str):
        error = error_object(INTERNAL_ERROR, "the task has failed, and its server does not say why")
    return to_json({"error": error})


def _detailed(task: StoredTask | None) -> Params:
    if task is None:
        raise InvalidParams("Unknown task: there is none of this id, or none any more")
    return task.detailed()
