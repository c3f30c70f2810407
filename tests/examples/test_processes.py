"""An example in a process of its own, as `python examples/hello.py --on ADDRESS` starts it, over each network road."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from defserve.client import RemoteServer

pytestmark = pytest.mark.anyio

HELLO = Path(__file__).parents[2] / "examples" / "hello.py"


@asynccontextmanager
async def started(on: str) -> AsyncGenerator[tuple[asyncio.subprocess.Process, str]]:
    """A process that serves, and the address it says it serves on."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HELLO), "--on", on, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(20):
            said = (await process.stderr.readline()).decode()
        yield process, said.removeprefix("serving on ").strip()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_a_process_says_where_it_is_serves_both_eras_and_ends_when_told(scheme: str):
    async with started(f"{scheme}://127.0.0.1:0/mcp") as (process, address):
        assert address.startswith(f"{scheme}://127.0.0.1:") and address.endswith("/mcp")
        for version in ("2025-11-25", "2026-07-28"):
            async with RemoteServer(address).connect(version, timeout=10) as client:
                assert (client.version, await client.call("add", a=2, b=3)) == (version, 5)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await process.wait() == 0
