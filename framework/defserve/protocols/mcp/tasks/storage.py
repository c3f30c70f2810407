"""Tasks in a store: made, found and changed. Each change sees the record as it is, whichever process wrote it last."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from typing import Final

from defserve.errors import LimitExceeded
from defserve.protocols.mcp.tasks.record import StoredTask, TaskRecord
from defserve.stores.spaces import TASKS
from defserve.stores.store import Store, StoreBusy, StoreChange

RECORD: Final = "record"
OUTCOME: Final = "outcome"
MOST_RECORD: Final = 64 * 1024
"""Bytes of questions, answers and effects. The arguments are charged when the task is made."""
MOST_TRIES: Final = 100

_ID: Final = re.compile(r"[A-Za-z0-9_-]{32}")

Alter = Callable[[TaskRecord], bytes | bool]
"""Changes a record in place. True keeps the change, False leaves the task as it was; bytes are its outcome."""


def new_id() -> str:
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
        data = record.encoded()
        change = StoreChange(TASKS.of(record.id), put={RECORD: data}, expect={RECORD: None}, ttl=record.ttl / 1000)
        if await self.store.change(change):
            return
        # A store that lost its connection may repeat a change, and then find its own first attempt.
        if (await self.store.get(TASKS.of(record.id), [RECORD])).get(RECORD) != data:
            raise StoreBusy("The store has another task of this id")

    async def find(self, id: str) -> StoredTask | None:
        """The task of this id; None if there is none, or none any more."""
        if not _ID.fullmatch(id):
            return None
        found = await self.store.get(TASKS.of(id), [RECORD, OUTCOME])
        if RECORD not in found:
            return None
        record = TaskRecord.read(found[RECORD])
        return StoredTask(record, found.get(OUTCOME)) if record.expires > self.now() else None

    async def change(self, id: str, alter: Alter) -> StoredTask | None:
        """The task after `alter` has changed it, as it is now. A task that is over is not changed any more.

        Raises LimitExceeded if the record would become too large, and what the store raises.
        """
        space = TASKS.of(id)
        for _ in range(MOST_TRIES):
            found = await self.store.get(space, [RECORD, OUTCOME])
            if RECORD not in found:
                return None
            record = TaskRecord.read(found[RECORD])
            now, task = self.now(), StoredTask(record, found.get(OUTCOME))
            if record.expires <= now:
                return None
            if record.is_over or (altered := alter(record)) is False:
                return task
            record.updated, record.revision = max(now, record.updated), record.revision + 1
            put = {RECORD: self._checked(record, len(found[RECORD]))}
            if isinstance(altered, bytes):
                put[OUTCOME] = altered
            left = (record.expires - now) / 1000
            if await self.store.change(StoreChange(space, put=put, expect={RECORD: found[RECORD]}, ttl=left)):
                return StoredTask(record, put.get(OUTCOME))
        raise StoreBusy("The task is changed by too many at once", data={"retry_after_ms": 1000})

    def _checked(self, record: TaskRecord, before: int) -> bytes:
        data = record.encoded()
        if len(data) > before and record.weight > MOST_RECORD:
            raise LimitExceeded(
                f"the questions, answers and effects of a task take more than {MOST_RECORD} bytes",
                data={"limit": "task_record", "max": MOST_RECORD},
            )
        return data
