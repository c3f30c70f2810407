from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from defserve.client import Answers
from defserve.errors import PeerError, ToolError

if TYPE_CHECKING:
    from .conftest import ConnectTo

pytestmark = pytest.mark.anyio
stateless = pytest.mark.parametrize("version", ["2026-07-28"])


def says(*answers: dict[str, Any]) -> Answers:
    """A person who gives these answers, one after the other."""
    left = list(answers)
    return Answers(ask=lambda message, schema: left.pop(0))


@pytest.mark.req("MCP-8")
async def test_a_task_asks_works_and_gives_its_result_in_either_era(connect_to: ConnectTo):
    async with connect_to("tasks", answers=says({"confirm": True}, {"confirm": False})) as client:
        task = await client.start("rebuild", index="books")
        assert task.status in ("working", "input_required")
        assert (task.id is None) == (not client.stateless)
        assert await task.result() == "4 documents in books"
        assert task.status == "completed"
        task = await client.start("rebuild", index="books")
        with pytest.raises(ToolError, match=r"Nothing was changed\."):
            await task.result()
        assert task.status == "completed"


async def test_a_plain_call_of_a_task_tool_asks_and_answers_as_ever(connect_to: ConnectTo):
    async with connect_to("tasks", answers=says({"confirm": True})) as client:
        assert await client.call("rebuild", index="books") == "4 documents in books"


@pytest.mark.req("MCP-8")
async def test_a_task_in_a_thread_is_cancelled(connect_to: ConnectTo):
    async with connect_to("tasks") as client:
        task = await client.start("watch", minutes=10)
        assert await task.refresh() == "working"
        await task.cancel()
        with pytest.raises(PeerError, match="was cancelled"):
            await task.result()
        assert task.status == "cancelled"


async def test_a_call_of_a_tool_that_runs_only_as_a_task_waits_for_it(connect_to: ConnectTo):
    async with connect_to("tasks") as client:
        assert await client.call("watch", minutes=0) == "nothing happened"


async def test_a_number_is_drawn_once_and_told_on_the_way(connect_to: ConnectTo):
    async with connect_to("tasks") as client:
        task = await client.start("bill", customer="Ada")
        assert await task.result() == "invoice 1 for Ada"


async def test_what_is_asked_first_belongs_to_the_call(connect_to: ConnectTo):
    async with connect_to("tasks", answers=says({"value": "Ulm"})) as client:
        task = await client.start("travel")
        assert await task.result() == "in Ulm"


@stateless
async def test_a_tool_that_needs_tasks_refuses_a_client_without(connect_to: ConnectTo):
    async with connect_to("tasks") as client:
        with pytest.raises(PeerError, match="runs only as a task") as refused:
            await client.call_raw("watch", {"minutes": 0})
        assert refused.value.code == -32021
        assert refused.value.data["requiredCapabilities"] == {"extensions": {"io.modelcontextprotocol/tasks": {}}}
