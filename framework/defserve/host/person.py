"""The person behind a client, asked by the host itself: yes or no, by the road the server's questions take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from defserve.host.answers import Accept, Answers, Cancel, Decline, settled


def form(name: str, field: Mapping[str, Any]) -> dict[str, Any]:
    """A form with one field."""
    return {"type": "object", "properties": {name: dict(field)}, "required": [name]}


def lone_value(answer: Any, name: str) -> Any:
    """What was filled in: the field by its name, or whatever it is called if it is the only one; else None."""
    dump = getattr(answer, "model_dump", None)
    content: Any = dump(mode="json") if dump else answer
    if not isinstance(content, dict):
        return None
    given: dict[str, Any] = content  # pyright: ignore[reportUnknownVariableType]
    return given[name] if name in given else next(iter(given.values())) if len(given) == 1 else None


async def agrees(answers: Answers, message: str, name: str) -> bool | None:
    """Whether a person says yes. None: nobody can be asked, or they put it off."""
    if answers.ask is None:
        return None
    answer = await settled(answers.ask(message, form(name, {"type": "boolean"})))
    if answer is Accept or answer is Decline:
        return answer is Accept
    return None if answer is Cancel else lone_value(answer, name) is True
