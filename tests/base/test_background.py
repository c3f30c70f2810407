"""Tasks that run on their own."""

from __future__ import annotations

import asyncio
import gc

import pytest

from defserve.base.background import BackgroundTasks
from tests.raw import turns

pytestmark = pytest.mark.anyio


async def test_a_task_that_nobody_else_holds_is_kept_until_it_ends() -> None:
    tasks, done = BackgroundTasks(), list[str]()

    async def work() -> None:
        await asyncio.sleep(0)
        done.append("work")

    tasks.start(work(), name="a name")
    assert [task.get_name() for task in tasks] == ["a name"]
    gc.collect()
    await turns()
    assert done == ["work"]
    assert not tasks


async def test_all_are_asked_to_end() -> None:
    tasks = BackgroundTasks()
    begun = [tasks.start(asyncio.Event().wait()) for _ in range(3)]
    await turns()
    tasks.cancel()
    await asyncio.wait(begun)
    assert all(task.cancelled() for task in begun)
    await turns()
    assert not tasks
