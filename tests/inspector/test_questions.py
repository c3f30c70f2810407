from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from defserve.client.answers import Accept, Cancel, Decline
from defserve.client.mgp.peer import respond_to_callback
from defserve.errors import UsageError
from defserve.inspector import questions as room
from defserve.inspector.questions import Questions
from tests.rows import for_each_row
from tests.waiting import until

pytestmark = pytest.mark.anyio


def fresh() -> tuple[Questions, list[tuple[str, Any]]]:
    told = list[tuple[str, Any]]()
    return Questions(lambda topic, data: told.append((topic, data))), told


async def asked(questions: Questions, asking: Any, answer: dict[str, Any]) -> Any:
    task = asyncio.ensure_future(asking)
    await until(lambda: bool(questions.waiting))
    assert questions.answer_question(questions.waiting[0]["id"], answer)
    return await task


@for_each_row(
    ("answer", "given"),
    [
        ({"action": "accept", "content": {"a": 1}}, {"a": 1}),
        ({"action": "accept"}, Accept),
        ({"action": "decline", "content": {"a": 1}}, Decline),
        ({"action": "cancel"}, Cancel),
        ({}, Cancel),
    ],
)
async def test_a_form_is_filled_in_or_not(answer: dict[str, Any], given: Any):
    questions, told = fresh()
    answers = questions.make_client_answers(lambda: "stateless")
    assert answers.ask is not None
    assert await asked(questions, answers.ask("How many?", {"properties": {}}), answer) == given
    assert [topic for topic, _ in told] == ["question", "question.over"]


async def test_the_other_kinds_of_questions():
    questions, _ = fresh()
    answers = questions.make_client_answers(lambda: "handshake")
    assert answers.ask_url and answers.sample and callable(answers.roots)
    assert await asked(questions, answers.ask_url("Sign in", "https://example.com"), {"action": "accept"}) is Accept
    assert await asked(questions, answers.sample({"messages": []}), {"text": "yes"}) == "yes"
    assert await asked(questions, answers.sample({"messages": []}), {"result": {"model": "m"}}) == {"model": "m"}
    questions.roots.append("file:///tmp")
    assert answers.roots() == ["file:///tmp"]


@for_each_row("answer", [{}, {"yes": 1}, {"yes": "true"}, {"yes": False}, {"no": True}])
async def test_only_a_clear_yes_confirms(answer: dict[str, Any]):
    questions, _ = fresh()
    assert await asked(questions, questions.confirm("stateless", "t", {}, {}), answer) is False
    assert await asked(questions, questions.permit("stateless", "p", "safe", "s"), answer) is None


async def test_questions_have_an_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "MAX_OPEN_QUESTIONS", 1)
    questions, _ = fresh()
    first = asyncio.create_task(questions.ask_person("form", "stateless"))
    await until(lambda: bool(questions.waiting))
    with pytest.raises(UsageError, match="1 questions wait"):
        await questions.ask_person("form", "stateless")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert not questions.waiting and not questions.answer_question(1, {})


async def test_a_question_says_until_when_the_server_waits():
    questions, sent = Questions(lambda topic, data: None), list[Any]()

    async def send(method: str, params: Any) -> None:
        sent.append(params)

    async def person() -> None:
        await until(lambda: bool(questions.waiting))
        (question,) = questions.waiting
        assert 20 < question["until"] - time.time() <= 30
        questions.answer_question(question["id"], {"action": "accept", "content": {"value": True}})

    asked = {"callback_id": "c1", "type": "confirmation", "message": "Sure?", "timeout_ms": 30_000}
    answers = questions.make_client_answers(lambda: "handshake")
    await asyncio.gather(respond_to_callback(asked, answers, send, lambda work: work), person())
    assert sent == [{"callback_id": "c1", "response": "confirm"}]
    waiting = asyncio.create_task(questions.ask_person("form", "handshake"))
    await until(lambda: bool(questions.waiting))
    assert "until" not in questions.waiting[0]
    waiting.cancel()


async def test_large_questions_of_a_server_do_not_wait_in_any_number(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "MAX_OPEN_BYTES", 100_000)
    questions, _ = fresh()
    waiting = [asyncio.ensure_future(questions.ask_person("form", "stateless", message="x" * 40_000)) for _ in range(2)]
    await until(lambda: len(questions.waiting) == 2)
    with pytest.raises(UsageError, match="questions of 80[0-9]+ bytes wait already"):
        await questions.ask_person("form", "stateless", message="x" * 40_000)
    for question in questions.waiting:
        assert questions.answer_question(question["id"], {})
    await asyncio.gather(*waiting)
    last = asyncio.ensure_future(
        questions.ask_person("form", "stateless", message="x" * 400_000)
    )  # alone, it may be large
    await until(lambda: len(questions.waiting) == 1)
    assert questions.answer_question(questions.waiting[0]["id"], {})
    await last
