"""Five faults that a cluster is given on purpose, to see that the checker finds each. Only `served.py` loads this."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, NamedTuple

EARLY_SECONDS = 0.4


class Mutant(NamedTuple):
    """`apply` changes the package in this process. `promises` are those of which at least one must be found broken."""

    apply: Callable[[], None]
    promises: tuple[str, ...]


def acknowledge_before_commit() -> None:
    """A change is answered first and made later."""
    from defserve.stores.postgres import PostgresStore

    change_store = PostgresStore.change
    later: set[asyncio.Task[bool]] = set()

    async def change(self: PostgresStore, change: Any) -> bool:
        if not _is_checkpoint(change.space):
            return await change_store(self, change)

        async def commit() -> bool:
            await asyncio.sleep(EARLY_SECONDS)
            return await change_store(self, change)

        later.add(task := asyncio.create_task(commit()))
        task.add_done_callback(lambda task: (later.discard(task), task.exception()))
        return True

    PostgresStore.change = change  # type: ignore[method-assign]


def fork_states() -> None:
    """A change of a state is made whatever the state is by then."""
    from defserve.stores.postgres import PostgresStore

    change_store = PostgresStore.change

    async def change(self: PostgresStore, change: Any) -> bool:
        if _is_checkpoint(change.space):
            await asyncio.sleep(random.uniform(0, EARLY_SECONDS))
            change = change._replace(expect={})
        return await change_store(self, change)

    PostgresStore.change = change  # type: ignore[method-assign]


def lose_stream_events() -> None:
    """One of 30 messages in a stream is not written."""
    from defserve.serve.http.redis_log import RedisLog

    append = RedisLog.append

    def append_most(self: RedisLog, name: str, message: Any) -> None:
        if b"notifications/message" in message.data and random.random() < 1 / 30:
            if message.taken is not None:
                message.taken()
            return
        append(self, name, message)

    RedisLog.append = append_most  # type: ignore[method-assign]


def run_tasks_twice() -> None:
    """The function of one of four tasks is called twice."""
    from defserve.protocols.mcp.tasks.run import TaskRun

    start = TaskRun.start

    def start_some_twice(self: TaskRun, following: Any) -> None:
        async def run_twice(call: Any, params: Any) -> Any:
            await following(call, params)
            return await following(call, params)

        start(self, run_twice if random.random() < 1 / 4 else following)

    TaskRun.start = start_some_twice  # type: ignore[method-assign]


def drop_audit_rows() -> None:
    """One of five rows that must be written is not."""
    from defserve.stores.audit.stored_log import StoredAuditLog

    append = StoredAuditLog.append

    def append_most(self: StoredAuditLog, event: Any, *, durable: bool = False) -> None:
        if not durable or random.random() > 1 / 5:
            append(self, event, durable=durable)

    StoredAuditLog.append = append_most  # type: ignore[method-assign]


def _is_checkpoint(space: str) -> bool:
    return "checkpoint" in space or "state" in space


MUTANTS: dict[str, Mutant] = {
    "acknowledges-early": Mutant(acknowledge_before_commit, ("state-kept", "state-line", "state-fresh")),
    "loses-stream-events": Mutant(lose_stream_events, ("stream-gap",)),
    "runs-tasks-twice": Mutant(run_tasks_twice, ("task-once",)),
    "forks-states": Mutant(fork_states, ("state-kept", "state-line", "state-readable")),
    "drops-audit-rows": Mutant(drop_audit_rows, ("audit-kept",)),
}
