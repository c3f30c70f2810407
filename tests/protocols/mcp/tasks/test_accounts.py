from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve import Limits
from defserve.errors import LimitExceeded
from defserve.protocols.mcp.tasks.records import TaskQuotas, TaskRecord, TaskStorage, new_task_id
from defserve.stores.store import MemoryStore
from tests.protocols.mcp.tasks.peers import ASKABLE, TAKES, asks, ended, get, shop
from tests.raw import raw, text_of
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


def record(now: int = 0, ttl: int = 1000, owner: str | None = "alice") -> TaskRecord:
    return TaskRecord(new_task_id(), "tool", now, now, ttl, 100, owner, None, "r", 0)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


# -- through a server


async def test_a_principal_keeps_so_many_tasks_and_no_more():
    server, job = shop(limits=Limits(tasks=3), ttl=60)
    job.go_on.set()
    async with raw(server, capabilities=TAKES) as peer:
        ids = [(await peer.call("wait"))["taskId"] for _ in range(3)]
        refused = await peer.call("wait")
        assert refused["isError"] is True and text_of(refused).startswith("3 tasks are kept for you")
        assert refused["_meta"]["dev.defserve/error"]["limit"] == "tasks"
        assert len(job.began) == 3
        for id in ids:
            assert (await ended(peer, id))["status"] == "completed"
        assert text_of(await peer.call("plain")) == "plain"


async def test_a_result_that_is_too_large_to_keep_fails_its_task():
    server, _ = shop(limits=Limits(task_bytes=10_000))
    async with raw(server, capabilities=TAKES) as peer:
        small = (await peer.call("big", {"size": 5_000}))["taskId"]
        assert len(text_of((await ended(peer, small))["result"])) == 5_000
        task = await ended(peer, (await peer.call("big", {"size": 8_000}))["taskId"])
        assert task["status"] == "failed" and task["error"]["data"]["limit"] == "task_bytes"
        assert (await get(peer, small))["status"] == "completed"


@for_each_row("retry", [0, 1])
async def test_the_arguments_of_a_task_count_for_as_long_as_it_runs(retry: int):
    server, job = shop(limits=Limits(task_bytes=40_000), retry=retry)
    async with raw(server, capabilities=TAKES) as peer:
        id = (await peer.call("wait", {"name": "x" * 15_000}))["taskId"]
        refused = await peer.call("wait", {"name": "x" * 30_000})
        assert refused["isError"] is True and refused["_meta"]["dev.defserve/error"]["limit"] == "task_bytes"
        await peer.ask("tasks/cancel", {"taskId": id})
        assert job.began == ["x" * 15_000]


async def test_a_caller_runs_so_many_tasks_at_a_time():
    server, job = shop(limits=Limits(in_flight=2))
    async with raw(server, capabilities=TAKES) as peer:
        ids = [(await peer.call("wait"))["taskId"] for _ in range(2)]
        reply = await peer.ask("tools/call", {"name": "wait"})
        assert reply["error"]["code"] == -32603
        assert text_of(await peer.call("plain")) == "plain"
        job.go_on.set()
        for id in ids:
            await ended(peer, id)
        assert "taskId" in await peer.call("wait")


async def test_calls_that_come_at_once_are_all_counted():
    server, job = shop(limits=Limits(in_flight=5, in_flight_total=100))
    async with raw(server, capabilities=TAKES) as peer:
        replies = [
            await peer.reply_to(id) for id in [await peer.begin("tools/call", {"name": "wait"}) for _ in range(12)]
        ]
        made = [reply for reply in replies if "result" in reply]
        assert len(made) == 5 and len(job.began) == 5
        assert {reply["error"]["code"] for reply in replies if "error" in reply} == {-32603}
        job.go_on.set()


async def test_answers_and_questions_of_a_task_are_bounded():
    server, _ = shop()
    async with raw(server, capabilities=ASKABLE) as peer:
        id = (await peer.call("sure"))["taskId"]
        await asks(peer, id, "a", "b")
        large = {"action": "accept", "content": {"confirm": True, "more": "x" * 100_000}}
        reply = await peer.ask("tasks/update", {"taskId": id, "inputResponses": {"a": large}})
        assert reply["error"]["data"]["limit"] == "task_record"
        assert set((await get(peer, id))["inputRequests"]) == {"a", "b"}


# -- the ledger


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(1, 5000)), max_size=30))
def test_what_is_kept_at_any_time_is_within_the_limits(tasks: list[tuple[int, int]]):
    async def fill() -> None:
        clock, limits = Clock(), Limits(tasks=5, task_bytes=1000)
        accounts = TaskQuotas(TaskStorage(MemoryStore(clock=clock), clock=clock), limits)
        kept: list[tuple[int, int]] = []
        for size, ttl in tasks:
            now = int(clock.now * 1000)
            kept = [(one, until) for one, until in kept if until > now]
            fits = len(kept) < limits.tasks and sum(one for one, _ in kept) + size <= limits.task_bytes
            try:
                await accounts.charge_bytes(record(now, ttl), "alice", size)
            except LimitExceeded as error:
                assert not fits and error.data["retry_after_ms"] > 0
            else:
                assert fits
                kept.append((size, now + ttl))
            clock.now += 0.7

    asyncio.run(fill())


async def test_strangers_have_a_ledger_each_and_one_together():
    limits = Limits(tasks=2)
    accounts = TaskQuotas(TaskStorage(MemoryStore(), clock=Clock()), limits)
    for number in range(10):
        for _ in range(2):
            await accounts.charge_bytes(record(ttl=60_000, owner=None), f"anonymous:10.0.0.{number}", 1)
        with pytest.raises(LimitExceeded, match="^2 tasks are kept for you"):
            await accounts.charge_bytes(record(ttl=60_000, owner=None), f"anonymous:10.0.0.{number}", 1)
    with pytest.raises(LimitExceeded, match="^20 tasks are kept for callers without a token"):
        await accounts.charge_bytes(record(ttl=60_000, owner=None), "anonymous:10.0.0.99", 1)
    await accounts.charge_bytes(record(ttl=60_000), "alice", 1)


async def test_tasks_made_at_once_are_all_counted():
    accounts = TaskQuotas(TaskStorage(MemoryStore(), clock=Clock()), Limits(tasks=10))
    made = [accounts.charge_bytes(record(ttl=60_000), "alice", 1) for _ in range(25)]
    outcomes = await asyncio.gather(*made, return_exceptions=True)
    assert sum(outcome is None for outcome in outcomes) == 10
