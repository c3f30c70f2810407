from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from defserve.host import Client, connect_url
from tests.examples.cookbook.pages import PROGRAMS
from tests.examples.nginx import needs_nginx, nginx
from tests.waiting import until

pytestmark = [pytest.mark.anyio, needs_nginx]

HERE = PROGRAMS / "nginx"
NAME = "server_name tools.example.com;"


@asynccontextmanager
async def serving(folder: Path) -> AsyncGenerator[Path]:
    """The program on a socket file, as a proxy on the same machine reaches it."""
    at, log = folder / "s", folder / "log"
    command = [sys.executable, HERE / "server.py", "--on", f"unix:{at}", "--trusted-proxy", "--metrics"]
    with log.open("w") as said:
        process = await asyncio.create_subprocess_exec(*command, stderr=said)
    try:
        await until(lambda: "serving on" in log.read_text() or process.returncode is not None)
        yield at
    finally:
        if process.returncode is None:
            process.terminate()
        assert await process.wait() == 0, log.read_text()


async def test_calls_and_their_progress_come_through_nginx_and_metrics_do_not(tmp_path: Path):
    async with serving(tmp_path) as at:
        upstream = {"server 127.0.0.1:8000;": f"server unix:{at};", NAME: "server_name _;"}
        with nginx(tmp_path, HERE / "nginx.conf", upstream) as site:
            told = list[float]()
            for version in ("2025-11-25", "2026-07-28"):
                async with Client(await connect_url(f"{site}/mcp"), version=version) as client:
                    result = await client.call_raw(
                        "bake", {"cakes": 3}, on_progress=lambda done, total, message: told.append(done)
                    )
                    assert result["content"][0]["text"] == "3 cakes are ready"
            assert told[-1] == 3
            async with httpx2.AsyncClient(base_url=site) as web:
                assert (await web.get("/readyz")).status_code == 200
                assert (await web.get("/metrics")).status_code == 403
