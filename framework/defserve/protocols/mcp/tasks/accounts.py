"""How many tasks, and how many bytes of them, are kept for each principal (`Limits.tasks`, `Limits.task_bytes`).

A ledger lists the tasks of one principal until they expire. Strangers have a ledger for each address, and one for all
of them together, so that many addresses cannot fill the store.
"""

from __future__ import annotations

import asyncio
import random
from hashlib import sha256
from typing import Final

from pydantic_core import from_json, to_json

from defserve.errors import LimitExceeded
from defserve.limits import Limits
from defserve.protocols.mcp.tasks.record import TaskRecord
from defserve.protocols.mcp.tasks.storage import MOST_TRIES, TaskStorage
from defserve.stores.spaces import TASK_ACCOUNTS
from defserve.stores.store import StoreBusy, StoreChange

LEDGER: Final = "ledger"
STRANGERS: Final = "strangers"
STRANGERS_SHARE: Final = 10
"""All strangers together may keep as much as so many principals."""
LONGEST_PAUSE: Final = 0.02
_NAME: Final = 12


class TaskAccounts:
    """Charges tasks to those they are kept for."""

    def __init__(self, storage: TaskStorage, limits: Limits) -> None:
        self._storage, self._limits = storage, limits
        # Within a process they take turns: only those of several processes have to try again.
        self._turns = asyncio.Lock()

    async def charge(self, record: TaskRecord, principal: str, size: int) -> None:
        """A task takes `size` bytes from now on, until it expires. Raises LimitExceeded if that is too much."""
        async with self._turns:
            await self._enter(record, sha256(principal.encode("utf-8", "surrogatepass")).hexdigest(), size, 1)
            if record.owner is None:
                await self._enter(record, STRANGERS, size, STRANGERS_SHARE)

    async def _enter(self, record: TaskRecord, account: str, size: int, share: int) -> None:
        storage, space, name = self._storage, TASK_ACCOUNTS.of(account), record.id[:_NAME]
        for _ in range(MOST_TRIES):
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
            await asyncio.sleep(random.uniform(0, LONGEST_PAUSE))
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
