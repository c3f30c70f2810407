"""The shop, served in every way a peer may come: as a command, over HTTP, with a token, and through a bad network."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.conformance.suite_install import ROOT
from tests.peers.behind import command, configured
from tests.peers.cutting import cutting
from tests.peers.packages import Package
from tests.waiting import until

SHOP = Path(__file__).with_name("shop.py")
COMMAND = [sys.executable, str(SHOP)]


@asynccontextmanager
async def places(behind: Mapping[str, Package]) -> AsyncGenerator[dict[str, Any]]:
    """What a plan says of where the shop is. The processes end with the block.

    `kernel` is what a plan says instead if the shop is met through a kernel, which has other servers `behind` it.
    """
    token = secrets.token_urlsafe(24)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(_served(COMMAND, {}))
        keyed = await stack.enter_async_context(_served(COMMAND, {"SHOP_TOKEN": token}))
        cut = await stack.enter_async_context(cutting(url))
        sse = url.removesuffix("/mcp") + "/sse"
        shop = {"command": COMMAND, "url": url, "sse": sse, "keyed": keyed, "cut": cut, "token": token}
        yield {**shop, "kernel": await stack.enter_async_context(_kernel(behind)) if behind else {}}


@asynccontextmanager
async def _kernel(behind: Mapping[str, Package]) -> AsyncGenerator[dict[str, Any]]:
    with TemporaryDirectory(prefix="kernel-", ignore_cleanup_errors=True) as folder:
        config, others = configured(dict(behind), Path(folder))
        async with _served(command(config), {}) as url:
            yield {"command": command(config), "url": url, "behind": others}


@asynccontextmanager
async def _served(program: list[str], variables: Mapping[str, str]) -> AsyncGenerator[str]:
    port = free_port()
    address = f"http://127.0.0.1:{port}/mcp"
    command = [*program, "--on", address, "--legacy-sse"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "framework"), **variables}
    server = await asyncio.create_subprocess_exec(*command, env=environment, stdin=asyncio.subprocess.DEVNULL)
    try:
        await until(lambda: _listens(port), 30)
        yield address
    finally:
        if server.returncode is None:
            server.terminate()
        await server.wait()


def free_port() -> int:
    with socket.socket() as trying:
        trying.bind(("127.0.0.1", 0))
        return trying.getsockname()[1]


def _listens(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0
