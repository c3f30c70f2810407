"""The tasks extension: `tasks/get`, `tasks/update`, `tasks/cancel`, and calls of tools that run as tasks.

A server has it if a tool says `task=`, or may elsewhere. Tasks that other servers run for our callers have an id of
ours and an owner here (`RemoteTasks`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, get_args

from pydantic_core import from_json, to_json

from defserve.auth.authority import MAX_ADDRESS_LENGTH, is_stranger, make_anonymous_ip_principal
from defserve.auth.principals import ANONYMOUS_PREFIX
from defserve.core.call import Call
from defserve.core.extension import Extension, Handler, Next, Offer, Stages, Wrapper
from defserve.core.json_values import is_array, is_object
from defserve.core.messages import INTERNAL_ERROR, Params, Request
from defserve.core.peer import make_error_object
from defserve.errors import DefserveError, InvalidParams, LimitExceeded, NoBackChannel, ProtocolError, TooManyCalls
from defserve.limits import Limits
from defserve.protocols.mcp.asking.client_requests import ANSWER_CHECKS
from defserve.protocols.mcp.authorization import identify_caller
from defserve.protocols.mcp.errors import read_object_param, read_text_param
from defserve.protocols.mcp.subscriptions import GrantedFilter, SendNotification
from defserve.protocols.mcp.tasks.records import (
    MAX_STATUS_MESSAGE_LENGTH,
    TASKS_CAPABILITY,
    TASKS_EXTENSION_ID,
    TERMINAL_STATUSES,
    StoredTask,
    TaskRecord,
    TaskStatus,
    TaskStorage,
    can_take_tasks,
    new_task_id,
)
from defserve.protocols.mcp.tasks.run import (
    RunningTask,
    TaskRun,
    TaskRunner,
    charge_outcome,
    fail_task,
    get_current_task,
    needs_worker_thread,
)
from defserve.protocols.mcp.tool_options import DEFAULT_POLL_SECONDS, MAX_POLL_SECONDS, TASK_FACET_NAME, TaskOptions
from defserve.protocols.mcp.tools import Tool
from defserve.stores.store import MemoryStore, is_in_memory

if TYPE_CHECKING:
    from defserve.protocols.mcp.subscriptions import Subscriptions
    from defserve.stores.store import Store


class Tasks(Extension):
    """Lets tools run as tasks, here or on `servers` elsewhere, and answers for tasks, whichever process runs them.

    Without a `store`, memory of this process keeps them.
    """

    name = "tasks"
    while_draining = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})

    def __init__(
        self,
        store: Store | None,
        limits: Limits,
        find_tool: Callable[[str], Tool | None],
        subscriptions: Subscriptions,
        servers: TaskServers | None = None,
    ) -> None:
        store = store or MemoryStore()
        self._is_alone, self._limits, self._find_tool = is_in_memory(store), limits, find_tool
        self._storage = TaskStorage(store)
        self._runners: dict[asyncio.AbstractEventLoop, TaskRunner] = {}
        self.elsewhere = RemoteTasks(self._runner, servers, self._new_record) if servers is not None else None
        subscriptions.add_filter_member("taskIds", self.follow_tasks)

    def negotiate(self, offer: Offer) -> object | None:
        # Active for all of them: who did not declare tasks is told so, and not that the method does not exist.
        return self if offer.stateless else None

    def capabilities(self, offer: Offer) -> Mapping[str, Any]:
        return {"extensions": {TASKS_EXTENSION_ID: {}}} if offer.stateless else {}

    def methods(self) -> Mapping[str, Handler]:
        return {"tasks/get": self.get, "tasks/update": self.update, "tasks/cancel": self.cancel}

    def around(self) -> Mapping[str, Wrapper]:
        return {"tools/call": self.around_call}  # pyright: ignore[reportReturnType]

    def stages(self) -> Stages:
        return Stages(
            admit=self.check_task_support, hold=_begin, concerns=lambda item, active: TASK_FACET_NAME in item.facets
        )

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        loop = asyncio.get_running_loop()
        self._runners[loop] = runner = TaskRunner(self._storage, self._limits, is_alone=self._is_alone)
        try:
            yield
        finally:
            await runner.shut_down()
            del self._runners[loop]
            if not self._runners:
                await self._storage.store.close()

    def _runner(self) -> TaskRunner:
        return self._runners[asyncio.get_running_loop()]

    def _new_record(self, call: Call, created: Mapping[str, Any]) -> TaskRecord:
        """The record of a task that a server elsewhere has begun. It is kept no longer than one of our own could be."""
        most = round(self._limits.task_ttl * 1000)
        ttl, poll = created.get("ttlMs"), created.get("pollIntervalMs")
        ttl = min(ttl, most) if type(ttl) is int else most
        poll = min(poll, round(MAX_POLL_SECONDS * 1000)) if type(poll) is int else round(DEFAULT_POLL_SECONDS * 1000)
        return new_record(call, str(call.params.get("name")), self._runner(), ttl, poll)

    # -- creation ----------------------------------------------------------------------------------------

    def around_call(self, call: Call, params: Params, following: Next) -> Awaitable[Any]:
        """`tools/call` of the stateless era: a tool that runs as a task does so for a client that takes tasks."""
        name = params.get("name")
        tool = self._find_tool(name) if isinstance(name, str) else None
        if (
            tool is None
            or TASK_FACET_NAME not in tool.facets
            or not can_take_tasks(call)
            or get_current_task(call) is not None
        ):
            return following(call, params)
        if call.outer is not None:
            return following(call, params)  # who calls it waits for its result
        return self._start(call, params, tool, following)

    async def _start(self, call: Call, params: Params, tool: Tool, following: Next) -> Params:
        runner = self._runner()
        runner.check_capacity(call, tool)
        run = TaskRun(
            runner, call, params, lambda: _record(call, params, tool, runner), blocks=needs_worker_thread(tool)
        )
        run.start(following)
        try:
            begun = await run.begun
        except BaseException:
            run.stop()  # nobody has its id
            raise
        return begun if isinstance(begun, dict) else _parse_reply(begun)

    def check_task_support(self, call: Call, item: Any) -> None:
        """A stage. Raises NoBackChannel if the client must take tasks to call this tool, and does not."""
        options: TaskOptions = item.facets[TASK_FACET_NAME]
        if options.is_required and call.outer is None and _is_stateless(call) and not can_take_tasks(call):
            raise NoBackChannel(f"{item.name} runs only as a task: the client must take tasks", needs=TASKS_CAPABILITY)

    # -- methods -----------------------------------------------------------------------------------------

    async def get(self, call: Call, params: Params) -> Params:
        return {**await self.fetch_task(call, await self._find_task(call, params)), "resultType": "complete"}

    async def fetch_task(self, call: Call, task: StoredTask) -> Params:
        """A task of the caller as it is now."""
        if (elsewhere := self._running_elsewhere(task)) is not None:
            return await elsewhere.fetch_task(call, task)
        return (await self._alive(call, task)).to_detailed_task()

    async def _fetch_visible_task(self, call: Call, id: str) -> Params:
        """The same by its id. Another process may have ended it, or the caller may have lost sight of it."""
        return await self.fetch_task(call, _require_task(await self.find_visible_task(call, id)))

    def _running_elsewhere(self, task: StoredTask) -> RemoteTasks | None:
        return self.elsewhere if task.record.elsewhere is not None and not task.record.is_over else None

    async def update(self, call: Call, params: Params) -> Params:
        task = await self._find_task(call, params)
        given = read_object_param(params, "inputResponses")
        if (elsewhere := self._running_elsewhere(task)) is not None:
            return await elsewhere.forward_request(call, task, {"inputResponses": given})

        def answer(record: TaskRecord) -> bool:
            answered = [key for key in given if key in record.questions]
            for key in answered:
                question = record.questions.pop(key)
                if not ANSWER_CHECKS[question["method"]](given[key]):
                    raise InvalidParams(
                        f"Invalid params: the answer {key!r} has not the form of an answer to {question['method']}"
                    )
                record.answers[key] = (question["digest"], given[key])
            if answered and not record.questions:
                record.status = "working"
            return bool(answered)

        await self._runner().change_task(task.record.id, answer)
        return {}

    async def cancel(self, call: Call, params: Params) -> Params:
        require_tasks(call)
        task = _require_task(await self._own(call, read_text_param(params, "taskId")))
        if (elsewhere := self._running_elsewhere(task)) is not None:
            return await elsewhere.forward_request(call, task, {})

        def end(record: TaskRecord) -> bool:
            record.finish("cancelled", "cancelled by the client")
            return True

        await self._runner().change_task(task.record.id, end)
        return {}

    async def find_visible_task(self, call: Call, id: str) -> StoredTask | None:
        """The task of this id, if there is one, and this caller may use it and still sees its tool."""
        if (task := await self._own(call, id)) is None:
            return None
        tool = self._find_tool(task.record.tool)
        return task if tool is None or call.session.composition.visible(call, tool) else None

    async def _own(self, call: Call, id: str) -> StoredTask | None:
        task = await self._runner().storage.find(id)
        return task if task is not None and _may_use(call, task.record) else None

    async def _find_task(self, call: Call, params: Params) -> StoredTask:
        require_tasks(call)
        return _require_task(await self.find_visible_task(call, read_text_param(params, "taskId")))

    async def follow_tasks(self, call: Call, wanted: Any, tell: SendNotification) -> GrantedFilter:
        """Tell a listener of each task as it is now, and again after every change.

        Ids that are unknown, or somebody else's, are left out.
        """
        require_tasks(call)
        if not is_array(wanted) or not all(isinstance(id, str) for id in wanted):
            raise InvalidParams("Invalid params: taskIds must be a list of ids")
        if len(wanted) > call.session.composition.limits.subscriptions:
            raise LimitExceeded("too many subscriptions in one request", data={"limit": "subscriptions"})
        follower = TaskFollower(self._runner(), tell)
        try:
            for id in dict.fromkeys(wanted):
                if (task := await self.find_visible_task(call, id)) is None:
                    continue
                if task.record.elsewhere is not None and not task.record.is_over:
                    follower.polled[id] = partial(self._fetch_visible_task, call, id)
                else:
                    follower.follow_task(task)
        except BaseException:
            follower.stop()
            raise
        return GrantedFilter([*follower.latest, *follower.polled], follower.start, follower.stop)

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
        if tool is None or TASK_FACET_NAME not in tool.facets:
            return _require_task(
                await runner.change_task(
                    record.id, lambda found: found.runner == record.runner and fail_task(found, PROCESS_LOST)
                )
            )
        try:
            runner.check_capacity(call, tool)
        except TooManyCalls:
            return task  # a later look finds room, or another process does
        # Whoever asks in the same moment must not take it for lost again.
        runner.claiming.add(record.id)
        try:
            return await self._again(call, record, tool, runner)
        finally:
            runner.claiming.discard(record.id)

    async def _again(self, call: Call, lost: TaskRecord, tool: Tool, runner: TaskRunner) -> StoredTask:
        is_claimed = False
        await runner.renew_lease()

        def claim(record: TaskRecord) -> bytes | bool:
            nonlocal is_claimed
            if record.runner == runner.id and is_claimed:
                return False  # a store that repeats a change finds its own first attempt
            is_claimed = False
            if record.runner != lost.runner:
                return False  # another process was faster
            if (lost.runner and record.retries == 0) or record.arguments is None:
                return fail_task(record, PROCESS_LOST)
            record.runner, record.retries = runner.id, record.retries - bool(lost.runner)
            is_claimed = True
            return True

        task = _require_task(await runner.change_task(lost.id, claim))
        if is_claimed and not task.record.is_over:
            run = _next_run(call, task.record, runner, blocks=needs_worker_thread(tool))
            runner.take_over_task(run, task.record)
            run.resume(task.record, run.call.terms.methods["tools/call"].run)
        return task


_KEPT_APART: Final = frozenset(("name", "arguments", "inputResponses", "requestState"))
"""What of a request is in fields of its own in the record, or in the answers."""

PROCESS_LOST: Final = "the process that ran the task has died; whether the task did its work is not known"


def _begin(call: Call, item: Any, arguments: dict[str, Any]) -> AbstractAsyncContextManager[None] | None:
    """A stage around the function: the last thing before it runs is that its task begins."""
    task = get_current_task(call)
    return None if item.facets[TASK_FACET_NAME].begins_later or task is None else _begin_task(task)


@asynccontextmanager
async def _begin_task(task: RunningTask) -> AsyncGenerator[None]:
    await task.begin()
    yield


def _require_task(task: StoredTask | None) -> StoredTask:
    if task is None:
        raise InvalidParams("Unknown task: there is none of this id, or none any more")
    return task


def require_tasks(call: Call) -> None:
    """Raises NoBackChannel for a client that did not declare tasks. Comes before anything is looked up."""
    if not can_take_tasks(call):
        raise NoBackChannel(f"{call.method} needs a client that takes tasks", needs=TASKS_CAPABILITY)


def _is_stateless(call: Call) -> bool:
    return call.terms.offer is not None and call.terms.offer.stateless


def _record(call: Call, params: Params, tool: Tool, runner: TaskRunner) -> TaskRecord:
    options: TaskOptions = tool.facets[TASK_FACET_NAME]
    record = new_record(call, tool.name, runner, round(options.ttl * 1000), round(options.poll * 1000))
    record.retries = options.retry
    if options.retry:
        record.arguments = params.get("arguments") or {}
        record.brought = {name: value for name, value in params.items() if name not in _KEPT_APART}
        if record.owner is None:
            record.stranger = identify_caller(call).id.removeprefix(ANONYMOUS_PREFIX)[:MAX_ADDRESS_LENGTH]
    return record


def new_record(call: Call, tool: str, runner: TaskRunner, ttl: int, poll: int) -> TaskRecord:
    """A task that belongs to a caller. The times are milliseconds."""
    caller, now = identify_caller(call), runner.storage.now()
    return TaskRecord(
        id=new_task_id(),
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
    terms = composition.negotiate_terms(offer) if offer is not None else None
    stranger = make_anonymous_ip_principal(record.stranger) if record.owner is None else None
    return TaskRun(runner, call, params, lambda: record, blocks=blocks, terms=terms, stranger=stranger)


def _may_use(call: Call, record: TaskRecord) -> bool:
    """Whether the caller made the task, with at least the rights it has. A stranger's task is for who has its id."""
    if record.owner is None:
        return True
    caller = identify_caller(call)
    return not is_stranger(caller) and caller.id == record.owner and caller.has_rights(record.rights)


def _parse_reply(reply: bytes) -> Params:
    """The result of a call that ended before its task began. Raises ProtocolError if the reply is an error."""
    if not reply:
        raise asyncio.CancelledError
    body = from_json(reply)
    if "error" in body:
        error = body["error"]
        raise ProtocolError(error["message"], code=error["code"], data=error.get("data"))
    return body["result"]


# -- Tasks that other servers run for callers of this one: our id for theirs, and an owner.
#
# Whoever asks for such a task is passed on to its server. When it is over, its outcome is kept here: then that server
# need not last any longer.


SERVER_LOST: Final = "the server that ran the task has ended; whether the task did its work is not known"
TASK_STATUSES: Final = frozenset(get_args(TaskStatus))


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


class RemoteTasks:
    """Keeps and asks for the tasks of `servers`. `begin` makes the record of a new task of a caller."""

    def __init__(
        self, runner: Callable[[], TaskRunner], servers: TaskServers, begin: Callable[[Call, Params], TaskRecord]
    ) -> None:
        self._runner, self._servers, self._begin = runner, servers, begin

    async def store_task(self, call: Call, created: Params, where: Params) -> Params:
        """A server has begun a task for a caller: the answer to the caller. Raises LimitExceeded."""
        runner, record = self._runner(), self._begin(call, created)
        record.elsewhere = where
        await runner.accounts.charge_bytes(record, call.principal, len(record.to_bytes()))
        await runner.storage.create(record)
        now = runner.storage.now()
        runner.held = {id: expires for id, expires in runner.held.items() if expires > now} | {
            record.id: record.expires
        }
        await runner.renew_lease()
        return {**_translate_task(record, created), "resultType": "task"}

    async def fetch_task(self, call: Call, task: StoredTask) -> Params:
        """The task as it is now."""
        where, runner = _where(task), self._runner()
        try:
            found = await self._servers.ask_task(call, where, "tasks/get", {})
        except TaskLost:
            return await self._lost(task)
        if str(found.get("status")) not in TERMINAL_STATUSES:
            told = _translate_task(task.record, found)
            asked: Any = found.get("inputRequests")
            return {**told, "inputRequests": asked} if told["status"] == "input_required" and is_object(asked) else told
        outcome = _encode_outcome(found)
        if outcome is not None:
            outcome = await charge_outcome(runner, task.record, call.principal, outcome)

        def end(record: TaskRecord) -> bytes | bool:
            record.finish(found["status"], _translate_task(record, found).get("statusMessage", ""))
            return True if outcome is None else outcome

        ended = _require_task(await runner.change_task(task.record.id, end))
        runner.held.pop(task.record.id, None)
        self._servers.release_task(where)
        return ended.to_detailed_task()

    async def forward_request(self, call: Call, task: StoredTask, params: Params) -> Params:
        """Have the server do what the call asks for: to update the task, or to cancel it."""
        try:
            await self._servers.ask_task(call, _where(task), call.method, params)
        except TaskLost:
            await self._lost(task)
        return {}

    async def _lost(self, task: StoredTask) -> Params:
        """The server of a task cannot be reached from here. The process that began the task may still reach it."""
        runner, record = self._runner(), task.record
        if record.runner != runner.id and not await runner.heartbeat.is_dead(record.runner):
            return task.to_detailed_task()
        runner.held.pop(record.id, None)
        ended = await runner.change_task(record.id, lambda found: fail_task(found, SERVER_LOST))
        return _require_task(ended).to_detailed_task()


def _where(task: StoredTask) -> Params:
    assert task.record.elsewhere is not None
    return task.record.elsewhere


def _translate_task(record: TaskRecord, found: Params) -> Params:
    """What a server says of a task, under our id. Its times and texts are taken if they are what they should be."""
    texts = ("createdAt", "lastUpdatedAt", "statusMessage")
    said = {name: found[name][:MAX_STATUS_MESSAGE_LENGTH] for name in texts if isinstance(found.get(name), str)}
    status = found["status"] if str(found.get("status")) in TASK_STATUSES else "working"
    return {**record.to_wire(), **said, "status": status}


def _encode_outcome(found: Params) -> bytes | None:
    if found["status"] == "completed":
        return to_json({"result": found.get("result") if is_object(found.get("result")) else {"content": []}})
    if found["status"] == "cancelled":
        return None
    error: Any = found.get("error")
    if not is_object(error) or type(error.get("code")) is not int or not isinstance(error.get("message"), str):
        error = make_error_object(INTERNAL_ERROR, "the task has failed, and its server does not say why")
    return to_json({"error": error})


# -- Notifications of tasks: `taskIds` in the filter of `subscriptions/listen`.


TASK_CHANGED_METHOD: Final = "notifications/tasks"
MIN_POLL_SECONDS: Final = 0.5


class TaskFollower:
    """Tells one listener of its tasks, from `start` to `stop`. `latest` is the newest that is known of each.

    Those in `polled` run elsewhere; each is what gives the task as it is.
    """

    def __init__(self, runner: TaskRunner, tell: SendNotification) -> None:
        self.latest: dict[str, StoredTask] = {}
        self.polled: dict[str, Callable[[], Awaitable[Params]]] = {}
        self._polling: list[asyncio.Task[None]] = []
        self._runner, self._tell, self._has_begun = runner, tell, False

    def follow_task(self, task: StoredTask) -> None:
        self.latest[task.record.id] = task
        if not task.record.is_over:
            self._runner.add_listener(task.record.id, self.on_task_changed)

    def on_task_changed(self, task: StoredTask) -> None:
        """What comes from the store may be older than what this process knows already."""
        if task.record.revision > self.latest[task.record.id].record.revision:
            self.latest[task.record.id] = task
            if self._has_begun:
                self._tell(TASK_CHANGED_METHOD, task.to_detailed_task())

    def start(self) -> None:
        self._has_begun = True
        for task in self.latest.values():
            self._tell(TASK_CHANGED_METHOD, task.to_detailed_task())
        self._polling = [asyncio.create_task(poll_task(look, self._tell)) for look in self.polled.values()]

    def stop(self) -> None:
        for id in self.latest:
            self._runner.remove_listener(id, self.on_task_changed)
        for polling in self._polling:
            polling.cancel()


async def poll_task(look: Callable[[], Awaitable[Params]], tell: SendNotification) -> None:
    """Ask a server elsewhere for a task, again and again, until the task is over. `look` gives the task as it is."""
    told: Params = {}
    while told.get("status") not in TERMINAL_STATUSES:
        try:
            found = await look()
        except InvalidParams:
            return  # it has expired
        except DefserveError:
            found = told  # its server may come back
        if found != told:
            tell(TASK_CHANGED_METHOD, found)
        told = found
        await asyncio.sleep(max(told.get("pollIntervalMs", 0) / 1000, MIN_POLL_SECONDS))
