"""Real processes over HTTP that share a file: told to stop, killed, and others that go on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from defserve.client import Client, StartedCall, connect_url
from defserve.errors import PeerError

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform == "win32", reason="signals as Unix has them"),
]

ROOT = Path(__file__).parents[4]
PROGRAM = Path(__file__).with_name("job_server.py")


def started(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """A process on the store in a folder, and its address."""
    store = {"JOBS_STORE": f"sqlite:///{folder / 'tasks.db'}", "PYTHONPATH": str(ROOT / "framework")}
    command = [sys.executable, str(PROGRAM), "--on", "http://127.0.0.1:0/mcp"]
    served = subprocess.Popen(command, env={**os.environ, **store}, stderr=subprocess.PIPE)
    assert served.stderr is not None
    return served, served.stderr.readline().split()[-1].decode()


@asynccontextmanager
async def process(folder: Path) -> AsyncGenerator[tuple[subprocess.Popen[bytes], Client]]:
    """A process, and a client of it."""
    served, url = await asyncio.to_thread(started, folder)
    try:
        async with Client(await connect_url(url), version="2026-07-28") as client:
            yield served, client
    finally:
        served.kill()
        served.communicate()


async def told_by(client: Client, task: StartedCall) -> tuple[str, str]:
    """The status and message of a task, as another process tells them."""
    task._client = client  # pyright: ignore
    return await task.refresh(), task.message


@pytest.mark.slow
@pytest.mark.req("MCP-8")
async def test_a_process_that_is_told_to_stop_finishes_what_it_can_and_hands_over_the_rest(tmp_path: Path):
    async with process(tmp_path) as (served, client):
        short, long = await client.start("wait", seconds=0.5), await client.start("wait", seconds=600)
        again = await client.start("again", seconds=600)
        served.send_signal(signal.SIGTERM)
        assert await short.refresh() in ("working", "completed")
        assert await asyncio.to_thread(served.wait, 60) == 0
    async with process(tmp_path) as (_, client):
        assert await told_by(client, short) == ("completed", "")
        assert await told_by(client, long) == ("failed", "the server was shut down before the task ended")
        await told_by(client, again)
        assert await again.result() == "done"


@pytest.mark.slow
@pytest.mark.req("MCP-8")
async def test_a_process_that_is_killed_is_noticed_by_another(tmp_path: Path):
    async with process(tmp_path) as (served, client), process(tmp_path) as (_, other):
        task, again = await client.start("wait", seconds=600), await client.start("again", seconds=600)
        assert (await told_by(other, task))[0] == "working"
        served.kill()
        with pytest.raises(PeerError, match="the process that ran the task has died"):
            await task.result()
        await told_by(other, again)
        assert await again.result() == "done"
