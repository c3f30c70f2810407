from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve import Limits
from tests.protocols.mcp.tasks.peers import ASKABLE, TAKES, YES, asks, ended, get, shop
from tests.raw import raw, text_of
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


async def heard(peer: Any, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            found += await peer.news()
            await asyncio.sleep(0.005)
    return found


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_listener_hears_of_every_state_as_it_would_be_told(address: str, where: str):
    (one, _), (other, _) = shop(address), shop(address)
    async with raw(one, capabilities=ASKABLE) as peer, raw(other, capabilities=ASKABLE) as elsewhere:
        id = (await peer.call("sure"))["taskId"]
        await asks(peer, id, "a", "b")
        listener = peer if where == "here" else elsewhere
        listening = await listener.begin("subscriptions/listen", {"notifications": {"taskIds": [id, "A" * 32, id]}})
        acknowledged, first = await heard(listener, 2)
        assert acknowledged["params"]["notifications"] == {"taskIds": [id]}
        assert first["method"] == "notifications/tasks"
        tag = {"io.modelcontextprotocol/subscriptionId": listening}
        assert first["params"]["_meta"] == tag
        told = await get(peer, id)
        assert {**first["params"], "_meta": 0, "resultType": 0} == {**told, "_meta": 0, "resultType": 0}
        await peer.ask("tasks/update", {"taskId": id, "inputResponses": {"a": YES}})
        (second,) = await heard(listener, 1)
        assert set(second["params"]["inputRequests"]) == {"b"}
        await peer.ask("tasks/update", {"taskId": id, "inputResponses": {"b": YES}})
        last = second
        while last["params"]["status"] != "completed":
            last = (await heard(listener, 1))[-1]
        assert text_of(last["params"]["result"]) == "True True"


@for_each_row("ids", [None, 7, "x", [7], {}])
async def test_ids_to_listen_to_must_be_a_list_of_texts(ids: Any):
    async with raw(shop()[0], capabilities=TAKES) as peer:
        reply = await peer.ask("subscriptions/listen", {"notifications": {"taskIds": ids}})
        assert reply["error"]["code"] == -32602


async def test_who_did_not_declare_tasks_cannot_listen_to_them():
    async with raw(shop()[0]) as peer:
        reply = await peer.ask("subscriptions/listen", {"notifications": {"taskIds": []}})
        assert reply["error"]["code"] == -32021


async def test_so_many_tasks_can_be_listened_to():
    server, _ = shop(limits=Limits(subscriptions=3))
    async with raw(server, capabilities=TAKES) as peer:
        reply = await peer.ask("subscriptions/listen", {"notifications": {"taskIds": ["A" * 32] * 4}})
        assert reply["error"]["data"]["limit"] == "subscriptions"


async def test_a_task_that_is_over_is_told_once_and_not_looked_at_again(address: str):
    (one, job), (other, _) = shop(address), shop(address)
    job.go_on.set()
    async with raw(one, capabilities=TAKES) as peer, raw(other, capabilities=TAKES) as elsewhere:
        id = (await peer.call("wait"))["taskId"]
        await ended(elsewhere, id)
        await elsewhere.begin("subscriptions/listen", {"notifications": {"taskIds": [id]}})
        acknowledged, told = await heard(elsewhere, 2)
        assert acknowledged["params"]["notifications"] == {"taskIds": [id]}
        assert told["params"]["status"] == "completed"
        (tasks,) = [extension for extension in other.extensions if extension.name == "tasks"]
        (there,) = tasks._runners.values()  # pyright: ignore
        assert there._listeners == {}  # pyright: ignore
