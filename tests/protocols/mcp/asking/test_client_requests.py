from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.effort import slow
from tests.protocols.mcp.asking.askers import ERAS, Asker, Person, items, official, official_client, ours, says, text

OPENERS = {"official": official, "ours": ours}


@pytest.fixture(scope="module", params=[f"{client}-{era}" for client in OPENERS for era in ERAS])
def connected(request: pytest.FixtureRequest) -> Iterator[Asker]:
    client, _, era = request.param.partition("-")
    with OPENERS[client](era) as asker:
        yield asker


@pytest.fixture
def asker(connected: Asker) -> Asker:
    """The asking server with nothing on its record, and a person who has not been asked."""
    fresh = Person()
    vars(connected.person).update(vars(fresh))
    connected.result("events")
    return connected


def happened(asker: Asker) -> list[str]:
    return items(asker.result("events"))


@pytest.mark.req("MCP-5.6")
def test_one_question_is_answered(asker: Asker):
    asker.person.says = says({"Your name?": {"name": "Ann"}})
    assert text(asker.result("greet")) == "hello Ann"
    (question,) = asker.person.asked
    assert question["requestedSchema"] == {
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
    }


def test_a_second_question_may_depend_on_the_first_answer(asker: Asker):
    asker.person.says = says({"What?": "pears", "How many pears?": 3})
    assert text(asker.result("order")) == "3 pears"
    assert asker.person.messages == ["What?", "How many pears?"]
    runs = 3 if asker.stateless else 1
    assert happened(asker) == ["begun"] * runs + ["ordered"]


@pytest.mark.parametrize("tool", ["at_once", "at_once_anyio", "one_after_the_other_at_once"])
def test_answers_to_questions_asked_at_once_are_never_swapped(asker: Asker, tool: str):
    asker.person.says = says({"left?": "L", "right?": "R"})
    assert text(asker.result(tool)) == "left=L right=R"
    assert sorted(asker.person.messages) == ["left?", "right?"]
    assert happened(asker) == ([] if tool.startswith("one") else ["after the group"])


def test_identical_questions_asked_at_once_are_told_apart_by_occurrence(asker: Asker):
    answers = iter(("a", "b", "c"))
    asker.person.says = lambda message: next(answers)
    given = text(asker.result("twins")).split()
    assert sorted(given) == ["a", "b", "c"]


def test_questions_with_one_message_are_told_apart_by_their_form(asker: Asker):
    asker.person.fills = lambda form: form["properties"]["value"]["description"].split()[-1]
    assert text(asker.result("namesakes")) == "second first"


@pytest.mark.req("MCP-5.4", "MCP-5.5")
def test_questions_of_every_kind_are_gathered(asker: Asker):
    asker.person.says = says({"Your name?": {"name": "Ann"}})
    assert text(asker.result("gathered")) == "Ann Roses file:///home"
    assert sorted(asker.person.messages) == ["Your name?", "roots/list", "sampling/createMessage"]


def test_an_effect_in_once_happens_once_and_code_before_a_question_again(asker: Asker):
    asker.person.says = says({"Send a receipt?": True, "Anything else?": "no"})
    assert text(asker.result("pay")) == "receipt 42 42"
    runs = 3 if asker.stateless else 1
    assert happened(asker) == ["before", "charged"] + ["before"] * (runs - 1)


def test_an_effect_under_way_beside_a_question_still_happens_once(asker: Asker):
    asker.person.says = says({"Sure?": "yes"})
    assert text(asker.result("pay_beside")) == "paid paid"
    assert happened(asker) == ["charging", "charged"]


def test_a_question_inside_an_effect_is_asked(asker: Asker):
    asker.person.says = says({"Inside?": "yes"})
    assert text(asker.result("ask_in_once")) == "yes"


def test_except_exception_does_not_swallow_a_question(asker: Asker):
    asker.person.says = says({"Your name?": "Ann"})
    assert text(asker.result("stubborn")) == "Ann"
    assert happened(asker) == []


def test_a_function_that_catches_everything_and_asks_on_still_gets_its_answers(asker: Asker):
    asker.person.says = says({"one?": "1", "two?": "2", "three?": "3"})
    assert text(asker.result("deaf")) == "1 2 3"
    assert asker.person.messages == ["one?", "two?", "three?"]


def test_a_thread_that_catches_everything_and_asks_on_does_not_hang(asker: Asker):
    asker.person.says = says({"one?": "1", "two?": "2"})
    assert text(asker.result("deaf_thread")) == "1 2"
    assert asker.person.messages == ["one?", "two?"]


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["impatient_thread", slow("impatient"), slow("impatient_reader")])
def test_the_timeout_stands_still_while_a_person_thinks(asker: Asker, tool: str):
    def slowly(message: str) -> str:
        time.sleep(1.0)  # the tools have 0.8 s
        return "done"

    asker.person.says = slowly
    assert text(asker.result(tool)) == "done"


@pytest.mark.req("MCP-5.6")
@pytest.mark.parametrize(
    ("said", "read", "caught"),
    [
        ("decline", "the user declined: Your name?", "they said no"),
        ("cancel", "the user dismissed the question: Your name?", "they went away"),
    ],
)
def test_a_refusal_is_read_by_the_model_unless_it_is_caught(asker: Asker, said: str, read: str, caught: str):
    asker.person.says = lambda message: said
    result = asker.result("greet")
    assert result["isError"] and result["content"][0]["text"] == read
    assert text(asker.result("careful")) == caught


@pytest.mark.parametrize("tool", ["at_once", "at_once_anyio", "gathered_forms"])
def test_a_refusal_in_a_task_group_is_read_too(asker: Asker, tool: str):
    asker.person.says = says({"left?": "decline", "right?": "R"})
    result = asker.result(tool)
    assert result["isError"] and result["content"][0]["text"] == "the user declined: left?"


def test_dependencies_are_torn_down_on_every_round(asker: Asker):
    asker.person.says = says({"Your name?": "Ann"})
    assert text(asker.result("visit")) == "Ann in shop with desk"
    one_round = ["desk opened", "shop opened", "left", "shop closed", "desk closed"]
    assert happened(asker) == one_round * (2 if asker.stateless else 1)


def test_sync_code_waits_and_leaves_before_its_dependencies_are_torn_down(asker: Asker):
    asker.person.says = says({"Your name?": "Ann", "Your age, Ann?": 7})
    assert text(asker.result("visit_in_a_thread")) == "Ann, 7, in shop with desk"
    one_round = ["desk opened", "shop opened", "left", "shop closed", "desk closed"]
    assert happened(asker) == one_round * (3 if asker.stateless else 1)


@pytest.mark.req("MCP-5.4")
def test_sampling_sends_every_field_and_reads_the_reply(asker: Asker):
    asker.person.writes = {**asker.person.writes, "stopReason": "endTurn"}
    assert text(asker.result("poem")) == "Roses by bard (endTurn)"
    (asked,) = asker.person.asked
    for message in asked["messages"]:  # a client may read one block as a list of one
        message["content"] = message["content"][0] if isinstance(message["content"], list) else message["content"]
    assert {k: v for k, v in asked.items() if k not in ("_meta", "task")} == {
        "method": "sampling/createMessage",
        "messages": [
            {"role": "user", "content": {"type": "text", "text": "Write"}},
            {"role": "user", "content": {"type": "text", "text": "Please"}},
        ],
        "maxTokens": 99,
        "systemPrompt": "You are a poet",
        "temperature": 0.5,
        "stopSequences": ["END"],
        "modelPreferences": {
            "hints": [{"name": "claude"}],
            "costPriority": 0.1,
            "speedPriority": 0.2,
            "intelligencePriority": 0.9,
        },
        "metadata": {"k": "v"},
        "includeContext": "none",
    }


@pytest.mark.req("MCP-5.5")
def test_roots_are_those_of_the_moment(asker: Asker):
    assert items(asker.result("places")) == ["file:///home home"]
    asker.person.roots = [{"uri": "file:///a"}, {"uri": "file:///b", "name": "b"}]
    assert items(asker.result("places")) == ["file:///a None", "file:///b b"]


@pytest.mark.req("MCP-5.6")
def test_choices_are_listed_or_labelled(asker: Asker):
    asker.person.says = says({"Colour?": "green", "Size?": "l"})
    assert text(asker.result("pick")) == "green l"
    colour, size = (question["requestedSchema"]["properties"]["value"] for question in asker.person.asked)
    assert colour == {"type": "string", "enum": ["red", "green"]}
    assert size == {"type": "string", "oneOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]}


def test_a_choice_that_was_not_offered_is_refused(asker: Asker):
    asker.person.says = says({"Colour?": "blue"})
    result = asker.result("pick")
    assert result["isError"] and result["content"][0]["text"] == "the answer to 'Colour?' is none of red, green"


@pytest.mark.parametrize(
    ("said", "outcome"), [(True, "erased"), (False, "kept"), ("decline", "kept"), ("cancel", "kept")]
)
def test_confirming_is_a_clear_yes_and_nothing_else(asker: Asker, said: object, outcome: str):
    asker.person.says = lambda message: said
    assert text(asker.result("erase")) == outcome


@pytest.mark.req("MCP-5.6u")
def test_a_person_is_sent_to_a_page(asker: Asker):
    asker.person.says = lambda message: "accept"
    assert text(asker.result("sign_in")) == "on their way"
    (asked,) = asker.person.asked
    assert (asked["mode"], asked["message"]) == ("url", "Sign in, please")
    assert asked["url"] == "https://example.com/sign-in"
    asker.person.says = lambda message: "decline"
    assert asker.result("sign_in")["isError"]


@pytest.mark.req("MCP-5.6")
def test_a_model_is_filled_in_field_by_field(asker: Asker):
    given = {"name": "Ann", "age": 7, "plan": "paid", "topics": ["tips"], "newsletter": True}
    asker.person.says = lambda message: given
    assert '"name":"Ann","age":7,"plan":"paid","topics":["tips"],"nickname":null' in text(asker.result("register"))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"name": "Ann", "age": "x"}, "age: Input should be a valid integer"),
        ({"name": "A", "age": 3}, "name: String should have at least 2 characters"),
        ({"age": 3}, "name: Field required"),
        ({"name": "Ann", "age": 3, "plan": "gold"}, "plan: Input should be 'free' or 'paid'"),
    ],
)
def test_an_answer_that_does_not_fit_the_model_is_a_clear_error(asker: Asker, given: Any, problem: str):
    asker.person.says = lambda message: given
    result = asker.result("register")
    assert result["isError"]
    assert result["content"][0]["text"].startswith(f"the answer to 'About you' does not fit the question: {problem}")


def test_a_nested_model_is_the_authors_mistake_and_no_news_for_the_peer(asker: Asker):
    result = asker.result("impossible")
    assert result["isError"] and result["content"][0]["text"].startswith("internal error (id ")
    assert asker.person.asked == []


def test_resources_ask(asker: Asker):
    asker.person.says = says({"Which fruit?": "pear"})
    assert asker.read("asked://fruit") == "fruit: pear"


def test_prompts_ask(asker: Asker):
    asker.person.says = says({"Whom?": "Ann"})
    assert asker.prompt("introduce", to="Bob") == "Introduce Ann to Bob"


def test_a_function_that_asked_may_read_a_resource(asker: Asker):
    asker.person.says = says({"Your name?": "Ann"})
    assert text(asker.result("reads")) == "Ann plain"


def test_what_the_client_offers_can_be_looked_up(asker: Asker):
    every = ["ask", "ask_url", "confirm", "choose", "sample", "roots"]
    assert items(asker.result("abilities")) == every


@pytest.mark.anyio
@pytest.mark.req("MCP-5.4", "MCP-5.5", "MCP-5.6", "MCP-5.6u")
@pytest.mark.parametrize("era", ERAS)
async def test_nothing_is_asked_of_an_official_client_that_offers_nothing(era: str):
    from mcp import MCPError

    needs = {
        "greet": {"elicitation": {}},
        "sign_in": {"elicitation": {"url": {}}},
        "poem": {"sampling": {}},
        "use_tools": {"sampling": {"tools": {}}},
        "places": {"roots": {}},
        "at_once": {"elicitation": {}},
        "at_once_anyio": {"elicitation": {}},
    }
    async with official_client(None, era) as client:
        for tool, capabilities in needs.items():
            if era == "handshake":
                result = await client.call_tool(tool)
                assert result.is_error
                assert result.content[0].text.startswith("this needs a client that offers")  # type: ignore[union-attr]
            else:
                with pytest.raises(MCPError) as caught:
                    await client.call_tool(tool)
                assert caught.value.error.code == -32021
                assert caught.value.error.data["requiredCapabilities"] == capabilities
        assert (await client.call_tool("abilities")).content[0].text == "[]"  # type: ignore[union-attr]
