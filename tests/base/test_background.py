"""Tasks that run on their own."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from defserve.base.concurrency import BackgroundTasks
from tests.raw import turns

pytestmark = pytest.mark.anyio


async def test_a_task_that_nobody_else_holds_is_kept_until_it_ends() -> None:
    tasks = BackgroundTasks()

    async def work() -> None:
        await asyncio.get_running_loop().create_future()  # which nobody else holds either

    found = weakref.ref(tasks.start(work(), name="a name"))
    await turns()
    gc.collect()
    task = found()
    assert task is not None and task.get_name() == "a name"
    task.cancel()
    await turns()
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
