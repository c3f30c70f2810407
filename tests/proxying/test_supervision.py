"""The life of a backend: whoever gives up half-way leaves no process behind, and no server that cannot be started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from defserve import Server
from defserve.host import Client
from defserve.proxying.backend import Backend
from tests.proxying.backends import child, until_fact
from tests.waiting import is_running, until

pytestmark = pytest.mark.anyio


class BusyBackend(NamedTuple):
    """A backend with a call under way that ends only when it is stopped."""

    server: Server
    client: Client
    backend: Backend
    process: int


@asynccontextmanager
async def busy() -> AsyncGenerator[BusyBackend]:
    server = Server("desk")
    server.mount(child(per="shared"), prefix="e")
    async with server.connect("stateless") as client:
        process = await client.call("e_pid")
        waiting = asyncio.create_task(client.call("e_wait"))
        await until_fact(client, "waiting")
        yield BusyBackend(server, client, server.mounts.backends["e"], process)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def given_up(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("how", ["stop", "restart"])
async def test_a_server_whose_end_is_given_up_half_way_has_ended_and_can_be_started(how: str) -> None:
    async with busy() as here:
        backend = here.backend
        ending = asyncio.create_task(getattr(backend, how)())
        await until(lambda: backend.state == "draining")
        await given_up(ending)
        assert backend.state == "disconnected"
        assert not is_running(here.process)
        await backend.start()
        assert await here.client.call("e_add", a=1, b=2) == 3


async def test_a_server_whose_removal_is_given_up_half_way_is_gone() -> None:
    async with busy() as here:
        removing = asyncio.create_task(here.server.mounts.remove("e", timeout=60))
        await until(lambda: here.backend.state == "draining")
        await given_up(removing)
        assert not is_running(here.process)
        assert await here.client.tools() == []


async def test_an_old_process_ends_though_nobody_waits_for_its_renewal() -> None:
    async with busy() as here:
        renewing = asyncio.create_task(here.backend.renew("reload", timeout=0.5))
        await until(lambda: here.backend.pid not in (None, here.process))
        await given_up(renewing)
        await until(lambda: not is_running(here.process))
        assert here.backend.state == "connected"


async def test_a_stop_ends_an_old_process_that_still_has_calls() -> None:
    async with busy() as here:
        renewing = asyncio.create_task(here.backend.renew("reload", timeout=600))
        await until(lambda: here.backend.pid not in (None, here.process))
        await here.backend.stop(timeout=0)
        await renewing
        assert not is_running(here.process)
