"""The host and a server of the official SDK over Streamable HTTP, in every era and shape of answer."""

from __future__ import annotations

import asyncio
import runpy
from typing import Any

import pytest

from defserve.client import Answers, Client, HttpLink
from defserve.errors import PeerError
from tests.client.links import official_server
from tests.client.links.asgi import serving
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]


def official(**options: Any) -> Any:
    """A fresh server as an ASGI app: one of the SDK's can be served only once."""
    return runpy.run_path(official_server.__file__)["server"].streamable_http_app(**options)


@pytest.mark.slow
@for_each_row("json_response", [False, True])
@for_each_row("version", [None, *VERSIONS])
async def test_its_tools_resources_and_prompts_are_reached(version: str | None, json_response: bool):
    async with (
        serving(official(json_response=json_response)) as url,
        Client(HttpLink(url), version=version, timeout=10) as client,
    ):
        assert client.version == (version or "2026-07-28")
        assert client.server_info["name"] == "official"
        assert {tool["name"] for tool in await client.tools()} == {"add", "work", "greet"}
        assert (await client.call_raw("add", {"a": 1, "b": 2}))["content"] == [{"type": "text", "text": "3"}]
        assert await client.read_text("note://a") == "note a"
        assert (await client.prompt("hi", name="Ann"))["messages"][0]["content"]["text"] == "hi Ann"
        await client.ping()
        with pytest.raises(PeerError):
            await client.request("no/such")
        sums = await asyncio.gather(*(client.call_raw("add", {"a": n, "b": n}) for n in range(20)))
        assert [result["content"][0]["text"] for result in sums] == [str(2 * n) for n in range(20)]


@pytest.mark.filterwarnings("ignore:The logging capability is deprecated")
@for_each_row("version", ["2025-11-25", "2026-07-28"])
async def test_progress_logs_and_questions_travel_on_the_stream_of_the_call(version: str):
    progress: list[float] = []
    logs: list[Any] = []
    answers = Answers(ask=lambda message, schema: {"name": "Ann"})
    async with serving(official()) as url:
        link = HttpLink(url)
        async with Client(
            link,
            version=version,
            timeout=10,
            answers=answers,
            on_log=logs.append,
            on_progress=lambda done, total, message: progress.append(done),
        ) as client:
            assert (await client.call_raw("work"))["content"][0]["text"] == "done"
            assert progress == [0, 1, 2]
            assert [log["data"] for log in logs] == ["hello"]
            assert (await client.call_raw("greet"))["content"][0]["text"] == "hello Ann"
            assert (link.session_id is None) == client.stateless


async def test_a_server_without_sessions_is_spoken_to_as_well():
    async with (
        serving(official(stateless_http=True)) as url,
        Client(HttpLink(url), version="2025-11-25", timeout=10) as client,
    ):
        assert (await client.call_raw("add", {"a": 1, "b": 2}))["content"][0]["text"] == "3"
