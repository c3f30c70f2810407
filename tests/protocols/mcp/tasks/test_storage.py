from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from defserve.errors import LimitExceeded
from defserve.protocols.mcp.tasks.records import (
    MAX_RECORD_BYTES,
    TERMINAL_STATUSES,
    RecordChange,
    StoredTask,
    TaskRecord,
    TaskStorage,
    new_task_id,
)
from defserve.protocols.mcp.tasks.run import fail_task
from defserve.stores.identity import open_store
from defserve.stores.store import MemoryStore, StoreChange

pytestmark = pytest.mark.anyio

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def record(**more: Any) -> TaskRecord:
    made: dict[str, Any] = {"owner": "alice", "rights": ["k", ["read"]], "runner": "r", "retries": 1, **more}
    return TaskRecord(new_task_id(), "tool", 0, 0, 60_000, 100, **made)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=3), st.text(max_size=20), st.none() | st.text(max_size=5))
def test_a_record_is_read_as_it_was_written(values: dict[str, Any], message: str, owner: str | None):
    made = record(owner=owner, message=message, effects=values, arguments=values)
    made.answers = {key: ("digest", value) for key, value in values.items()}
    read = TaskRecord.from_bytes(made.to_bytes())
    assert read.answers.keys() == made.answers.keys()
    assert read.to_bytes() == made.to_bytes()


async def test_changes_made_at_once_are_all_kept(address: str):
    stores = [open_store(address) for _ in range(3)]
    storages = [TaskStorage(store) for store in stores]
    made = record()
    made.created = made.updated = storages[0].now()
    await storages[0].create(made)

    def answering(key: str) -> Any:
        def alter(found: TaskRecord) -> bool:
            found.answers[key] = ("d", key)
            return True

        return alter

    await asyncio.gather(*(storages[n % 3].change(made.id, answering(f"k{n}")) for n in range(12)))
    task = await storages[1].find(made.id)
    assert task is not None and set(task.record.answers) == {f"k{n}" for n in range(12)}
    assert task.record.revision == 12
    for store in stores:
        await store.close()


async def test_a_creation_that_the_store_repeated_is_one():
    class Repeating(MemoryStore):
        async def change(self, change: StoreChange) -> bool:
            await super().change(change)
            return await super().change(change)

    storage = TaskStorage(Repeating())
    made = record()
    made.created = storage.now()
    await storage.create(made)
    assert await storage.find(made.id) is not None


async def test_a_record_may_shrink_but_not_grow_past_its_bound():
    storage = TaskStorage(MemoryStore(), clock=Clock())
    made = record(effects={"old": "x" * MAX_RECORD_BYTES})
    await storage.create(made)

    def grow(found: TaskRecord) -> bool:
        found.answers["a"] = ("d", "x")
        return True

    with pytest.raises(LimitExceeded):
        await storage.change(made.id, grow)
    ended = await storage.change(made.id, lambda found: fail_task(found, "over"))
    assert ended is not None and ended.record.status == "failed"


class Lives(RuleBasedStateMachine):
    """Whatever is done to a task, in whichever order: what is over stays as it is, and its time is its time."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.storage = TaskStorage(MemoryStore(clock=self.clock), clock=self.clock)
        self.made = record()
        self.loop = asyncio.new_event_loop()
        self.loop.run_until_complete(self.storage.create(self.made))
        self.over: StoredTask | None = None
        self.revision = 0

    def change(self, alter: RecordChange) -> None:
        self.loop.run_until_complete(self.storage.change(self.made.id, alter))

    @rule(key=st.sampled_from("abc"))
    def ask(self, key: str) -> None:
        def alter(found: TaskRecord) -> bool:
            found.questions[key] = {"method": "elicitation/create", "params": {}, "digest": key}
            found.status = "input_required"
            return True

        self.change(alter)

    @rule(message=st.text(max_size=2000))
    def complete(self, message: str) -> None:
        def alter(found: TaskRecord) -> bytes:
            found.finish("completed", message)
            return b'{"result":{}}'

        self.change(alter)

    @rule()
    def cancel(self) -> None:
        self.change(lambda found: found.finish("cancelled") is None)

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def it_holds(self) -> None:
        task = self.loop.run_until_complete(self.storage.find(self.made.id))
        if self.clock.now >= 60:
            assert task is None
            return
        assert task is not None
        assert task.record.revision >= self.revision and len(task.record.message) <= 1024
        self.revision = task.record.revision
        said = task.to_detailed_task()
        assert ("inputRequests" in said) == (said["status"] == "input_required")
        assert ("result" in said) == (said["status"] == "completed")
        if self.over is not None:
            assert task == self.over
        if task.record.status in TERMINAL_STATUSES:
            self.over = task
            assert not task.record.questions and not task.record.answers

    def teardown(self) -> None:
        self.loop.close()


TestLives = Lives.TestCase
