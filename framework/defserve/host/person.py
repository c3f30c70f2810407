"""Yes-or-no questions that the host itself asks the person behind a client, through the client's `answers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from defserve.host.answers import Accept, Answers, Cancel, Decline, plain, settled
from defserve.host.fields import object_of


def form(name: str, field: Mapping[str, Any]) -> dict[str, Any]:
    """A form with one field."""
    return {"type": "object", "properties": {name: dict(field)}, "required": [name]}


def field_value(answer: Any, name: str) -> Any:
    """The answer: the field of that name, or else the only field, whatever its name; None if there is none."""
    given = object_of(plain(answer))
    return given[name] if name in given else next(iter(given.values())) if len(given) == 1 else None


async def agrees(answers: Answers, message: str, name: str) -> bool | None:
    """Whether the person says yes. None if nobody can be asked, or the person cancelled the question."""
    if answers.ask is None:
        return None
    answer = await settled(answers.ask(message, form(name, {"type": "boolean"})))
    if answer is Accept or answer is Decline:
        return answer is Accept
    return None if answer is Cancel else field_value(answer, name) is True
