# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""Never run, only type-checked: a parameter `State[Model]` is a `Model`, and a state's handle knows its model."""

from __future__ import annotations

from typing import Annotated, Any, assert_type

from pydantic import BaseModel

from defserve import Server, State
from defserve.state import Checkpoint, States

server = Server("typing")
notes = server.feature_set("notes.edit", "Manage notes")


class Notebook(BaseModel):
    notes: list[str] = []


notebooks = notes.state(Notebook, keep=100, mode="data")
assert_type(notebooks, States[Notebook])
assert_type(server.state(Notebook, per="server"), States[Notebook])
server.state(Notebook, per="me")  # pyright: ignore[reportArgumentType]
notes.state(Notebook, mode="delta")  # pyright: ignore[reportArgumentType]


@notes.tool
def add(text: str, book: State[Notebook], other: Annotated[Notebook, notebooks]) -> int:
    assert_type(book, Notebook)
    assert_type(other, Notebook)
    book.nots.append(text)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    return len(book.notes)


@notes.on_rollback
async def undo(to: Checkpoint) -> None:
    assert_type(await notebooks.at(to), Notebook)
    assert_type(await notebooks.checkpoints(owner="local"), list[Checkpoint])
    assert_type(await notebooks.diff(to, to.id), list[dict[str, Any]])
