"""Progress of a backend gives a call its time again."""

from __future__ import annotations

import pytest

from defserve import Server, ToolError
from tests.proxying.talkers import talker

pytestmark = pytest.mark.anyio

# Twelve steps, of which each takes a fourth of a second.
STEPS = """
import time
for call in told():
    token = call["params"].get("_meta", {}).get("progressToken")
    for step in range(12):
        time.sleep(0.25)
        if token is not None:
            say(method="notifications/progress", params={"progressToken": token, "progress": PROGRESS})
    answer(call["id"], "done")
"""


async def result(progress: str) -> str:
    server = Server("front")
    server.mount(talker(STEPS.replace("PROGRESS", progress)), prefix="e", timeout=2)
    async with server.connect("handshake", on_progress=print) as client:
        return await client.call("e_talk")


@pytest.mark.slow
async def test_a_call_that_reports_progress_may_take_longer() -> None:
    assert await result("step") == "done"


@pytest.mark.slow
async def test_progress_that_does_not_grow_is_no_progress() -> None:
    with pytest.raises(ToolError, match="timed out after 2 s"):
        await result("7")
