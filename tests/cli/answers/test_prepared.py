from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve.cli.terminal_answers import PreparedAnswers
from defserve.client.answers import maybe_await
from defserve.client.mgp.server_claims import parse_tool_security
from defserve.errors import UsageError
from tests.rows import for_each_row

FORM: dict[str, Any] = {
    "properties": {
        "name": {"type": "string"},
        "size": {"enum": ["s", "m"], "default": "s"},
        "note": {"type": "string"},
    },
    "required": ["name", "size"],
}


def asked(answer: Any) -> Any:
    ask = PreparedAnswers([answer], yes=False).make_client_answers().ask
    assert ask is not None
    return asyncio.run(ask("Who?", FORM))  # type: ignore[arg-type]


def test_an_answer_without_a_field_that_is_needed_is_refused_with_the_option_to_write() -> None:
    with pytest.raises(UsageError, match="needs the field 'name'") as refused:
        asked({"note": "x"})
    assert "--answer" in refused.value.fix


def test_a_field_with_a_default_may_be_left_out_and_so_may_an_optional_one() -> None:
    assert asked({"name": "Ann"}) == {"name": "Ann"}


YES_OR_NO: dict[str, Any] = {"properties": {"value": {"type": "boolean"}}, "required": ["value"]}


@for_each_row(
    ("asked", "is_answered"),
    [
        ("Run wipe?\n  disk: sda", True),
        ("Run wipe of server 'disks'?\n  disk: sda", True),
        ("Run wipe?\n  disk: /", False),
        ("Run wipe?", False),
        ("Run wipe?\n  disk: sda\n  and: /", False),
        ("Run wipe of server 'it's'?\n  disk: sda", False),
        ("Run wipe and more?\n  disk: sda", False),
    ],
)
def test_a_yes_answers_the_servers_question_only_if_it_says_the_same(asked: str, is_answered: bool) -> None:
    given = PreparedAnswers([True], yes=False)
    ask = given.make_client_answers().ask
    assert ask is not None
    tool = parse_tool_security(
        "wipe", {"name": "wipe", "security": {"risk_level": "dangerous", "confirmation_required": True}}
    )

    async def answer() -> Any:
        await given.confirm(tool, {"disk": "sda"})
        return await maybe_await(ask(asked, YES_OR_NO))

    if is_answered:
        assert asyncio.run(answer()) == {"value": True}
    else:
        with pytest.raises(UsageError, match="nobody can answer"):
            asyncio.run(answer())
