from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from defserve.client import Accept, Answers, Cancel, Client, Decline
from defserve.client.answers import MAX_INPUT_ROUNDS
from defserve.errors import MethodNotFound, PeerError, UsageError
from tests.client.pretend import STATELESS, PretendServer
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

QUESTION = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}


class Person(BaseModel):
    name: str


@for_each_row(
    ("answer", "result"),
    [
        ({"name": "Ann"}, {"action": "accept", "content": {"name": "Ann"}}),
        (Person(name="Ann"), {"action": "accept", "content": {"name": "Ann"}}),
        (Accept, {"action": "accept"}),
        (Decline, {"action": "decline"}),
        (Cancel, {"action": "cancel"}),
    ],
)
async def test_a_question_is_accepted_declined_or_dismissed(answer: Any, result: dict[str, Any]):
    answers = Answers(ask=lambda message, schema: answer)
    assert await answers.answer_request("elicitation/create", QUESTION) == result


@for_each_row(
    ("answer", "result"),
    [
        (Accept, {"action": "accept", "content": {"name": "Ann", "age": 0, "sure": False}}),
        ({}, {"action": "accept", "content": {"name": "Ann", "age": 0, "sure": False}}),
        (
            {"name": "Bo", "note": ""},
            {"action": "accept", "content": {"name": "Bo", "age": 0, "sure": False, "note": ""}},
        ),
        (Decline, {"action": "decline"}),
    ],
)
async def test_a_field_that_is_left_out_has_its_default(answer: Any, result: dict[str, Any]):
    fields = {"name": {"default": "Ann"}, "age": {"default": 0}, "sure": {"default": False}, "note": {}, "odd": 7}
    question = {"message": "Who?", "requestedSchema": {"type": "object", "properties": fields}}
    assert await Answers(ask=lambda message, schema: answer).answer_request("elicitation/create", question) == result


async def test_an_asynchronous_handler_is_awaited_with_message_and_schema():
    async def ask(message: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"heard": message, "fields": list(schema["properties"])}

    result = await Answers(ask=ask).answer_request("elicitation/create", QUESTION)
    assert result["content"] == {"heard": "Who?", "fields": ["name"]}


@for_each_row("value", ["Ann", True, 0, ["a"]])
async def test_a_value_alone_is_that_of_the_only_field(value: Any):
    answers = Answers(ask=lambda message, schema: value)
    assert await answers.answer_request("elicitation/create", QUESTION) == {
        "action": "accept",
        "content": {"name": value},
    }


@for_each_row(
    ("answer", "fields", "told"),
    [
        ("Ann", ["name", "age"], "the fields name, age, and the answer is 'Ann' alone\n.*{'name': …, 'age': …}"),
        ("Ann", [], "must be a dict, a model, .* not str"),
        (None, ["name"], "must be a dict, a model, .* not NoneType"),
    ],
)
async def test_an_answer_of_another_type_is_the_handlers_mistake(answer: Any, fields: list[str], told: str):
    question = {"message": "Who?", "requestedSchema": {"properties": {key: {"type": "string"} for key in fields}}}
    with pytest.raises(UsageError, match=told):
        await Answers(ask=lambda m, s: answer).answer_request("elicitation/create", question)


async def test_a_url_is_opened_by_its_own_handler():
    seen: list[tuple[str, str]] = []

    def open_url(message: str, url: str) -> Any:
        seen.append((message, url))
        return Accept

    params = {"mode": "url", "message": "Sign in", "url": "https://example.org/in"}
    assert await Answers(ask_url=open_url).answer_request("elicitation/create", params) == {"action": "accept"}
    assert seen == [("Sign in", "https://example.org/in")]


async def test_text_from_the_model_becomes_an_assistant_message():
    result = await Answers(sample=lambda params: params["messages"][0]).answer_request(
        "sampling/createMessage", {"messages": ["hello"], "maxTokens": 5}
    )
    assert result["role"] == "assistant"
    assert result["content"] == {"type": "text", "text": "hello"}


async def test_roots_are_uris_or_objects_or_a_function():
    given = ["file:///a", {"uri": "file:///b", "name": "b"}]
    wire = {"roots": [{"uri": "file:///a"}, {"uri": "file:///b", "name": "b"}]}
    assert await Answers(roots=given).answer_request("roots/list", {}) == wire
    assert await Answers(roots=lambda: given).answer_request("roots/list", {}) == wire


@for_each_row(
    ("method", "params"),
    [
        ("elicitation/create", QUESTION),
        ("elicitation/create", {"mode": "url", "message": "m", "url": "u"}),
        ("sampling/createMessage", {}),
        ("roots/list", {}),
        ("acme/unheard", {}),
    ],
)
async def test_what_was_not_offered_is_method_not_found(method: str, params: dict[str, Any]):
    with pytest.raises(MethodNotFound):
        await Answers().answer_request(method, params)


def asks_until(rounds: int) -> Any:
    """A tools/call that asks one question a round and counts in its requestState."""

    def call(request: dict[str, Any]) -> dict[str, Any]:
        done = int(request["params"].get("requestState", "0"))
        if done >= rounds:
            return {"content": [{"type": "text", "text": f"after {done}"}], "resultType": "complete"}
        asked = {f"q{done}": {"method": "elicitation/create", "params": QUESTION}}
        return {"resultType": "input_required", "inputRequests": asked, "requestState": str(done + 1)}

    return call


async def test_input_required_is_answered_and_the_request_repeated_with_a_new_id():
    server = PretendServer({**STATELESS, "tools/call": asks_until(2), "tools/list": {"tools": []}})
    async with Client(server, answers=Answers(ask=lambda m, s: {"name": "Ann"})) as client:
        assert await client.call("greet", loud=True) == "after 2"
    calls = [message for message in server.sent if message["method"] == "tools/call"]
    assert len({message["id"] for message in calls}) == 3
    accepted = {"action": "accept", "content": {"name": "Ann"}}
    assert [call["params"].get("inputResponses") for call in calls] == [None, {"q0": accepted}, {"q1": accepted}]
    assert [call["params"].get("requestState") for call in calls] == [None, "1", "2"]
    assert all(call["params"]["arguments"] == {"loud": True} for call in calls)
    assert all("io.modelcontextprotocol/protocolVersion" in call["params"]["_meta"] for call in calls)


async def test_a_state_without_questions_is_only_echoed():
    def call(request: dict[str, Any]) -> dict[str, Any]:
        if "requestState" in request["params"]:
            return {"resultType": "complete", "content": [], "echo": request["params"]["requestState"]}
        return {"resultType": "input_required", "requestState": "later"}

    async with Client(PretendServer({**STATELESS, "tools/call": call})) as client:
        assert (await client.call_raw("t"))["echo"] == "later"


@for_each_row("asked", [{}, {"inputRequests": {}}, {"inputRequests": {}, "requestState": 5}])
async def test_a_server_that_asks_for_nothing_is_not_asked_again(asked: dict[str, Any]):
    server = PretendServer({**STATELESS, "tools/call": {"resultType": "input_required", **asked}})
    async with Client(server) as client:
        with pytest.raises(PeerError, match="without inputRequests or requestState"):
            await client.call("greet")
    assert len(server.asked("tools/call")) == 1


@for_each_row(
    ("keys", "told"),
    [([f"q{n}" for n in range(101)], "asks 101 questions at once"), (["k" * 1_025], "key of more than 1,024")],
)
async def test_nobody_is_asked_more_at_once_than_a_person_can_answer(keys: list[str], told: str):
    question = {"method": "elicitation/create", "params": QUESTION}
    flood = {"resultType": "input_required", "inputRequests": dict.fromkeys(keys, question)}
    asked: list[str] = []
    async with Client(
        PretendServer({**STATELESS, "tools/call": flood}), answers=Answers(ask=lambda m, s: asked.append(m) or {})
    ) as client:
        with pytest.raises(PeerError, match=told):
            await client.call("greet")
    assert not asked


async def test_a_server_that_never_stops_asking_is_given_up():
    server = PretendServer({**STATELESS, "tools/call": asks_until(10_000)})
    async with Client(server, answers=Answers(ask=lambda m, s: {})) as client:
        with pytest.raises(PeerError, match=f"{MAX_INPUT_ROUNDS} rounds"):
            await client.call("greet")
    assert len(server.asked("tools/call")) == MAX_INPUT_ROUNDS + 1


async def test_a_stateless_question_that_was_not_offered_fails_the_call():
    server = PretendServer({**STATELESS, "tools/call": asks_until(1)})
    async with Client(server) as client:
        with pytest.raises(PeerError, match="elicitation/create, which this client did not offer"):
            await client.call("greet")


@for_each_row("method", ["ping", "tools/list", "acme/" + "x" * 1_000, None, {"a": 1}])
async def test_a_result_may_only_ask_for_what_the_specification_names(method: Any):
    asked = {"resultType": "input_required", "inputRequests": {"q": {"method": method}}, "requestState": "s"}
    server = PretendServer({**STATELESS, "tools/call": asked})
    async with Client(server, answers=Answers(ask=lambda m, s: {}), methods={"ping": lambda _: {}}) as client:
        with pytest.raises(PeerError, match="may ask for elicitation/create, sampling/") as raised:
            await client.call("greet")
    assert len(server.asked("tools/call")) == 1 and len(raised.value.message) < 250


@for_each_row("version", ["2025-11-25", "2025-03-26"])
async def test_a_server_cannot_ask_in_a_result_within_a_session(version: str):
    server = PretendServer({"tools/call": asks_until(1)})
    asked: list[str] = []
    async with Client(server, version=version, answers=Answers(ask=lambda m, s: asked.append(m) or {})) as client:
        with pytest.raises(PeerError, match=f"tools/call asks for input, .* session of {version}"):
            await client.call("greet")
        result = await client.request("tools/call", {"name": "greet"}, follow=False)
    assert result["resultType"] == "input_required"
    assert not asked and len(server.asked("tools/call")) == 2


async def test_a_result_in_a_session_may_have_any_other_member():
    server = PretendServer({"tools/call": {"resultType": "acme", "content": []}, "tools/list": {"tools": []}})
    async with Client(server, version="2025-11-25") as client:
        assert await client.call("greet") is None


async def test_a_caller_may_look_at_input_required_itself():
    server = PretendServer({**STATELESS, "tools/call": asks_until(1)})
    async with Client(server) as client:
        result = await client.request("tools/call", {"name": "greet"}, follow=False)
    assert result["resultType"] == "input_required"


async def test_a_handshake_server_is_answered_on_its_own_request():
    server = PretendServer()
    async with Client(server, version="2025-11-25", answers=Answers(ask=lambda m, s: Decline)):
        server.say({"id": 7, "method": "elicitation/create", "params": QUESTION})
        server.say({"id": 8, "method": "ping"})
        assert (await server.told(lambda m: m.get("id") == 7))["result"] == {"action": "decline"}
        assert (await server.told(lambda m: m.get("id") == 8))["result"] == {}
