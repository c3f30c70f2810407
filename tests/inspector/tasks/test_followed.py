"""A task whose server asks for too much, or refuses every answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from defserve.client.answers import Answers, answer_input_requests
from defserve.client.client import Client
from defserve.client.tasks import ServerTask
from defserve.errors import PeerError
from defserve.inspector import followed_tasks
from defserve.inspector.followed_tasks import MAX_QUESTIONS, FollowedRecord, FollowedTask
from defserve.inspector.questions import Questions
from tests.waiting import until

pytestmark = pytest.mark.anyio


class Asking:
    """A server, as a client and an inspection see it. Its task asks `method` a hundred times, and takes no answer."""

    stateless = True

    def __init__(self, method: str) -> None:
        self.questions, self.answers = Questions(lambda *_: None), Answers()
        self.polls, self.updates = 0, list[str]()
        asked = {f"key {number}": {"method": method, "params": {}} for number in range(100)}
        self.told = {"taskId": "t", "status": "input_required", "pollIntervalMs": 20, "inputRequests": asked}

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        if method == "tasks/get":
            self.polls += 1
            return self.told
        self.updates += (params or {})["inputResponses"]
        raise PeerError("no")

    async def call_raw(self, *args: Any, **more: Any) -> Any: ...

    async def value(self, tool: str, result: Any) -> Any: ...

    def listen(self, **_: Any) -> Any:
        raise PeerError("there is nothing to listen to")

    async def client(self, era: str | None = None) -> Client:
        return self  # pyright: ignore[reportReturnType]

    def failed(self, era: str | None, error: BaseException) -> None: ...

    def push(self, topic: str, data: Any) -> None: ...


@asynccontextmanager
async def following(server: Asking) -> AsyncIterator[FollowedTask]:
    task = FollowedTask(server, FollowedRecord(1, "stateless", "tool", {}))
    task.resume(ServerTask(server, "tool", {}, server.told))
    try:
        yield task
    finally:
        await task.aclose()


async def test_answers_that_are_refused_are_not_repeated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_tasks, "AWAY_SECONDS", 3600.0)
    server = Asking("roots/list")
    async with following(server) as task:
        await until(lambda: server.polls >= 5)
        assert sorted(server.updates) == sorted(f"key {number}" for number in range(MAX_QUESTIONS))
        assert "did not reach the server: no" in task.record.to_wire()["message"]


async def test_a_question_that_nobody_can_answer_is_told_and_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    async def counted(result: dict[str, Any], answers: Answers) -> dict[str, Any]:
        asked.extend(result["inputRequests"])
        return await answer_input_requests(result, answers)

    monkeypatch.setattr(followed_tasks, "answer_input_requests", counted)
    server = Asking("unheard/of")
    async with following(server) as task:
        await until(lambda: server.polls >= 10)
        assert server.updates == [] and len(asked) == len(set(asked)) >= MAX_QUESTIONS
        assert (
            "asks for unheard/of" in task.record.to_wire()["message"]
            and "Cancel the task" in task.record.to_wire()["message"]
        )
