"""What a worker writes is taken in its order, whatever Redis has forgotten or refuses meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from defserve.stores.identity import ServerIdentity
from defserve.stores.shared import lua_scripts
from defserve.stores.shared.worker_link import SharedStoreLink
from tests.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def link(redis: Any) -> Any:
    address = f"redis+unix://{redis.connection_pool.connection_kwargs['path']}?prefix=w:"
    link = SharedStoreLink(address, ServerIdentity("name", "notes"))
    await link.start()
    yield link
    await link.stop()


async def test_a_redis_that_forgot_some_scripts_takes_what_was_written_in_its_order(redis: Any, link: SharedStoreLink):
    received: list[bytes] = []
    link.add_receiver("x", lambda fields, id: received.append(fields["d"]))
    for turn in range(2):
        link.publish_update("t", "x", "d", f"news {turn}")
        link.queue_script_once(lua_scripts.SEND_MAIL, link.worker, "t", "x", "d", f"mail {turn}")
        await until(lambda turn=turn: len(received) == 2 * turn + 2)
        # As if it was started again, and another worker was there first.
        redis.script_flush()
        redis.script_load(lua_scripts.SEND_MAIL)
        await link._writes._redis.connection_pool.disconnect()


async def test_scripts_that_somebody_has_flushed_are_loaded_again(redis: Any, link: SharedStoreLink):
    for _ in range(2):
        link.publish_update("t", "x", "d", "news")
        assert await link.wait_until_written(20)
        redis.script_flush()


async def test_a_script_that_is_refused_for_good_stops_no_other(
    redis: Any, link: SharedStoreLink, caplog: pytest.LogCaptureFixture
):
    replies: list[Any] = []
    for script in ("return 1", "return redis.call('NONSENSE')", "return 2"):
        link.queue_script(script, done=replies.append)
    await until(lambda: len(replies) == 3)
    assert replies == [1, None, 2]
    assert "refuses a script" in caplog.text
