"""`examples/kernel`: the patterns that MGP §10.1 leaves to servers: coordination, context management, federation."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path

import pytest

from defserve import ToolError
from defserve.client import Client
from defserve.kernel import Kernel
from defserve.kernel.config.loading import load_kernel_config
from tests.at_address import at_address
from tests.protocols.mgp.callers import speaking
from tests.raw import HANDSHAKE
from tests.waiting import until

FOLDER = Path(__file__).parents[2] / "examples" / "kernel"
TEXT = "Bees dance. The dance tells where flowers are. " + "Nobody reads the rest of this. " * 40

pytestmark = [pytest.mark.usefixtures("forked"), pytest.mark.anyio, pytest.mark.req("MGP-10.1")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def kernel_of(name: str) -> AsyncGenerator[tuple[Kernel, Client]]:
    kernel = Kernel(load_kernel_config(FOLDER / name), {**os.environ, "PYTHON": sys.executable})
    async with kernel.server.connect() as client:
        await until(lambda: all(member.state == "connected" for member in kernel.members.values()))
        yield kernel, client


async def test_context_is_shortened_and_kept_and_a_coordinator_finds_the_tool_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with kernel_of("context.toml") as (kernel, client), at_address(kernel.server) as url:
        short = await client.call("shorten", text=TEXT, words=10)
        assert short == "Bees dance. The dance tells where flowers are."
        await client.call("remember", topic="bees", text=short)
        assert await client.call("recall", topic="bees") == short
        assert kernel.server.search is not None
        assert kernel.server.search.section.catalogue.tokens <= kernel.config.settings.budget.max_tokens
        monkeypatch.setenv("KERNEL_URL", url)
        coordinator = import_module("examples.kernel.coordinator").server
        async with coordinator.connect() as client:
            done = await client.call("delegate", task="shorten a text", arguments={"text": TEXT, "words": 2})
            assert (done["server"], done["tool"]) == ("context.summariser", "shorten")
            assert done["result"] == "Bees dance."
            # It may do no more than the kernel lets it: a stranger has no permission to write.
            with pytest.raises(ToolError, match=r"memory\.write"):
                note = {"topic": "bees", "text": "dance"}
                await client.call("delegate", task="remember: keep a text under a topic", arguments=note)


async def test_a_kernel_behind_a_kernel_serves_its_tools() -> None:
    async with kernel_of("federation.toml") as (kernel, client):
        await until(lambda: "east_shorten" in kernel.server.mcp.tools.registry)
        assert await client.call("east_shorten", text=TEXT, words=2) == "Bees dance."
        async with speaking(kernel.server, HANDSHAKE[-1], ["discovery", "lifecycle"]) as peer:
            (east,) = (await peer.ask("mgp/discovery/list"))["result"]["servers"]
            assert {"east_shorten", "east_remember", "east_recall"} <= set(east["tools"])
            assert (await peer.ask("mgp/health/ping", {"server_id": "east"}))["result"]["status"] == "healthy"
