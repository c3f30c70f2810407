"""The server's news: how often it is told, and from where."""

from __future__ import annotations

import asyncio
import threading

import pytest

from defserve import Server
from tests.raw import ERAS, Raw, raw
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


def extra() -> str:
    return "more"


async def hear(peer: Raw) -> None:
    """Wish to be told of everything."""
    if peer.version == ERAS[0]:
        await peer.ask("resources/subscribe", {"uri": "text://extra"})
        return
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["text://extra"]}
    await peer.begin("subscriptions/listen", {"notifications": wanted})
    await peer.news()


def serving_extra() -> Server:
    server = Server("s", "1")
    server.add_resource(extra, "text://extra")
    return server


@pytest.mark.req("MCP-5.1l")
@for_each_row("version", ERAS)
async def test_many_changes_at_once_are_told_once(version: str):
    server = serving_extra()
    async with raw(server, version) as peer:
        await hear(peer)
        for number in range(20):
            server.add_tool(extra, name=f"extra_{number}")
        assert [news["method"] for news in await peer.news()] == ["notifications/tools/list_changed"]
        server.remove_tool("extra_1")
        assert [news["method"] for news in await peer.news()] == ["notifications/tools/list_changed"]


@pytest.mark.req("MCP-5.2s", "MCP-5.1l")
@for_each_row("version", ERAS)
async def test_changes_made_in_another_thread_are_told_too(version: str):
    server = serving_extra()
    async with raw(server, version) as peer:
        await hear(peer)
        await asyncio.to_thread(server.add_tool, extra)
        await asyncio.to_thread(server.resource_updated, "text://extra")
        assert sorted(news["method"] for news in await peer.news()) == [
            "notifications/resources/updated",
            "notifications/tools/list_changed",
        ]


class SlowSet(set[str]):
    """A set whose `add` lets the loop go first, if it can."""

    def __init__(self, kinds: set[str], reached: threading.Event, told: threading.Event) -> None:
        super().__init__(kinds)
        self.reached, self.told = reached, told

    def add(self, kind: str) -> None:
        self.reached.set()
        self.told.wait(0.1)
        super().add(kind)


@pytest.mark.req("MCP-5.1l")
async def test_a_change_made_in_a_thread_while_others_are_told_is_not_lost():
    server, reached, told = serving_extra(), threading.Event(), threading.Event()
    async with raw(server, ERAS[0]) as peer:
        server.add_tool(extra)
        subscriptions = server.mcp.subscriptions
        ((engine, kinds),) = subscriptions._changed.items()
        subscriptions._changed[engine] = SlowSet(kinds, reached, told)
        thread = threading.Thread(target=subscriptions.notify_list_changed, args=("prompts",))
        thread.start()
        assert reached.wait(10)
        heard = await peer.news()
        told.set()
        await asyncio.to_thread(thread.join)
        heard += await peer.news()
        assert sorted(news["method"] for news in heard) == [
            "notifications/prompts/list_changed",
            "notifications/tools/list_changed",
        ]


@for_each_row("version", ERAS)
async def test_a_change_before_anyone_listens_is_nobodys_news(version: str):
    server = serving_extra()
    server.add_tool(extra)
    server.resource_updated("text://extra")
    async with raw(server, version) as peer:
        await hear(peer)
        assert await peer.news() == []


@for_each_row("version", ERAS)
async def test_a_server_on_two_loops_tells_both(version: str):
    server, heard = serving_extra(), list[str]()
    listening, changed = threading.Event(), threading.Event()

    async def elsewhere() -> None:
        async with raw(server, version) as peer:
            await hear(peer)
            listening.set()
            await asyncio.to_thread(changed.wait)
            heard.extend(news["method"] for news in await peer.news())

    async with raw(server, version) as peer:
        await hear(peer)
        other = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
        await asyncio.to_thread(listening.wait)
        server.add_tool(extra, name="extra")
        changed.set()
        await other
        heard.extend(news["method"] for news in await peer.news())
    assert heard == ["notifications/tools/list_changed"] * 2
