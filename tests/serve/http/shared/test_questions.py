"""What concerns a call finds it in whichever process it runs: answers to its questions, and its cancellation."""

from __future__ import annotations

import pytest

from tests.asgi import last, text
from tests.serve.http.shared.group import Group
from tests.waiting import until

pytestmark = pytest.mark.anyio

ELICITS = {"elicitation": {}}
YES = {"action": "accept", "content": {"value": "Ada"}}


async def test_an_answer_that_reaches_another_process_finds_the_call_that_asks(group: Group):
    client = await group.client(capabilities=ELICITS)
    call = client.at("one").begin_call("asks")
    question = await call.next()
    answered = await client.at("two").answer(question, YES)
    assert answered.status == 202
    await call.ended()
    assert text(last(call)) == "one heard Ada"


async def test_a_second_answer_changes_nothing(group: Group):
    client = await group.client(capabilities=ELICITS)
    call = client.at("one").begin_call("asks")
    question = await call.next()
    for at in ("two", "two", "one"):
        assert (await client.at(at).answer(question, YES)).status == 202
    await call.ended()
    assert text(last(call)) == "one heard Ada"


async def test_ids_of_questions_differ_between_processes(group: Group):
    client = await group.client(capabilities=ELICITS)
    calls = [client.at(name).begin_call("asks") for name in ("one", "two")]
    questions = [await call.next() for call in calls]
    assert questions[0]["id"] != questions[1]["id"]
    for question in questions:
        assert (await client.at("two").answer(question, YES)).status == 202
    assert [text(last(await call.ended())) for call in calls] == [
        f"{group[name].name} heard Ada" for name in ("one", "two")
    ]


async def test_a_cancellation_finds_the_call_wherever_it_runs(group: Group):
    client = await group.client()
    call = client.at("one").begin_call("wait", id="w")
    await until(lambda: bool(list(group["one"].server.composition.list_calls())))
    await client.at("two").tell("notifications/cancelled", {"requestId": "w"})
    await until(lambda: group["one"].ended == ["wait"])
    await call.ended()
