from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from defserve.client import Accept, Answers, Client, Decline, connect_url
from defserve.errors import ToolError
from tests.at_address import at_address, fresh

if TYPE_CHECKING:
    from .conftest import ConnectTo

pytestmark = pytest.mark.anyio


class Person:
    """Answers by what is asked, and remembers it."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.heard = list(answers), list[tuple[str, dict[str, Any]]]()

    def __call__(self, message: str, schema: dict[str, Any]) -> Any:
        self.heard.append((message, schema))
        answer = self.answers.pop(0)
        return {"value": answer} if isinstance(answer, str | int) else answer


async def test_a_choice_may_depend_on_the_one_before(connect_to: ConnectTo):
    person = Person("#0f0", "gloss")
    async with connect_to("asking", answers=Answers(ask=person)) as client:
        assert await client.call("paint") == "#0f0, gloss"
    (first, colours), (second, finishes) = person.heard
    assert (first, second) == ("Which colour?", "Which finish for #0f0?")
    labels = [{"const": "#f00", "title": "Red"}, {"const": "#0f0", "title": "Green"}]
    assert colours["properties"]["value"] == {"type": "string", "oneOf": labels}
    assert finishes["properties"]["value"] == {"type": "string", "enum": ["matt", "gloss"]}


async def test_an_effect_inside_once_happens_once_and_only_a_yes_confirms(connect_to: ConnectTo):
    person = Person(True, False, Decline)
    async with connect_to("asking", known=True, answers=Answers(ask=person)) as client:
        assert await client.call("order", item="tea") == "order 1 sent"
        assert await client.call("order", item="gin") == "order 2 dropped"
        assert await client.call("order", item="rum") == "order 3 dropped"
    assert [message for message, _ in person.heard] == [
        "Send order 1: tea?", "Send order 2: gin?", "Send order 3: rum?",
    ]  # fmt: skip


@pytest.mark.req("MCP-5.6")
async def test_a_declined_question_can_be_caught_or_told_to_the_model(connect_to: ConnectTo):
    async with connect_to("asking", answers=Answers(ask=Person("soup", Decline, Decline))) as client:
        assert await client.call("dine") == "serving soup"
        assert await client.call("dine") == "serving whatever there is"
        with pytest.raises(ToolError, match="the user declined: New name\\?"):
            await client.call("rename")


async def test_sync_code_waits_for_its_answer(connect_to: ConnectTo):
    async with connect_to("asking", answers=Answers(ask=Person("Bo"))) as client:
        assert await client.call("rename") == "now called Bo"


@pytest.mark.req("MCP-1")
async def test_clients_at_once_are_each_asked_their_own_question(version: str):
    async with at_address(fresh("asking")) as url:

        async def rename(name: str) -> None:
            person = Person(name)
            async with Client(await connect_url(url), version=version, answers=Answers(ask=person)) as client:
                assert await client.call("rename") == f"now called {name}"
            assert len(person.heard) == 1

        await asyncio.gather(*(rename(f"number {number}") for number in range(8)))


async def test_gathered_questions_get_their_own_answers(connect_to: ConnectTo):
    def answer(message: str, schema: dict[str, Any]) -> Any:
        return {"value": {"Your name?": "Ann", "Your age?": 7}[message]}

    async with connect_to("asking", answers=Answers(ask=answer)) as client:
        assert await client.call("introduce") == "Ann, 7"


@pytest.mark.req("MCP-5.6u")
async def test_a_person_is_sent_to_a_page_only_by_a_client_that_offers_it(connect_to: ConnectTo):
    opened: list[tuple[str, str]] = []

    def open_page(message: str, url: str) -> Any:
        opened.append((message, url))
        return Accept

    async with connect_to("asking", answers=Answers(ask_url=open_page)) as client:
        assert await client.call("abilities") == ["ask_url"]
        assert await client.call("sign_in") == "on their way"
    assert opened == [("Please sign in", "https://example.com/sign-in")]
