"""What is kept of a task, and how the wire shows it (tasks extension: Task, CreateTaskResult, DetailedTask).

Records lie in the server's store, counted for each principal. The process that runs a task keeps a lease beside it.
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from pydantic_core import from_json, to_json

from defserve.base.redaction import get_logger
from defserve.core.json_values import is_object
from defserve.core.messages import Params
from defserve.errors import LimitExceeded, Refused
from defserve.limits import Limits
from defserve.protocols.mcp.lifecycle import MCP_NAMESPACE
from defserve.stores.store import (
    LEASE_SPACES,
    MAX_LEASE_SECONDS,
    TASK_ACCOUNT_SPACES,
    TASK_SPACES,
    Space,
    Store,
    StoreBusy,
    StoreChange,
    StoreCorrupt,
)

if TYPE_CHECKING:
    from defserve.core.call import Call


TaskStatus: TypeAlias = Literal["working", "input_required", "completed", "failed", "cancelled"]

TERMINAL_STATUSES: Final[frozenset[TaskStatus]] = frozenset(("completed", "failed", "cancelled"))
MAX_STATUS_MESSAGE_LENGTH: Final = 1024
NO_RUNNER: Final = ""
"""The runner of a task that waits to be run again."""

_LATER_FIELDS: Final = frozenset(("brought", "marks", "stranger"))
"""Left out if empty, so that a process of an older version, which does not know them, reads most tasks."""


@dataclass(slots=True)
class TaskRecord:
    """One task. Times are milliseconds since the epoch, `ttl` and `poll` milliseconds.

    `owner` is None if whoever has the id may use it; `rights` are those of the call that made it. `runner` is the
    process that runs it, `retries` how often another may run it again. `revision` grows with every change.
    `questions` are the requests that wait for an answer, each with the digest of what it says. `answers` are those
    given, with the digest of their question: a run that begins again finds them. `effects` is what `ctx.once` gave,
    `arguments` are those of the call, `brought` is what else its request had, and `marks` are those of the call; they
    are kept only if it may run again. `stranger` is the address of who made it, if nobody vouches for them.
    `elsewhere` says where it runs, if another server runs it.
    """

    id: str
    tool: str
    created: int
    updated: int
    ttl: int
    poll: int
    owner: str | None
    rights: Any
    runner: str
    retries: int
    revision: int = 0
    status: TaskStatus = "working"
    message: str = ""
    questions: dict[str, Params] = field(default_factory=dict[str, Params])
    answers: dict[str, tuple[str, Any]] = field(default_factory=dict[str, tuple[str, Any]])
    effects: Params = field(default_factory=Params)
    arguments: Params | None = None
    elsewhere: Params | None = None
    brought: Params = field(default_factory=Params)
    marks: dict[str, str] = field(default_factory=dict[str, str])
    stranger: str = ""

    @classmethod
    def from_bytes(cls, data: bytes) -> TaskRecord:
        """Raises StoreCorrupt for a record that this version cannot read."""
        try:
            return cls(**from_json(data))
        except (TypeError, ValueError):
            raise StoreCorrupt("A task in the store has a form that this version of defserve cannot read") from None

    def to_bytes(self) -> bytes:
        fields = asdict(self).items()
        return to_json({name: value for name, value in fields if value or name not in _LATER_FIELDS})

    @property
    def is_over(self) -> bool:
        return self.status in TERMINAL_STATUSES

    @property
    def weight(self) -> int:
        """Bytes of the questions, answers and effects."""
        return len(to_json([self.questions, self.answers, self.effects]))

    @property
    def expires(self) -> int:
        return self.created + self.ttl

    def finish(self, status: TaskStatus, message: str = "") -> None:
        """It is over. Questions that nobody answered are dropped, and so is what a further run would need."""
        self.status, self.message = status, message[:MAX_STATUS_MESSAGE_LENGTH]
        self.questions, self.answers, self.effects, self.arguments = {}, {}, {}, None
        self.brought, self.marks = {}, {}

    def to_wire(self) -> Params:
        """The fields that every form of a task has."""
        said: Params = {
            "taskId": self.id,
            "status": self.status,
            "createdAt": _iso(self.created),
            "lastUpdatedAt": _iso(self.updated),
            "ttlMs": self.ttl,
            "pollIntervalMs": self.poll,
        }
        return {**said, "statusMessage": self.message} if self.message else said


class StoredTask(NamedTuple):
    """A record and, if the task has an outcome, the encoded `{"result": …}` or `{"error": …}`."""

    record: TaskRecord
    outcome: bytes | None = None

    def to_detailed_task(self) -> Params:
        """The task as `tasks/get` and notifications tell it."""
        said = self.record.to_wire()
        if self.record.status == "input_required":
            asked = self.record.questions.items()
            said["inputRequests"] = {key: {"method": one["method"], "params": one["params"]} for key, one in asked}
        elif self.outcome is not None:
            said |= from_json(self.outcome)
        return said


def _iso(milliseconds: int) -> str:
    from defserve.core.json_values import format_unix_timestamp

    return format_unix_timestamp(milliseconds / 1000, "milliseconds")


# -- Tasks in a store: made, found and changed. Each change sees the record as it is, whichever process wrote it last.


RECORD: Final = "record"
OUTCOME: Final = "outcome"
MAX_RECORD_BYTES: Final = 64 * 1024
"""Bytes of questions, answers and effects. The arguments are charged when the task is made."""
MAX_TRIES: Final = 100

_ID: Final = re.compile(r"[A-Za-z0-9_-]{32}")

RecordChange = Callable[[TaskRecord], bytes | bool]
"""Changes a record in place. True keeps the change, False leaves the task as it was; bytes are its outcome."""


def new_task_id() -> str:
    """An id that cannot be guessed."""
    return secrets.token_urlsafe(24)


class TaskStorage:
    """The tasks of a store. `clock` gives seconds since the epoch, alike in all processes on the store."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self.store, self._clock = store, clock

    def now(self) -> int:
        """Milliseconds since the epoch."""
        return int(self._clock() * 1000)

    async def create(self, record: TaskRecord) -> None:
        """Keep a new task. When this returns, every process on the store finds it."""
        data = record.to_bytes()
        change = StoreChange(
            TASK_SPACES.make_space(record.id), put={RECORD: data}, expect={RECORD: None}, ttl=record.ttl / 1000
        )
        if await self.store.change(change):
            return
        # A store that lost its connection may repeat a change, and then find its own first attempt.
        if (await self.store.get(TASK_SPACES.make_space(record.id), [RECORD])).get(RECORD) != data:
            raise StoreBusy("The store has another task of this id")

    async def find(self, id: str) -> StoredTask | None:
        """The task of this id; None if there is none, or none any more."""
        if not _ID.fullmatch(id):
            return None
        found = await self.store.get(TASK_SPACES.make_space(id), [RECORD, OUTCOME])
        if RECORD not in found:
            return None
        record = TaskRecord.from_bytes(found[RECORD])
        return StoredTask(record, found.get(OUTCOME)) if record.expires > self.now() else None

    async def change(self, id: str, alter: RecordChange) -> StoredTask | None:
        """The task after `alter` has changed it, as it is now. A task that is over is not changed any more.

        Raises LimitExceeded if the record would become too large, and what the store raises.
        """
        space = TASK_SPACES.make_space(id)
        for _ in range(MAX_TRIES):
            found = await self.store.get(space, [RECORD, OUTCOME])
            if RECORD not in found:
                return None
            record = TaskRecord.from_bytes(found[RECORD])
            now, task = self.now(), StoredTask(record, found.get(OUTCOME))
            if record.expires <= now:
                return None
            if record.is_over or (altered := alter(record)) is False:
                return task
            record.updated, record.revision = max(now, record.updated), record.revision + 1
            put = {RECORD: self._encode_record(record, len(found[RECORD]))}
            if isinstance(altered, bytes):
                put[OUTCOME] = altered
            left = (record.expires - now) / 1000
            if await self.store.change(StoreChange(space, put=put, expect={RECORD: found[RECORD]}, ttl=left)):
                return StoredTask(record, put.get(OUTCOME))
        raise StoreBusy("The task is changed by too many at once", data={"retry_after_ms": 1000})

    def _encode_record(self, record: TaskRecord, before: int) -> bytes:
        data = record.to_bytes()
        if len(data) > before and record.weight > MAX_RECORD_BYTES:
            raise LimitExceeded(
                f"the questions, answers and effects of a task take more than {MAX_RECORD_BYTES} bytes",
                data={"limit": "task_record", "max": MAX_RECORD_BYTES},
            )
        return data


# -- How many tasks, and how many bytes of them, are kept for each principal (`Limits.tasks`, `Limits.task_bytes`).
#
# A ledger lists the tasks of one principal until they expire. Strangers have a ledger for each address, and one for all
# of them together, so that many addresses cannot fill the store.


LEDGER: Final = "ledger"
STRANGERS: Final = "strangers"
STRANGERS_SHARE: Final = 10
"""All strangers together may keep as much as so many principals."""
MAX_PAUSE_SECONDS: Final = 0.02
_NAME: Final = 12


class TaskQuotas:
    """Charges tasks to those they are kept for."""

    def __init__(self, storage: TaskStorage, limits: Limits) -> None:
        self._storage, self._limits = storage, limits
        # Within a process they take turns: only those of several processes have to try again.
        self._turns = asyncio.Lock()

    async def charge_bytes(self, record: TaskRecord, principal: str, size: int) -> None:
        """A task takes `size` bytes from now on, until it expires. Raises LimitExceeded if that is too much."""
        async with self._turns:
            await self._enter(record, sha256(principal.encode("utf-8", "surrogatepass")).hexdigest(), size, 1)
            if record.owner is None:
                await self._enter(record, STRANGERS, size, STRANGERS_SHARE)

    async def _enter(self, record: TaskRecord, account: str, size: int, share: int) -> None:
        storage, space, name = self._storage, TASK_ACCOUNT_SPACES.make_space(account), record.id[:_NAME]
        for _ in range(MAX_TRIES):
            before = (await storage.store.get(space, [LEDGER])).get(LEDGER)
            now = storage.now()
            entries: dict[str, list[int]] = from_json(before) if before is not None else {}
            entries = {task: entry for task, entry in entries.items() if entry[1] > now}
            entries[name] = [size, record.expires]
            self._refuse_too_much(entries, share, now)
            put = {LEDGER: to_json(entries)}
            left = (max(until for _, until in entries.values()) - now) / 1000
            if left <= 0 or await storage.store.change(
                StoreChange(space, put=put, expect={LEDGER: before}, ttl=max(left, 0.001))
            ):
                return
            await asyncio.sleep(random.uniform(0, MAX_PAUSE_SECONDS))
        raise StoreBusy("Too many tasks are made at once", data={"retry_after_ms": 1000})

    def _refuse_too_much(self, entries: dict[str, list[int]], share: int, now: int) -> None:
        limits, whose = self._limits, "for you" if share == 1 else "for callers without a token"
        wait = min(until for _, until in entries.values()) - now
        if len(entries) > limits.tasks * share:
            raise LimitExceeded(
                f"{limits.tasks * share} tasks are kept {whose}, and no more can be: wait until the oldest expire",
                data={"limit": "tasks", "max": limits.tasks * share, "retry_after_ms": wait},
            )
        if sum(size for size, _ in entries.values()) > limits.task_bytes * share:
            raise LimitExceeded(
                f"the tasks that are kept {whose} would take more than {limits.task_bytes * share} bytes",
                data={"limit": "task_bytes", "max": limits.task_bytes * share, "retry_after_ms": wait},
            )


# -- Whether the process that runs a task is alive: it keeps a lease in the store for as long as it runs tasks.
#
# A process whose lease is missing counts as dead only if it is still missing a heartbeat later: who asks waits for
# that. So neither a store that was away for a moment nor a process that was held up costs a task that still runs.


BEATS: Final = 5
"""How often the lease is renewed in the time it lasts."""
MAX_DEAD_RUNNERS: Final = 1024

_HOLDER: Final = "holder"

log = get_logger()


class Heartbeat:
    """The lease of this process on one loop, `id`, and a look at those of others. A lease lasts for `seconds`."""

    def __init__(self, store: Store, seconds: float) -> None:
        self.id = secrets.token_hex(8)
        self._store, self._seconds = store, min(seconds, MAX_LEASE_SECONDS)
        self._beating: asyncio.Task[None] | None = None
        self._dead: set[str] = set()

    async def start(self, is_needed: Callable[[], bool]) -> None:
        """Keep the lease from now on, for as long as it is needed. Raises what the store raises."""
        if self._beating is None or self._beating.done():
            await self._renew()
            if self._beating is None or self._beating.done():
                self._beating = asyncio.create_task(self._beat(is_needed))

    async def stop(self) -> None:
        """Give up the lease. If the store cannot be reached, it ends by itself."""
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None
            with suppress(Refused):
                await self._store.change(StoreChange(_lease(self.id), drop=[_HOLDER], ttl=self._seconds))

    async def is_dead(self, runner: str) -> bool:
        """Whether nothing was heard of another process for long enough. May take a moment."""
        if runner == NO_RUNNER:
            return True
        if await self._store.get(_lease(runner), [_HOLDER]):
            self._dead.discard(runner)
            return False
        if runner in self._dead:
            return True
        await asyncio.sleep(1.5 * self._seconds / BEATS)
        if await self._store.get(_lease(runner), [_HOLDER]):
            return False
        if len(self._dead) >= MAX_DEAD_RUNNERS:
            self._dead.clear()
        self._dead.add(runner)
        return True

    async def _beat(self, is_needed: Callable[[], bool]) -> None:
        while True:
            await asyncio.sleep(self._seconds / BEATS)
            if not is_needed():
                return
            try:
                await self._renew()
            except Exception as error:
                # Whatever is wrong with the store may pass. Without a heartbeat, others take this process for dead.
                if not isinstance(error, Refused):
                    log.error("the lease of a process that runs tasks could not be renewed", exc_info=error)

    async def _renew(self) -> None:
        await self._store.change(StoreChange(_lease(self.id), put={_HOLDER: self.id.encode()}, ttl=self._seconds))


def _lease(runner: str) -> Space:
    return LEASE_SPACES.make_space(f"tasks {runner}")


# -- What a client that takes tasks offers, with every request (tasks extension: capability negotiation).


TASKS_EXTENSION_ID: Final = MCP_NAMESPACE + "tasks"
TASKS_CAPABILITY: Final[Params] = {"extensions": {TASKS_EXTENSION_ID: {}}}


def can_take_tasks(call: Call) -> bool:
    """Whether the client declared, with this request, that it takes tasks."""
    offer = call.terms.offer
    extensions = offer.capabilities.get("extensions") if offer is not None and offer.stateless else None
    return is_object(extensions) and is_object(extensions.get(TASKS_EXTENSION_ID))
