"""The host and a server of ours, in memory and over stdio."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from defserve.client import Answers, Client
from tests.forking.spawning import spawn
from tests.rows import for_each_row
from tests.testing import calculator

pytestmark = pytest.mark.anyio

SCRIPT = Path(calculator.__file__)


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_cancelling_a_call_cancels_the_function(version: str, monkeypatch: pytest.MonkeyPatch):
    cancelled = asyncio.Event()
    monkeypatch.setattr(calculator, "cancelled", cancelled)
    async with calculator.server.connect(version) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.call("wait")
        async with asyncio.timeout(20):
            await cancelled.wait()
        assert await client.call("add", a=1) == 3


@for_each_row("version", ["2025-11-25", "2026-07-28"])
async def test_many_calls_at_once_find_their_results(version: str):
    async with calculator.server.connect(version) as client:
        sums = await asyncio.gather(*(client.call("add", a=number, b=number) for number in range(50)))
    assert sums == [2 * number for number in range(50)]


@pytest.mark.parametrize("version", [None, "2024-11-05", "2025-11-25", "2026-07-28"])
async def test_a_script_is_served_over_stdio(version: str | None):
    link = await spawn(SCRIPT)
    answers = Answers(ask=lambda message, schema: {"name": "Ann"})
    async with Client(link, version=version, answers=answers, timeout=20) as client:
        assert client.version == (version or "2026-07-28")
        assert (await client.call_raw("add", {"a": 1}))["content"] == [{"type": "text", "text": "3"}]
        if version != "2024-11-05":  # it had no elicitation
            assert await client.call("greet") == "hello Ann"
        assert await client.read_text("note://today") == "buy milk"
    assert link.returncode == 0
