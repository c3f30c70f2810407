"""A backend that says all the time that its lists have changed."""

from __future__ import annotations

import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from defserve import Command, Server
from tests.waiting import until

COST = 0.1


@pytest.mark.slow
@pytest.mark.anyio
async def test_reading_lists_again_and_again_leaves_most_of_the_time_to_others() -> None:
    server = Server("desk")
    server.mount(Command("never-started"), prefix="e")
    catalogue, asked = server.mounts.backends["e"].catalogue, list[tuple[float, float]]()

    class Conversation:
        """Where each list costs as much as a long one, and has changed when it was read."""

        terms, front = SimpleNamespace(capabilities={"tools": {}}), None

        async def request(self, method: str, params: Any, within: float) -> dict[str, Any]:
            began = time.monotonic()
            done = time.thread_time() + COST
            while time.thread_time() < done:
                pass
            catalogue.schedule_list_refresh(channel, ("tools",))
            asked.append((began, time.monotonic()))
            return {"tools": [{"name": f"t{len(asked)}", "inputSchema": {"type": "object"}}]}

    channel: Any = Conversation()
    catalogue.schedule_list_refresh(channel, ("tools",))
    await until(lambda: len(asked) == 3)
    catalogue.stop_refreshing()
    rests = [began - ended for (_, ended), (began, _) in pairwise(asked)]
    assert min(rests) >= 9 * COST
