"""The life of a backend: whoever gives up half-way leaves no process behind, and no server that cannot be started."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from defserve import Command, Server
from defserve.client import Client
from defserve.client.link import ClientLink
from defserve.proxying.backend import Backend
from defserve.proxying.mounted import RestartPolicy
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
    server.mount(
        child(is_forked=False, per="shared"), prefix="e", restarts=RestartPolicy("on_failure", 5, 300, 0.01, 0.01)
    )
    async with server.connect("stateless") as client:
        process = await client.call("e_pid")
        waiting = asyncio.create_task(client.call("e_wait"))
        await until_fact(client, "waiting")
        yield BusyBackend(server, client, server.mounts.backends["e"], process)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


class HeldBack(Command):
    """A program whose processes start one by one, each when it may. `processes` are those that have."""

    def __init__(self) -> None:
        like = child(is_forked=False, per="shared")
        super().__init__(like.program, *like.args, env=like.env, per=like.per)
        self.gates: list[asyncio.Event] = []
        self.processes: list[int] = []

    async def link(self, on_stderr: Callable[[str], None], key: str = "") -> ClientLink:
        self.gates.append(gate := asyncio.Event())
        await gate.wait()
        link = await super().link(on_stderr, key)
        self.processes.append(getattr(link, "pid"))  # noqa: B009 (only links to processes have one)
        return link


async def given_up(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "restart", "sleep"])
async def test_a_server_whose_end_is_given_up_while_its_process_ends_has_ended_and_can_be_started(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server("desk")
    server.mount(child(is_forked=False, per="shared"), prefix="e")
    async with server.connect("stateless") as client:
        process = await client.call("e_pid")
        backend = server.mounts.backends["e"]
        main = backend.conversations.main
        assert main is not None
        ends, begun, may_end = main.aclose, asyncio.Event(), asyncio.Event()

        async def end_late() -> None:
            begun.set()
            await may_end.wait()
            await ends()

        monkeypatch.setattr(main, "aclose", end_late)
        ending = asyncio.create_task(getattr(backend, how)())
        await begun.wait()
        ending.cancel()
        asyncio.get_running_loop().call_soon(may_end.set)
        await asyncio.gather(ending, return_exceptions=True)
        assert (backend.state, backend.tools > 0) == ("disconnected", how == "sleep")
        assert not is_running(process)
        await backend.start()
        assert await client.call("e_add", a=1, b=2) == 3


@pytest.mark.slow
async def test_a_server_whose_removal_is_given_up_half_way_is_gone() -> None:
    async with busy() as here:
        removing = asyncio.create_task(here.server.mounts.remove("e", timeout=60))
        await until(lambda: here.backend.state == "draining")
        await given_up(removing)
        assert not is_running(here.process)
        assert await here.client.tools() == []


@pytest.mark.slow
async def test_an_old_process_ends_though_nobody_waits_for_its_renewal() -> None:
    async with busy() as here:
        renewing = asyncio.create_task(here.backend.renew("reload", timeout=0.5))
        await until(lambda: here.backend.pid not in (None, here.process))
        await given_up(renewing)
        await until(lambda: not is_running(here.process))
        assert here.backend.state == "connected"


@pytest.mark.slow
async def test_a_stop_ends_an_old_process_that_still_has_calls() -> None:
    async with busy() as here:
        renewing = asyncio.create_task(here.backend.renew("reload", timeout=600))
        await until(lambda: here.backend.pid not in (None, here.process))
        await here.backend.stop(timeout=0)
        await renewing
        assert not is_running(here.process)


@pytest.mark.slow
async def test_a_server_that_is_stopped_while_its_next_process_opens_stays_stopped() -> None:
    async with busy() as here:
        program, backend = HeldBack(), here.backend
        renewing = asyncio.create_task(backend.renew("reload", program))
        await until(lambda: len(program.gates) == 1)
        await backend.stop(timeout=0)
        program.gates[0].set()
        await renewing
        assert backend.state == "disconnected"
        assert await here.client.tools() == []
        assert not any(map(is_running, [here.process, *program.processes]))


@pytest.mark.slow
async def test_a_server_that_ends_while_its_next_process_opens_has_one_process_in_the_end() -> None:
    async with busy() as here:
        program, backend = HeldBack(), here.backend
        renewing = asyncio.create_task(backend.renew("reload", program))
        await until(lambda: len(program.gates) == 1)
        os.kill(here.process, signal.SIGKILL)
        await until(lambda: len(program.gates) == 2)
        program.gates[0].set()
        await renewing
        program.gates[1].set()
        await until(lambda: backend.state == "connected")
        assert [one for one in program.processes if is_running(one)] == [backend.pid]


@pytest.mark.slow
async def test_servers_end_though_the_end_of_the_front_is_called_off_while_a_parked_call_ends() -> None:
    server = Server("desk")
    server.mount(child(is_forked=False, per="shared"), prefix="e")
    mounts, backend = server.mounts, server.mounts.backends["e"]
    ready, begun = asyncio.Event(), asyncio.Event()

    async def park() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def serve() -> None:
        async with mounts.lifespan():
            await backend.ready(60)
            mounts._parking.close = park  # pyright: ignore[reportPrivateUsage]
            ready.set()

    serving = asyncio.create_task(serve())
    await ready.wait()
    process = backend.pid
    await begun.wait()
    await given_up(serving)
    assert backend.state == "disconnected" and process is not None and not is_running(process)
