"""Every way to one server, for comparing what they answer: each gives a client of an era."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from defserve.client import Client
from defserve.client.targets import RemoteServer, load_server
from defserve.kernel.config.loading import load_kernel_config
from defserve.kernel.kernel import Kernel
from defserve.serve.address import Address
from defserve.serve.network import serve_sockets
from defserve.serve.sockets import bind_sockets
from defserve.testing.transports import connect_test_client
from tests.at_address import at_address
from tests.attack.speaking.sockets import Place
from tests.chaos.carrying.proxy import proxied
from tests.raw import ERAS
from tests.waiting import until

ROOT = Path(__file__).parents[2]

Connect = Callable[[str, str], AbstractAsyncContextManager[Client]]


def _over(road: str) -> Connect:
    return lambda target, era: connect_test_client(road, target, {"version": era})


@asynccontextmanager
async def _over_unix(target: str, era: str) -> AsyncGenerator[Client]:
    """A unix socket; our client reaches it through a proxy that changes nothing."""
    server = load_server(target)
    app = server.asgi()
    with (
        TemporaryDirectory(prefix="road") as folder,
        bind_sockets(Address("unix", path := f"{folder}/socket")) as bound,
    ):
        try:
            async with (
                serve_sockets(app, server.limits, bound),
                proxied(Place(path), Random(0)) as way,
                RemoteServer(f"http://127.0.0.1:{way.port}/").connect(era) as client,
            ):
                yield client
        finally:
            await app.provider.stop()


@asynccontextmanager
async def _through_kernel(entry: str, target: str, era: str) -> AsyncGenerator[Client]:
    """A kernel in this process, with the server behind it under its own names."""
    with TemporaryDirectory(prefix="road") as folder:
        file = Path(folder) / "mgp.toml"
        file.write_text(f'[[servers]]\nid = "behind"\n{entry}')
        kernel = Kernel(load_kernel_config(file))
        async with kernel.server.connect(era) as client:
            await until(lambda: kernel.members["behind"].state == "connected")
            yield client


@asynccontextmanager
async def _kernel_over_http(target: str, era: str) -> AsyncGenerator[Client]:
    async with at_address(load_server(target)) as url, _through_kernel(f'url = "{url}"\n', target, era) as client:
        yield client


def _kernel_over_pipes(target: str, era: str) -> AbstractAsyncContextManager[Client]:
    entry = (
        f'command = "{sys.executable}"\nargs = ["-m", "defserve", "run", "{target}"]\n'
        f'[servers.env]\nPYTHONPATH = "{ROOT / "framework"}:{ROOT}"\n'
    )
    return _through_kernel(entry, target, era)


ROADS: dict[str, Connect] = {
    "memory": _over("memory"),
    "http": _over("http"),
    "ws": _over("ws"),
    "unix": _over_unix,
    "kernel": _kernel_over_http,
}
LONG_ROADS: dict[str, Connect] = {**ROADS, "stdio": _over("stdio"), "kernel-stdio": _kernel_over_pipes}
"""With those that need processes of their own."""


@asynccontextmanager
async def connected(roads: dict[str, Connect], target: str) -> AsyncGenerator[dict[tuple[str, str], Client]]:
    async with AsyncExitStack() as stack:
        yield {
            (road, era): await stack.enter_async_context(connect(target, era))
            for road, connect in roads.items()
            for era in ERAS
        }
