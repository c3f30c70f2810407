"""A session whose link is dead is noticed, though nothing is said on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from defserve import Remote, Server
from defserve.errors import MethodNotFound
from defserve.extending import Call, Next
from defserve.proxying.mounted import RestartPolicy
from defserve.proxying.supervision import BackendHeartbeat
from tests.at_address import at_address
from tests.waiting import until

pytestmark = pytest.mark.anyio

SOON = RestartPolicy("always", None, 300, 0.01, 0.02)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BackendHeartbeat.__init__, "__defaults__", (0.5,))


class Behind:
    """A server with sessions. While it is `deaf`, it answers no ping."""

    def __init__(self) -> None:
        self.deaf, self.knows_ping, self.go = False, True, asyncio.Event()
        self.pings = self.waiting = 0
        self.server = Server("behind")
        self.server.tool(self.add)
        self.server.tool(self.wait)
        self.server.around("ping")(self._ping)

    async def add(self, a: int, b: int) -> int:
        return a + b

    async def wait(self) -> str:
        self.waiting += 1
        await self.go.wait()
        return "waited"

    async def _ping(self, call: Call, params: dict[str, Any], next: Next) -> Any:
        self.pings += 1
        if self.deaf:
            await asyncio.sleep(60)
        if not self.knows_ping:
            raise MethodNotFound("Method not found: ping")
        return await next(call, params)


@pytest.fixture
async def behind() -> AsyncGenerator[tuple[Behind, str]]:
    made = Behind()
    async with at_address(made.server) as url:
        yield made, url


async def test_a_session_that_does_not_answer_is_opened_again(behind: tuple[Behind, str]) -> None:
    server, states = Server("front"), list[str]()
    server.mount(Remote(behind[1], version="handshake"), prefix="e", restarts=SOON)
    [backend] = server.mounts.backends.values()
    backend.watch(lambda change: states.append(change.new))
    async with server.connect("handshake") as client:
        assert await client.call("e_add", a=1, b=2) == 3
        await until(lambda: behind[0].pings > 1)  # its own session, and that of the client
        behind[0].deaf = True
        await until(lambda: "error" in states and len(backend.conversations.pool) == 0)
        assert "did not answer a ping" in backend.note or backend.state == "connected"
        behind[0].deaf = False
        await until(lambda: backend.state == "connected")
        assert await client.call("e_add", a=3, b=4) == 7


async def test_a_server_that_is_busy_with_a_call_is_not_given_up(behind: tuple[Behind, str]) -> None:
    server = Server("front")
    server.mount(Remote(behind[1], version="handshake", per="shared"), prefix="e", restarts=SOON)
    [backend] = server.mounts.backends.values()
    async with server.connect("handshake") as client:
        call = asyncio.create_task(client.call("e_wait"))
        await until(lambda: behind[0].waiting == 1)
        behind[0].deaf = True
        before = behind[0].pings
        await until(lambda: behind[0].pings > before + 1)
        behind[0].deaf = False
        behind[0].go.set()
        assert await call == "waited"
        assert backend.restarts == 0


async def test_a_server_that_knows_no_ping_has_answered(behind: tuple[Behind, str]) -> None:
    made, url = behind
    made.knows_ping = False
    server = Server("front")
    server.mount(Remote(url, version="handshake"), prefix="e", restarts=SOON)
    [backend] = server.mounts.backends.values()
    async with server.connect("stateless") as client:
        assert await client.call("e_add", a=1, b=2) == 3
        before = made.pings
        await until(lambda: made.pings > before + 3)
        assert (backend.state, backend.restarts) == ("connected", 0)
