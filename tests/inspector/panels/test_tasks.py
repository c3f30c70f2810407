from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from defserve import Server
from defserve.client.client import Client
from defserve.client.link import ClientLink
from defserve.client.links.http import HttpLink
from defserve.client.tasks import ServerTask
from defserve.errors import PeerError, PeerGone, UsageError
from defserve.inspector import followed_tasks
from defserve.inspector.era_connection import InspectionTarget
from defserve.inspector.inspection import Inspection
from tests.at_address import at_address
from tests.inspector.conftest import Inspect, Run
from tests.inspector.workshop import workshop
from tests.waiting import until

pytestmark = pytest.mark.anyio


async def became(inspection: Inspection, number: int, status: str) -> dict[str, Any]:
    def told() -> dict[str, Any]:
        return inspection.tasks[number].record.to_full_wire()

    await until(lambda: told()["status"] == status)
    return told()


async def test_a_task_is_followed_by_its_notices_to_its_result(inspect: Inspect, do: Run):
    server, go_on = workshop()
    pushed = list[dict[str, Any]]()
    async with inspect(server, "stateless") as inspection:
        inspection.pages.append(lambda topic, data: pushed.append(data) if topic == "task" else None)
        listed = await do(inspection, "tasks.list")
        assert (listed["offered"], listed["session"], listed["tasks"]) == (True, False, [])
        begun = await do(inspection, "tasks.start", tool="rebuild", arguments={"index": "books"})
        number = begun["task"]
        await until(lambda: any(each["by"] == "notices" and each["message"] for each in pushed))
        task = (await do(inspection, "tasks.list"))["tasks"][0]
        assert (task["kind"], task["status"], task["ttl"], task["poll"]) == ("task", "working", 3_600_000, 50)
        assert task["message"] == "reading 1 of 4 (1/4)" or "reading 1 of 4" in task["message"]
        assert task["created"] and task["id"]
        # It can be found by its id, as by another client.
        again = await do(inspection, "tasks.resume", taskId=task["id"])
        go_on.set()
        for each in (number, again["task"]):
            done = await became(inspection, each, "completed")
            assert done["result"]["structuredContent"]["documents"] == 412 and not done["failed"]
            assert [step["status"] for step in done["steps"]][-1] == "completed"
        assert done["over"] and (await do(inspection, "tasks.show", task=number))["arguments"] == {"index": "books"}
        assert (await do(inspection, "tasks.forget")) == {"tasks": []}
        with pytest.raises(UsageError, match="not in the list"):
            await do(inspection, "tasks.show", task=number)


async def test_without_notices_it_is_asked_for(inspect: Inspect, do: Run, monkeypatch: pytest.MonkeyPatch):
    def no_listening(self: Client, **_: Any) -> Any:
        raise PeerError("no such stream")

    server, go_on = workshop()
    async with inspect(server, "stateless") as inspection:
        await inspection.client()
        monkeypatch.setattr(Client, "listen", no_listening)
        number = (await do(inspection, "tasks.start", tool="rebuild", arguments={"index": "a"}))["task"]
        await until(lambda: inspection.tasks[number].record.by == "polls")
        go_on.set()
        assert (await became(inspection, number, "completed"))["size"] > 0


async def test_questions_inside_of_a_task_are_put_to_the_person(inspect: Inspect, do: Run):
    async with inspect(workshop()[0], "stateless") as inspection:
        number = (await do(inspection, "tasks.start", tool="clean", arguments={}))["task"]
        await until(lambda: bool(inspection.questions.waiting))
        (question,) = inspection.questions.waiting
        assert question["task"] == number and question["message"] == "Delete 12 documents?"
        assert (await became(inspection, number, "input_required"))["asks"] == 1
        inspection.questions.answer_question(question["id"], {"action": "accept", "content": {"confirm": True}})
        done = await became(inspection, number, "completed")
        assert done["result"]["content"][0]["text"] == "12 deleted, because"
        # What is cancelled takes its question back.
        number = (await do(inspection, "tasks.start", tool="clean", arguments={}))["task"]
        await until(lambda: bool(inspection.questions.waiting))
        await do(inspection, "tasks.cancel", task=number)
        await became(inspection, number, "cancelled")
        await until(lambda: not inspection.questions.waiting)


async def test_an_answer_that_does_not_arrive_is_asked_for_again(
    inspect: Inspect, do: Run, monkeypatch: pytest.MonkeyPatch
):
    answer, lost = ServerTask.answer, list[Any]()

    async def lost_once(self: ServerTask, given: Any) -> None:
        if not lost:
            lost.append(given)
            raise PeerError("lost")
        await answer(self, given)

    monkeypatch.setattr(followed_tasks, "AWAY_SECONDS", 0.01)
    monkeypatch.setattr(ServerTask, "answer", lost_once)
    async with inspect(workshop()[0], "stateless") as inspection:
        number = (await do(inspection, "tasks.start", tool="clean", arguments={}))["task"]
        for _ in range(2):
            await until(lambda: bool(inspection.questions.waiting))
            (question,) = inspection.questions.waiting
            inspection.questions.answer_question(question["id"], {"action": "accept", "content": {"confirm": True}})
            await until(lambda id=question["id"]: id not in [each["id"] for each in inspection.questions.waiting])
        await became(inspection, number, "completed")


async def test_failures_are_told_as_the_server_told_them(inspect: Inspect, do: Run):
    async with inspect(workshop()[0], "stateless") as inspection:
        number = (await do(inspection, "tasks.start", tool="broken", arguments={}))["task"]
        failed = await became(inspection, number, "failed")
        assert failed["error"]["code"] == -32005 and "disk is full" in failed["error"]["message"]
        number = (await do(inspection, "tasks.start", tool="nothing", arguments={}))["task"]
        # A tool that is not listed may be dangerous.
        await until(lambda: bool(inspection.questions.waiting))
        (question,) = inspection.questions.waiting
        await do(inspection, "questions.answer", question=question["id"], answer={"yes": True})
        assert (await became(inspection, number, "failed"))["kind"] == "starting"
        with pytest.raises(PeerError):
            await do(inspection, "tasks.resume", taskId="unknown")


async def test_a_tool_that_answers_at_once_is_no_task(inspect: Inspect, do: Run):
    async with inspect(workshop()[0], "stateless") as inspection:
        number = (await do(inspection, "tasks.start", tool="quick", arguments={}))["task"]
        assert (await became(inspection, number, "completed"))["kind"] == "plain"
        await do(inspection, "tasks.refresh", task=number)
        await do(inspection, "tasks.cancel", task=number)
        assert inspection.tasks[number].record.status == "completed"
    async with inspect(Server("bare", "1"), "stateless") as inspection:
        assert (await do(inspection, "tasks.list"))["offered"] is False


async def test_in_a_session_it_is_a_plain_call_with_progress(inspect: Inspect, do: Run):
    server, go_on = workshop()
    async with inspect(server, "handshake") as inspection:
        assert (await do(inspection, "tasks.list"))["session"] is True
        number = (await do(inspection, "tasks.start", tool="rebuild", arguments={"index": "a"}))["task"]
        await until(lambda: inspection.tasks[number].record.progress is not None)
        task = inspection.tasks[number].record.to_wire()
        assert task["progress"] == {"progress": 1, "total": 4} and task["message"] == "reading 1 of 4"
        assert (task["kind"], task["id"]) == ("plain", None)
        await do(inspection, "tasks.cancel", task=number)
        assert inspection.tasks[number].record.status == "cancelled"
        number = (await do(inspection, "tasks.start", tool="rebuild", arguments={"index": "a"}))["task"]
        go_on.set()
        await became(inspection, number, "completed")


async def test_a_task_is_found_again_in_a_new_conversation(do: Run, monkeypatch: pytest.MonkeyPatch):
    async def gone(self: ServerTask) -> str:
        monkeypatch.undo()
        monkeypatch.setattr(followed_tasks, "AWAY_SECONDS", 0.01)
        raise PeerGone("the server went away")

    @asynccontextmanager
    async def link() -> AsyncGenerator[ClientLink]:
        yield HttpLink(url)

    server, go_on = workshop()
    async with (
        at_address(server) as address,
        Inspection(InspectionTarget(address, (address,), link, "stateless")) as inspection,
    ):
        url = address
        number = (await do(inspection, "tasks.start", tool="rebuild", arguments={"index": "a"}))["task"]
        task = inspection.tasks[number]
        await until(lambda: task.record.by == "notices")
        before = await inspection.client()
        monkeypatch.setattr(followed_tasks, "SELDOM_SECONDS", 0.01)
        monkeypatch.setattr(ServerTask, "refresh", gone)
        task._news.set()  # pyright: ignore[reportPrivateUsage]
        await until(lambda: inspection.connection().connected_client not in (before, None))
        go_on.set()
        assert (await became(inspection, number, "completed"))["result"]["structuredContent"]["index"] == "a"


async def test_a_task_that_the_server_has_forgotten_has_failed(
    inspect: Inspect, do: Run, monkeypatch: pytest.MonkeyPatch
):
    async def gone(self: ServerTask) -> str:
        raise PeerGone("the server went away")

    async def unknown(self: Client, id: str, tool: str = "") -> Any:
        raise PeerError("unknown task", code=-32602)

    async with inspect(workshop()[0], "stateless") as inspection:
        number = (await do(inspection, "tasks.start", tool="rebuild", arguments={"index": "a"}))["task"]
        task = inspection.tasks[number]
        await until(lambda: task.record.by == "notices")
        monkeypatch.setattr(followed_tasks, "SELDOM_SECONDS", 0.01)
        monkeypatch.setattr(followed_tasks, "AWAY_SECONDS", 0.01)
        monkeypatch.setattr(ServerTask, "refresh", gone)
        monkeypatch.setattr(Client, "task", unknown)
        task._news.set()  # pyright: ignore[reportPrivateUsage]
        assert "does not know" in (await became(inspection, number, "failed"))["error"]["message"]


async def test_what_is_kept_is_bounded(inspect: Inspect, do: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(followed_tasks, "MAX_TASKS", 2)
    monkeypatch.setattr(followed_tasks, "MAX_BYTES", 10)
    async with inspect(workshop()[0], "stateless") as inspection:
        first = (await do(inspection, "tasks.start", tool="quick", arguments={}))["task"]
        await became(inspection, first, "completed")
        second = (await do(inspection, "tasks.start", tool="clean", arguments={}))["task"]
        assert inspection.tasks[first].record.result is None and inspection.tasks[first].record.size > 10
        third = (await do(inspection, "tasks.start", tool="clean", arguments={}))["task"]
        assert [each["task"] for each in (await do(inspection, "tasks.list"))["tasks"]] == [third, second]
        with pytest.raises(UsageError, match="run already"):
            await do(inspection, "tasks.start", tool="clean", arguments={})
    monkeypatch.setattr(followed_tasks, "MAX_RESULT_BYTES", 5)
    monkeypatch.setattr(followed_tasks, "MAX_ARGUMENTS_BYTES", 5)
    kept = followed_tasks.FollowedRecord(1, "stateless", "t", {"text": "long"})
    kept.record_status("working", "x" * 9_000)
    kept.told = {"ttlMs": True, "pollIntervalMs": 2**60, "createdAt": "y" * 500, "inputRequests": []}
    kept.record_end("completed", {"content": []})
    told = kept.to_full_wire()
    assert told["arguments"] is None and told["result"] is None and told["size"] == 14
    assert len(told["message"]) == 2_000 and told["ttl"] is None and told["poll"] is None
    assert len(told["created"]) == 100


async def test_a_strange_id_is_refused(inspect: Inspect, do: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(followed_tasks, "MAX_ID_LENGTH", 3)
    async with inspect(workshop()[0], "stateless") as inspection:
        number = (await do(inspection, "tasks.start", tool="clean", arguments={}))["task"]
        assert "characters" in (await became(inspection, number, "failed"))["error"]["message"]
        await asyncio.sleep(0)
