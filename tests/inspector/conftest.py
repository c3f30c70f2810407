"""An inspection of the greenhouse, and a page that talks to a running inspector over a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from defserve import Server
from defserve.client.link import ClientLink
from defserve.inspector.era_connection import InspectionTarget
from defserve.inspector.inspection import Inspection
from defserve.inspector.page_server import PAGE_HANDLERS, RunningInspector, serve_inspector
from defserve.inspector.protocol import PageRequest
from defserve.serve.lifespans import connect_in_memory
from tests.inspector.greenhouse import server as greenhouse

Json = dict[str, Any]
Inspect = Callable[..., AbstractAsyncContextManager[Inspection]]
Run = Callable[..., Awaitable[Any]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def target_of(server: Server, era: str = "") -> InspectionTarget:
    def link() -> AbstractAsyncContextManager[ClientLink]:
        return connect_in_memory(server.composition)

    return InspectionTarget("greenhouse.py", ("greenhouse.py",), link, era)


@pytest.fixture
def inspect() -> Inspect:
    """`async with inspect(server) as inspection`: without a server, the greenhouse."""

    def inspect(server: Server | None = None, era: str = "") -> AbstractAsyncContextManager[Inspection]:
        return Inspection(target_of(server or greenhouse, era))

    return inspect


@pytest.fixture
def do() -> Run:
    """`await do(inspection, "tools.list", era=…)`; parts go to the list `parts`."""

    async def do(inspection: Inspection, verb: str, parts: list[Any] | None = None, **arguments: Any) -> Any:
        def part(value: Any) -> None:
            if parts is not None:
                parts.append(value)

        return await PAGE_HANDLERS[verb](inspection, PageRequest(arguments, part))

    return do


@pytest.fixture
async def running() -> AsyncIterator[RunningInspector]:
    """An inspector of the greenhouse, on a port of this machine."""
    async with serve_inspector(target_of(greenhouse)) as inspector:
        yield inspector


class Page:
    """The page's end of a socket. `heard` are the pushes, `parts` the parts by the id of their request."""

    def __init__(self, socket: Any) -> None:
        self.socket, self.heard, self.parts = socket, list[Json](), dict[int, list[Any]]()
        self._answers: dict[int, asyncio.Future[Json]] = {}
        self._last = 0
        self._reading = asyncio.create_task(self._read())

    async def begin(self, verb: str, **arguments: Any) -> int:
        self._last += 1
        self._answers[self._last] = asyncio.get_running_loop().create_future()
        await self.socket.send(json.dumps({"id": self._last, "do": verb, "with": arguments}))
        return self._last

    async def answer(self, id: int) -> Json:
        return await self._answers[id]

    async def ask(self, verb: str, **arguments: Any) -> Json:
        return await self.answer(await self.begin(verb, **arguments))

    async def _read(self) -> None:
        async for frame in self.socket:
            for message in json.loads(frame):
                if "on" in message:
                    self.heard.append(message)
                elif "part" in message:
                    self.parts.setdefault(message["id"], []).append(message["part"])
                else:
                    self._answers[message["id"]].set_result(message)

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


@asynccontextmanager
async def opened(inspector: RunningInspector) -> AsyncIterator[Page]:
    from websockets.asyncio.client import connect

    origin = f"http://127.0.0.1:{inspector.access.port}"
    protocols: Any = ["defserve-inspector", f"token.{inspector.access.token}"]
    async with connect(f"ws{origin[4:]}/socket", origin=origin, subprotocols=protocols, proxy=None) as socket:  # pyright: ignore
        page = Page(socket)
        try:
            yield page
        finally:
            await page.close()


@pytest.fixture
def open_page() -> Callable[[RunningInspector], AbstractAsyncContextManager[Page]]:
    """`async with open_page(running) as page: await page.ask("hello")`."""
    return opened
