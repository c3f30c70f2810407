from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve.serve.sockets import drain_unless_stalled

pytestmark = pytest.mark.anyio

SOON = 0.01


class Stuck:
    """A connection whose peer takes so many bytes each time that somebody looks, until nothing waits."""

    def __init__(self, waiting: int, takes: int, close_deadline: float | None = None) -> None:
        self.waiting, self.takes, self.close_deadline = waiting, takes, close_deadline
        self.transport = self

    @property
    def paused(self) -> bool:
        return self.waiting > 0

    def get_write_buffer_size(self) -> int:
        self.waiting -= self.takes
        return self.waiting

    async def drain(self) -> None:
        if self.paused:
            await asyncio.Event().wait()


async def drained(connection: Any, seconds: float = SOON) -> None:
    async with asyncio.timeout(30):
        await drain_unless_stalled(connection, connection.drain, seconds)


async def test_a_peer_that_reads_nothing_is_given_up():
    connection = Stuck(100, 0)
    with pytest.raises(TimeoutError):
        await drained(connection)
    assert connection.waiting == 100


async def test_a_peer_that_goes_on_reading_has_all_the_time_it_needs():
    connection = Stuck(100, 10)
    await drained(connection)
    assert not connection.paused


async def test_where_nothing_waits_nobody_does():
    await drained(Stuck(0, 0))


async def test_after_a_close_there_is_no_more_time_than_that_gives():
    connection = Stuck(100, 1, close_deadline=asyncio.get_running_loop().time() + SOON)
    with pytest.raises(TimeoutError):
        await drained(connection, 1000.0)
    assert connection.waiting == 99
