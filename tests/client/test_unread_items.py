"""What a peer sent and nobody has read yet."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve.base.peer_bounds import MAX_UNREAD_BYTES
from defserve.client.replies import ByteBoundedQueue, UnreadItemQueue
from defserve.client.topic_client import TopicClient
from defserve.errors import PeerGone
from defserve.protocols.mcpx.topic import Presence

pytestmark = pytest.mark.anyio


async def test_what_is_there_is_read_before_the_end_is_told():
    unread: UnreadItemQueue[int] = UnreadItemQueue(3)
    for number in range(5):
        unread.put(number, 1)
    unread.end(PeerGone("gone"))
    unread.put(5, 1)
    unread.end()
    assert [await unread.get() for _ in range(3)] == [2, 3, 4]
    for _ in range(2):
        with pytest.raises(PeerGone):
            await unread.get()


async def test_several_readers_get_one_item_each():
    unread: UnreadItemQueue[int] = UnreadItemQueue(3)
    readers = [asyncio.ensure_future(unread.get()) for _ in range(2)]
    await asyncio.sleep(0)
    unread.put(1, 1)
    unread.put(2, 1)
    assert sorted(await asyncio.gather(*readers)) == [1, 2]


async def test_large_items_make_room_before_there_are_too_many():
    unread: UnreadItemQueue[int] = UnreadItemQueue(1_000)
    for number in range(100):
        unread.put(number, MAX_UNREAD_BYTES // 10)
    assert await unread.get() == 90
    assert not unread.put_if_room(100, MAX_UNREAD_BYTES)


async def test_who_puts_waits_for_room_in_bytes():
    queue: ByteBoundedQueue[bytes | None] = ByteBoundedQueue(100, 1_000)
    async with asyncio.timeout(20):
        await queue.put(b"x" * 600)
        await queue.put(b"x" * 600)
        assert queue.full()
        putting = [asyncio.ensure_future(queue.put(each)) for each in (b"y", None, b"z")]
        await asyncio.sleep(0)
        assert not any(each.done() for each in putting)
        assert [len(await queue.get() or b"") for _ in range(5)] == [600, 600, 1, 0, 1]
        await asyncio.gather(*putting)
    assert queue.bytes == 0


async def test_a_listener_of_a_topic_that_does_not_read_keeps_large_messages_up_to_a_number_of_bytes():
    client, number = TopicClient(), iter(range(100))
    heard = client.heard()

    def hear(frame: bytes) -> Any:
        return Presence(str(next(number)), True, True)

    client.receive_frame = hear
    client.feed_frames([b"x" * 1_000_000] * 40)
    client.on_connection_closed()
    assert [each.participant async for each in heard if isinstance(each, Presence)] == list(map(str, range(24, 40)))
