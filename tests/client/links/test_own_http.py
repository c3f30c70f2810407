"""The host and a server of ours over Streamable HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve.client import Answers, Client, HttpLink, RemoteServer
from defserve.errors import PeerTimeout
from tests.client.links.asgi import serving
from tests.rows import for_each_row
from tests.testing import calculator

pytestmark = pytest.mark.anyio

VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
ERAS = ["2025-11-25", "2026-07-28"]


@for_each_row("version", [None, *VERSIONS])
async def test_its_tools_resources_and_prompts_are_reached(version: str | None):
    async with serving(calculator.server.asgi(), "/") as url, RemoteServer(url).connect(version, timeout=10) as client:
        assert client.version == (version or "2026-07-28")
        assert (await client.call_raw("add", {"a": 1}))["content"] == [{"type": "text", "text": "3"}]
        assert await client.read_text("note://today") == "buy milk"
        assert (await client.prompt("hi", name="Ann"))["messages"][0]["content"]["text"] == "hi Ann"
        await client.ping()


@for_each_row("version", ERAS)
async def test_progress_logs_and_questions_come_before_the_result(version: str):
    heard: list[Any] = []
    options: dict[str, Any] = {
        "answers": Answers(ask=lambda message, schema: {"name": "Ann"}),
        "on_log": lambda params: heard.append(params["data"]),
        "on_progress": lambda done, total, message: heard.append(done),
    }
    async with (
        serving(calculator.server.asgi(), "/") as url,
        RemoteServer(url).connect(version, timeout=10, **options) as client,
    ):
        assert await client.call("work") == "done"
        assert heard[-2:] == [2, "working"]
        assert await client.call("greet") == "hello Ann"


@pytest.mark.parametrize("version", ERAS)
async def test_calling_off_a_call_cancels_the_function(version: str, monkeypatch: pytest.MonkeyPatch):
    cancelled = asyncio.Event()
    monkeypatch.setattr(calculator, "cancelled", cancelled)
    async with serving(calculator.server.asgi(), "/") as url, RemoteServer(url).connect(version, timeout=10) as client:
        with pytest.raises(PeerTimeout):
            await client.call_raw("wait", timeout=0.05)
        async with asyncio.timeout(20):
            await cancelled.wait()
        assert await client.call("add", a=1) == 3


@for_each_row("version", ERAS)
async def test_news_of_a_resource_reach_who_listens(version: str):
    async with serving(calculator.server.asgi(), "/") as url, RemoteServer(url).connect(version, timeout=10) as client:
        async with client.listen(uris=["note://today"]) as events, asyncio.timeout(20):
            await client.call("touch")
            assert (await anext(events)).params["uri"] == "note://today"


@pytest.mark.parametrize("version", ERAS)
async def test_many_calls_at_once_find_their_results(version: str):
    async with serving(calculator.server.asgi(), "/") as url, RemoteServer(url).connect(version, timeout=10) as client:
        sums = await asyncio.gather(*(client.call("add", a=number, b=number) for number in range(50)))
    assert sums == [2 * number for number in range(50)]


async def test_two_sessions_are_two():
    async with serving(calculator.server.asgi(), "/") as url:
        links = HttpLink(url), HttpLink(url)
        async with Client(links[0], version=ERAS[0]) as one, Client(links[1], version=ERAS[0]) as other:
            assert len({link.session_id for link in links} | {None}) == 3
            assert await one.call("add", a=1) == await other.call("add", a=1) == 3
