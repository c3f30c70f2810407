"""Many servers behind one kernel: one that hangs harms no other, and each costs little memory."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from defserve import Server
from defserve.errors import DefserveError, PeerGone
from defserve.kernel.control import ask_kernel
from tests.at_address import at_address
from tests.kernel.running import running, url_entry

pytestmark = pytest.mark.anyio

MOST_MEGABYTES = 60 if sys.version_info < (3, 12) else 72  # Python 3.14 itself takes more


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def backend(name: str, waits: asyncio.Event | None = None) -> Server:
    server = Server(name)

    @server.tool
    async def who() -> str:
        if waits is not None:
            await waits.wait()
        return name

    return server


@pytest.mark.slow
async def test_a_hundred_calls_over_ten_servers_of_which_one_hangs(tmp_path: Path) -> None:
    release = asyncio.Event()
    async with AsyncExitStack() as stack:
        names = [f"s{number}" for number in range(10)]
        servers = [backend(name, release if name == "s0" else None) for name in names]
        urls = [await stack.enter_async_context(at_address(server)) for server in servers]
        entries = [url_entry(name, url) for name, url in zip(names, urls, strict=True)]
        async with running(tmp_path, *entries) as here:
            calls = {
                (name, number): asyncio.create_task(here.call(f"{name}_who")) for name in names for number in range(10)
            }
            others = [task for (name, _), task in calls.items() if name != "s0"]
            assert sorted(await asyncio.gather(*others)) == sorted(name for name in names[1:] for _ in range(10))
            hanging = [task for (name, _), task in calls.items() if name == "s0"]
            assert not any(task.done() for task in hanging)
            assert here.kernel.ps()[0]["calls"] == 10
            release.set()
            assert await asyncio.gather(*hanging) == ["s0"] * 10


@pytest.mark.slow
async def test_an_address_where_nobody_listens_costs_the_others_nothing(tmp_path: Path) -> None:
    async with at_address(backend("live")) as url:
        dead = [url_entry(f"dead{number}", "http://127.0.0.1:9/mcp") for number in range(5)]
        async with running(tmp_path, *dead, url_entry("live", url), wait=False) as here:
            await here.connected("live")
            assert await here.call("live_who") == "live"
            states = {here.state(f"dead{number}") for number in range(5)}
            assert states <= {"connecting", "error", "restarting"}
            with pytest.raises(DefserveError):
                await here.call("dead0_who")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_fifty_connected_addresses_take_little_memory(tmp_path: Path) -> None:
    async with at_address(backend("one")) as url:
        config = tmp_path / "mgp.toml"
        config.write_text("\n".join(url_entry(f"s{number}", url) for number in range(50)))
        command = [
            sys.executable,
            "-m",
            "defserve",
            "kernel",
            "--config",
            str(config),
            "--on",
            "http://127.0.0.1:0/mcp",
        ]
        process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 60
            rows: list[dict[str, Any]] = []
            while sum(row["state"] == "connected" for row in rows) < 50:
                assert time.monotonic() < deadline, rows
                await asyncio.sleep(0.1)
                rows = await asyncio.to_thread(_rows, config)
            status = Path(f"/proc/{process.pid}/status").read_text()  # noqa: ASYNC240
            (kilobytes,) = re.findall(r"VmRSS:\s+(\d+) kB", status)
            assert int(kilobytes) / 1000 <= MOST_MEGABYTES
        finally:
            process.terminate()
            await process.wait()


def _rows(config: Path) -> list[dict[str, Any]]:
    try:
        return list(ask_kernel(config, {"verb": "ps"}))
    except PeerGone:
        return []
