from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve.errors import DefserveError, UsageError
from defserve.inspector import questions as room
from defserve.inspector.questions import MAX_RULES, MAX_TEXT_LENGTH, Questions, ScriptedAnswers
from tests.inspector.conftest import Inspect, Run
from tests.inspector.library import library
from tests.rows import for_each_row
from tests.waiting import until

pytestmark = pytest.mark.anyio

eras = pytest.mark.parametrize("era", ["handshake", "stateless"])


@eras
async def test_roots_are_given_to_whoever_asks(inspect: Inspect, do: Run, era: str):
    told = list[tuple[str, Any]]()
    roots = [{"uri": "file:///home/me", "name": "home"}, {"uri": "file:///tmp"}]
    async with inspect(library()) as inspection:
        client = await inspection.client(era)
        inspection.pages.append(lambda topic, data: told.append((topic, data)))
        assert (await do(inspection, "questions.roots", roots=roots))["roots"] == roots
        assert ("standing", {"roots": roots, "model": {"on": False, "rules": []}}) in told
        assert await client.call("where") == ["file:///home/me", "file:///tmp"]
        if era == "handshake":
            recorder = inspection.recorder
            await until(
                lambda: "list_changed" in str([each.method for each in recorder.get_messages(0, recorder.count)])
            )


NO_ROOTS: list[Any] = [None, "file:///", [1], [{}], [{"uri": ""}], [{"uri": "a", "name": 1}], [{}] * 101]


@pytest.mark.parametrize("roots", NO_ROOTS)
async def test_what_is_no_list_of_roots_is_refused_and_changes_nothing(inspect: Inspect, do: Run, roots: Any):
    async with inspect(library()) as inspection:
        await do(inspection, "questions.roots", roots=[{"uri": "file:///kept"}])
        with pytest.raises(UsageError, match="root"):
            await do(inspection, "questions.roots", roots=roots)
        assert (await do(inspection, "questions.past"))["roots"] == [{"uri": "file:///kept"}]


@eras
async def test_a_model_answers_by_its_script_only_while_that_is_on(inspect: Inspect, do: Run, era: str):
    rules = [{"when": "POEM", "say": "Roses."}, {"when": "book", "say": "Long."}]
    async with inspect(library()) as inspection:
        client = await inspection.client(era)
        await do(inspection, "questions.model", on=True, rules=rules)
        assert await client.call("summarize", text="a poem") == "Roses."
        assert await client.call("summarize") == "Long."
        over = (await do(inspection, "questions.past"))["past"]
        assert [(each["by"], each["answer"]) for each in over] == [("script", {"text": t}) for t in ("Long.", "Roses.")]
        # No rule fits, or it is off: the person is asked.
        for on, text in ((True, "a song"), (False, "a poem")):
            await do(inspection, "questions.model", on=on, rules=rules)
            call = asyncio.create_task(client.call("summarize", text=text))
            await until(lambda: bool(inspection.questions.waiting))
            (question,) = inspection.questions.waiting
            assert (question["kind"], question["era"]) == ("sampling", era)
            await do(inspection, "questions.answer", question=question["id"], answer={"text": "By hand."})
            assert await call == "By hand."


@pytest.mark.parametrize(
    "rules",
    [
        None,
        {},
        [1],
        [{"when": "a"}],
        [{"say": 1}],
        [{"say": "a" * (MAX_TEXT_LENGTH + 1)}],
        [{"say": ""}] * (MAX_RULES + 1),
    ],
)
async def test_what_are_no_rules_is_refused(inspect: Inspect, do: Run, rules: Any):
    async with inspect(library()) as inspection:
        with pytest.raises(UsageError, match="rules"):
            await do(inspection, "questions.model", on=True, rules=rules)
        assert not inspection.questions.model.on


@for_each_row("params", [{}, {"messages": []}, {"messages": [1]}, {"messages": [{"content": [None]}]}])
def test_a_script_reads_whatever_a_server_sends(params: dict[str, Any]):
    model = ScriptedAnswers()
    model.set_rules(True, [{"when": "a", "say": "never"}, {"say": "always"}])
    assert model.find_answer(params) == "always"


@eras
async def test_a_person_may_refuse_to_play_the_model(inspect: Inspect, do: Run, era: str):
    async with inspect(library()) as inspection:
        call = asyncio.create_task((await inspection.client(era)).call("summarize"))
        await until(lambda: bool(inspection.questions.waiting))
        (question,) = inspection.questions.waiting
        await do(inspection, "questions.answer", question=question["id"], answer={"refuse": True})
        with pytest.raises(DefserveError, match="did not let the model answer"):
            await call


async def test_what_is_over_is_kept_with_its_outcome_and_not_if_it_is_long(inspect: Inspect, do: Run):
    async with inspect(library()) as inspection:
        questions = inspection.questions
        asked = asyncio.create_task(
            questions.ask_person("form", "stateless", message="m" * room.MAX_PAST_QUESTION_BYTES)
        )
        await until(lambda: bool(questions.waiting))
        questions.answer_question(questions.waiting[0]["id"], {"action": "decline"})
        await asked
        taken = asyncio.create_task(questions.ask_person("form", "stateless", message="short"))
        await until(lambda: bool(questions.waiting))
        taken.cancel()
        await asyncio.gather(taken, return_exceptions=True)
        newest, oldest = (await do(inspection, "questions.past"))["past"]
    assert (newest["outcome"], newest["question"]["message"], newest["answer"]) == ("taken back", "short", None)
    assert oldest["outcome"] == "answered" and "question" not in oldest


async def test_only_the_newest_are_kept():
    questions = Questions(lambda topic, data: None)
    questions.model.set_rules(True, [{"say": "yes"}])
    sample: Any = questions.make_client_answers(lambda: "stateless").sample
    for _ in range(room.MAX_PAST_QUESTIONS + 5):
        assert await sample({"messages": []}) == "yes"
    assert len(questions.past) == room.MAX_PAST_QUESTIONS
