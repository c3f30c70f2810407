"""What a person is asked on behalf of a mounted server: in our words, once, and with the name of who asks."""

from __future__ import annotations

from typing import Any

import pytest

from defserve import Server
from defserve.client import Accept, Answers
from defserve.protocols.mcp.errors import SERVER_ID_META_KEY
from defserve.proxying import boundary
from defserve.proxying.boundary import add_asker_to_question
from defserve.proxying.channel import QUESTION_CAPABILITIES
from defserve.proxying.targets import BackendSecrets
from tests.proxying.backends import ERA_PAIRS, child
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Person:
    """Says yes to everything, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def answer(self, message: str, schema: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(message)
        return {name: True if field["type"] == "boolean" else "eve" for name, field in schema["properties"].items()}

    def visit(self, message: str, url: str) -> Any:
        self.asked.append(message)
        return Accept

    def write(self, params: dict[str, Any]) -> str:
        self.asked.append(params["systemPrompt"])
        return "word"

    def connect(self, front: str, back: str) -> Any:
        server = Server("desk", granted=["shell.execute"])
        server.mount(child("guarded.py", version=back), prefix="e")
        answers = Answers(ask=self.answer, sample=self.write, ask_url=self.visit)
        return server.connect(front, answers=answers)


@pytest.mark.parametrize(("front", "back"), ERA_PAIRS)
async def test_a_mounted_server_asks_by_its_name_and_its_dangerous_calls_are_confirmed_once_in_our_words(
    front: str, back: str
) -> None:
    person = Person()
    async with person.connect(front, back) as client:
        assert await client.call("e_erase", folder="notes") == "erased notes"
        assert person.asked == ["Run e_erase of server 'e'?\n  folder: notes"]
        person.asked.clear()
        answers = [await client.call(tool) for tool in ("e_sure", "e_name", "e_written", "e_visited")]
    assert answers == ["done", "eve", "word", "visited"]
    assert [text.partition("asks")[0] for text in person.asked] == ["Server 'e' "] * 4


@for_each_row("method", [*QUESTION_CAPABILITIES, "something/new"])
def test_whatever_may_be_asked_names_its_server(method: str) -> None:
    named = add_asker_to_question("mail", method, {"message": "Type\u202e it", "_meta": {"x": 1}})
    assert named["_meta"] == {"x": 1, SERVER_ID_META_KEY: "mail"}
    if method == "elicitation/create":
        assert named["message"] == "Server 'mail' asks: Type it"


def test_pages_that_an_error_sends_a_person_to_name_their_server() -> None:
    pages = [{"mode": "url", "message": "Sign in again.", "url": "https://example.org/", "elicitationId": "1"}]
    told = boundary.make_relayed_error(
        "mail", {"code": -32042, "message": "no", "data": {"elicitations": pages}}, BackendSecrets()
    )
    assert told.data["elicitations"][0]["message"] == "Server 'mail' asks: Sign in again."
