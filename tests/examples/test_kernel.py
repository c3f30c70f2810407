"""`examples/kernel`: two servers as one, each in a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from defserve.kernel import Kernel
from defserve.kernel.config.loading import load_kernel_config
from tests.waiting import until

FILE = Path(__file__).parents[2] / "examples" / "kernel" / "mgp.toml"

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("forked")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_two_servers_are_one_and_the_third_waits() -> None:
    kernel = Kernel(load_kernel_config(FILE), {**os.environ, "PYTHON": sys.executable})
    async with kernel.server.connect() as client:
        await until(lambda: [row["state"] for row in kernel.ps()] == ["connected", "connected", "registered"])
        names = {tool["name"] for tool in await client.tools()}
        assert {"sums_add", "sums_divide"} <= names
        assert "samples_picture" in names
        assert "samples_sound" not in names
        assert await client.call("sums_add", a=1, b=2) in (3, "3")
