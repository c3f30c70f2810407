from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve.cli.answers.prepared import PreparedAnswers
from defserve.errors import UsageError

FORM: dict[str, Any] = {
    "properties": {
        "name": {"type": "string"},
        "size": {"enum": ["s", "m"], "default": "s"},
        "note": {"type": "string"},
    },
    "required": ["name", "size"],
}


def asked(answer: Any) -> Any:
    ask = PreparedAnswers([answer], yes=False).answers().ask
    assert ask is not None
    return asyncio.run(ask("Who?", FORM))  # type: ignore[arg-type]


def test_an_answer_without_a_field_that_is_needed_is_refused_with_the_option_to_write() -> None:
    with pytest.raises(UsageError, match="needs the field 'name'") as refused:
        asked({"note": "x"})
    assert "--answer" in refused.value.fix


def test_a_field_with_a_default_may_be_left_out_and_so_may_an_optional_one() -> None:
    assert asked({"name": "Ann"}) == {"name": "Ann"}
