"""The cluster of `examples/cluster`, without Docker: its Redis, its workers and its nginx as processes.

The command, the settings and the proxy's configuration are read from the files that Docker would read.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from defserve.client import Client, connect_url
from tests.examples.nginx import needs_nginx, nginx
from tests.stores.redis_server import RedisServer
from tests.waiting import until

pytestmark = [pytest.mark.anyio, needs_nginx]

CLUSTER = Path(__file__).parents[2] / "examples" / "cluster"
SERVICES: dict[str, Any] = yaml.safe_load((CLUSTER / "compose.yaml").read_text())["services"]


@contextmanager
def redis() -> Generator[RedisServer]:
    server = RedisServer(*shlex.split(SERVICES["redis"]["command"])[1:]).start()
    try:
        yield server
    finally:
        server.remove()


@asynccontextmanager
async def workers(folder: Path, store: str) -> AsyncGenerator[tuple[asyncio.subprocess.Process, Path]]:
    """The service `shelf`, on a socket file instead of the network of Docker."""
    service, at = SERVICES["shelf"], folder / "shelf.sock"
    command = [word if "://" not in word else f"unix:{at}" for word in shlex.split(service["command"])]
    settings = {**service["environment"], "SHELF_STORE": store, "DEFSERVE_SECRET": "s" * 43}
    with (folder / "log").open("w") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "defserve", *command), cwd=CLUSTER, env={**os.environ, **settings}, stderr=log
        )
    try:
        await until(lambda: "serving on" in (folder / "log").read_text() or process.returncode is not None)
        yield process, at
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def proxy(folder: Path, upstream: Path) -> AbstractContextManager[str]:
    """The service `proxy`."""
    return nginx(folder, CLUSTER / "nginx.conf", {"server shelf:8000;": f"server unix:{upstream};"})


@pytest.mark.slow
async def test_three_workers_behind_nginx_share_what_is_in_redis(tmp_path: Path):
    with redis() as store:
        async with workers(tmp_path, store.address) as (process, at):
            with proxy(tmp_path, at) as site:
                await carry_out(process, f"{site}/mcp")
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0, (tmp_path / "log").read_text()


async def carry_out(process: asyncio.subprocess.Process, url: str) -> None:
    async with (
        Client(await connect_url(url), version="2026-07-28") as client,
        Client(await connect_url(url), version="2025-11-25") as in_session,
    ):
        assert (await client.call("books"))["Momo"] == (await in_session.call("books"))["Momo"] == 304
        # A task that one worker runs is told of by whichever is asked.
        task = await client.start("read_aloud", title="Momo")
        before = {await client.call("worker") for _ in range(5)}
        process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(60):
            while await client.call("worker") in before:  # not one of these calls fails
                pass
        assert await in_session.call("worker") != 0  # the session outlives the worker that opened it
        assert "done" in str(await task.result())
    assert await fetched(url, "/readyz/group") == (200, "3 of 3 workers ready")
    for spelled in ("/metrics", "/metrics/", "/%6detrics/"):
        assert (await fetched(url, spelled))[0] == 403


async def fetched(url: str, path: str) -> tuple[int, str]:
    from urllib.error import HTTPError
    from urllib.request import urlopen

    def fetch() -> tuple[int, str]:
        try:
            with urlopen(url.replace("/mcp", path), timeout=30) as response:
                return response.status, response.read().decode()
        except HTTPError as error:
            with error:
                return error.code, ""

    return await asyncio.to_thread(fetch)
