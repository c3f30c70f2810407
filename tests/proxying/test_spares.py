"""Processes that wait for callers: each serves one, nobody waits for a start, and there are never too many."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from defserve import Command, Remote, Server, ToolError
from defserve.auth import StaticTokens
from defserve.client import Client
from defserve.proxying import conversations, targets
from defserve.proxying.conversations import BackendChannels
from tests.at_address import at_address
from tests.proxying.backends import child
from tests.waiting import is_running, until

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def stranger_at(**options: Any) -> AsyncIterator[tuple[Client, BackendChannels]]:
    """A caller without a session or key, and the conversations with the server that it calls."""
    server = Server("desk")
    server.mount(child(is_forked=False), prefix="e", **options)
    async with at_address(server) as url, Remote(url).connect("stateless") as client:
        await client.tools()
        yield client, server.mounts.backends["e"].conversations


async def call_pids(client: Client, count: int) -> list[int]:
    return await asyncio.gather(*(client.call("e_pid") for _ in range(count)))


@pytest.mark.slow
async def test_up_to_the_number_of_spares_no_call_waits_for_a_start() -> None:
    async with stranger_at(spares=3) as (client, behind):
        spares = behind.spares
        await until(lambda: len(spares) == 3)
        waiting = set(spares.pids)
        first = await call_pids(client, 3)
        assert set(first) == waiting, "each call had a process that was there before"
        await until(lambda: len(spares) == 3)
        assert not waiting & set(spares.pids), "nobody gets the process of another"
        second = await call_pids(client, 3)
        assert not set(first) & set(second)
        await until(lambda: not any(is_running(pid) for pid in (*first, *second)))
        last = spares.pids
    await until(lambda: not any(is_running(pid) for pid in last))


@pytest.mark.slow
async def test_without_a_number_spares_come_with_the_first_stranger_and_the_log_says_what_helps(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with stranger_at() as (client, behind):
        spares = behind.spares
        assert len(spares) == 0
        with caplog.at_level(logging.WARNING, "defserve.proxying"):
            await client.call("e_pid")
        (told,) = [record.getMessage() for record in caplog.records if "has to wait" in record.getMessage()]
        assert "spares = 4" in told and 'per = "shared"' in told
        await until(lambda: len(spares) == targets.AUTOMATIC_SPARES)
        waiting = spares.pids
        assert await client.call("e_pid") in waiting


@pytest.mark.slow
async def test_spares_that_nobody_needs_any_more_end() -> None:
    async with stranger_at(idle=2.0) as (client, behind):
        spares = behind.spares
        await client.call("e_pid")
        await until(lambda: len(spares) == targets.AUTOMATIC_SPARES)
        waiting = spares.pids
        await until(lambda: not any(is_running(pid) for pid in waiting))
        assert len(spares) == 0


@pytest.mark.slow
async def test_no_spares_means_none() -> None:
    async with stranger_at(spares=0) as (client, behind):
        spares = behind.spares
        await client.call("e_pid")
        await client.call("e_pid")
        assert len(spares) == 0 and spares._filling is None


@pytest.mark.slow
async def test_a_spare_that_has_ended_is_given_to_nobody() -> None:
    async with stranger_at(spares=1) as (client, behind):
        spares = behind.spares
        await until(lambda: len(spares) == 1)
        (pid,) = spares.pids
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not is_running(pid))
        assert await client.call("e_pid") != pid


@pytest.mark.slow
async def test_who_got_a_spare_that_ended_at_once_has_a_conversation_that_ends_with_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server("desk", auth=StaticTokens({"k" * 40: "ann"}))
    server.mount(child(is_forked=False), prefix="e", spares=0)
    async with at_address(server) as url, Remote(url, token="k" * 40).connect("stateless") as client:
        await client.tools()
        behind = server.mounts.backends["e"].conversations
        dying = [await Command(sys.executable, "-c", "input(); exit(3)").link(print)]
        monkeypatch.setattr(behind.spares, "take_child", lambda *, is_for_one_call: dying.pop() if dying else None)
        await client.call("e_pid")
        (channel,) = behind.pool.list_channels()
        assert not dying and not channel.is_over and channel.pid is not None
        os.kill(channel.pid, signal.SIGKILL)
        await until(lambda: len(behind.pool) == 0)


@pytest.mark.slow
async def test_spares_weigh_no_more_than_they_may(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(targets, "read_resident_bytes", lambda pid: targets.MAX_SPARE_BYTES // 2)
    with caplog.at_level(logging.WARNING, "defserve.proxying"):
        async with stranger_at(spares=5) as (_, behind):
            spares = behind.spares
            await until(lambda: len(spares) == 2)
            await until(lambda: spares._filling is not None and spares._filling.done())
            assert len(spares) == 2
    assert "has 2 spare processes, not 5" in caplog.text


@pytest.mark.slow
async def test_strangers_beyond_the_limit_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "WAIT_SECONDS", 60.0)
    async with stranger_at(children=2, spares=0) as (client, _):
        pids = await call_pids(client, 8)
        assert len(set(pids)) == 8


@pytest.mark.slow
async def test_the_queue_has_an_end_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "WAIT_SECONDS", 1.0)
    monkeypatch.setattr(conversations, "MAX_WAITING", 1)
    async with stranger_at(children=1, spares=0) as (client, behind):
        pool = behind.pool
        held = asyncio.create_task(client.call("e_wait"))
        texts = list[str]()

        async def call() -> None:
            with pytest.raises(ToolError) as caught:
                await client.call("e_pid")
            texts.append(str(caught.value))

        await until(lambda: len(pool) == 1)
        await asyncio.gather(call(), call())
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        await until(lambda: len(pool) == 0)
    assert "and 1 calls wait for one" in str(texts) and "none became free in 1 s" in str(texts)
