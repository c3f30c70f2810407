"""What was found at each step."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

State = Literal["ok", "missing", "broken"]


class Step(NamedTuple):
    """One thing that a client needs. `missing` stops some clients or some uses, `broken` stops all."""

    part: str
    name: str
    state: State
    about: str = ""
    fix: str = ""


def texts(value: Any) -> list[str]:
    """The texts in a field of a document that should hold a list of texts."""
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]
