from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.protocols.mgp.callers import offer

if TYPE_CHECKING:
    from defserve.client import Client

    from .conftest import ConnectTo

pytestmark = pytest.mark.anyio

Json = dict[str, Any]


class Listener:
    """What a client that speaks MGP hears while it calls."""

    def __init__(self) -> None:
        self.chunks, self.progress = list[Json](), list[Json]()
        self.heard = asyncio.Event()

    def __call__(self, method: str, params: Json) -> None:
        kinds = {"notifications/mgp.stream.chunk": self.chunks, "notifications/mgp.stream.progress": self.progress}
        kinds.get(method, []).append(params)
        self.heard.set()

    async def until_chunk(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.chunks) < count:
                self.heard.clear()
                await self.heard.wait()

    @property
    def text(self) -> str:
        return "".join(chunk["content"]["text"] for chunk in self.chunks)


async def call(client: Client, tool: str, **arguments: Any) -> Json:
    return await client.request("tools/call", {"name": tool, "arguments": arguments, "_mgp": {"stream": True}})


@pytest.mark.req("MGP-12.3", "MGP-12.4", "MGP-12.5")
async def test_each_piece_arrives_before_the_whole(connect_to: ConnectTo, version: str):
    listener = Listener()
    options: Json = {"capabilities": offer(version, "streaming"), "on_notification": listener}
    async with connect_to("streaming", **options) as client:
        result = await call(client, "recite")
        assert (
            result["content"][0]["text"] == listener.text == "Tyger Tyger, burning bright, In the forests of the night"
        )
        assert [chunk["index"] for chunk in listener.chunks] == [0, 1, 2, 3]
        assert result["_mgp"]["chunks_sent"] == 4

        listener.chunks.clear()
        result = await call(client, "squares", upto=1_000)
        assert result["content"][0]["text"] == listener.text
        assert listener.text.endswith(f"{999 * 999}\n")

        listener.chunks.clear()
        result = await call(client, "bake")
        assert listener.text == "Mixing. Baking. "
        assert [block["text"] for block in result["content"]] == ["Mixing. Baking. ", "Here is your cake."]
        assert [note["progress"] for note in listener.progress] == [0.5, 1.0]


@pytest.mark.req("MGP-12.7")
async def test_counting_is_cancelled_half_way(connect_to: ConnectTo, version: str, transport: str):
    listener = Listener()
    options: Json = {"capabilities": offer(version, "streaming"), "on_notification": listener}
    async with connect_to("streaming", **options) as client:
        counting = asyncio.ensure_future(call(client, "count"))
        await listener.until_chunk(10)
        about = {"request_id": listener.chunks[0]["request_id"], "reason": "user_cancelled"}
        given = await client.request("mgp/stream/cancel", about)
        if transport == "http" and client.stateless:
            # Nobody can tell that this is the same caller, and anybody could guess the id: it cancels by leaving.
            assert given["cancelled"] is False
            counting.cancel()
        else:
            assert given["cancelled"] is True
            assert given["partial_result"]["content"][0]["text"].startswith("1 2 3 4 5 6 7 8 9 10 ")
            result = await counting
            assert result["content"] == given["partial_result"]["content"]
            assert (result["isError"], result["_mgp"]["cancelled"]) == (True, True)
        assert await client.call("recite")


async def test_a_plain_client_notices_nothing(connect_to: ConnectTo):
    heard: list[str] = []
    async with connect_to("streaming", on_notification=lambda method, params: heard.append(method)) as client:
        result = await call(client, "recite")
        assert "_mgp" not in result
        assert await client.call("recite") == result["content"][0]["text"]
        assert heard == []
