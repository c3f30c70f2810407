from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from defserve.client import Client, connect_url
from tests.examples.cookbook.pages import PROGRAMS
from tests.examples.nginx import needs_nginx, nginx
from tests.waiting import until

pytestmark = [pytest.mark.anyio, needs_nginx]

HERE = PROGRAMS / "nginx"
NAME = "tools.example.com"


@asynccontextmanager
async def serving(folder: Path) -> AsyncGenerator[Path]:
    """The program on a socket file, as a proxy on the same machine reaches it."""
    at, log = folder / "s", folder / "log"
    command = [
        sys.executable,
        HERE / "server.py",
        "--on",
        f"unix:{at}",
        "--trusted-proxy",
        "--allow-host",
        NAME,
        "--metrics",
    ]
    with log.open("w") as said:
        process = await asyncio.create_subprocess_exec(*command, stderr=said)
    try:
        await until(lambda: "serving on" in log.read_text() or process.returncode is not None)
        yield at
    finally:
        # Not asked to end: it would wait for a call whose client did not get to cancel it.
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.slow
async def test_calls_and_their_progress_come_through_nginx_and_metrics_do_not(tmp_path: Path):
    async with serving(tmp_path) as at:
        with nginx(tmp_path, HERE / "nginx.conf", {"server 127.0.0.1:8000;": f"server unix:{at};"}) as site:
            for version in ("2025-11-25", "2026-07-28"):
                async with Client(await connect_url(f"{site}/mcp", headers={"host": NAME}), version=version) as client:
                    assert await client.call("bake", cakes=3) == "3 cakes are ready"
                    await hear_while_it_bakes(client)
            async with httpx2.AsyncClient(base_url=site) as web:
                for path, host, status in (
                    ("/readyz", NAME, 200),
                    *(
                        (spelled, NAME, 403)
                        for spelled in (
                            "/metrics",
                            "/metrics/",
                            "/%6detrics",
                            "/x/../metrics",
                            "/metrics/x",
                        )
                    ),
                    ("/mcp", "evil.example", 421),
                ):
                    assert (await web.get(path, headers={"host": host})).status_code == status, path


async def hear_while_it_bakes(client: Client) -> None:
    """Progress arrives before the call ends, which it does not by itself."""
    told = list[float]()
    baking = asyncio.create_task(
        client.call_raw("bake", {"cakes": 10**9}, on_progress=lambda done, total, message: told.append(done))
    )
    await until(lambda: len(told) > 1)
    assert not baking.done()
    baking.cancel()
    with suppress(asyncio.CancelledError):
        await baking
