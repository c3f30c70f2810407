"""A value for each call, and never another's."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import BaseModel, Field, field_validator

from defserve import Server, State
from defserve.client import Mcpl
from defserve.protocols.mcpl.state.states import StateValues
from defserve.stores.checkpoints.checkpoint_tree import CheckpointContent

pytestmark = pytest.mark.anyio


class Book(BaseModel):
    lines: dict[str, int] = {}
    title: str = ""

    @field_validator("title")
    @classmethod
    def stripped(cls, title: str) -> str:
        return title.strip()


def test_what_is_left_for_the_next_is_given_once():
    values, content = StateValues(Book, "books"), CheckpointContent.from_value({"lines": {"a": 1}, "title": ""})
    left = values.parse_value(content)
    values.store_value(content, left)
    first, _ = values.take_unshared_value(content)
    second, _ = values.take_unshared_value(content)
    assert first is left
    assert second is not left
    assert second == left


def test_a_value_comes_with_the_text_it_would_be_written_as():
    values = StateValues(Book, "books")
    for content in (None, CheckpointContent.from_value({"title": " x "}), CheckpointContent.from_value({"lines": {}})):
        for _ in range(2):
            value, text = values.take_unshared_value(content)
            assert text == values.dump(value)


def test_a_content_that_nobody_holds_is_forgotten():
    values = StateValues(Book, "books")
    content = CheckpointContent.from_value({"title": "x"})
    values.take_unshared_value(content)
    assert len(values._known) == 1
    del content
    assert len(values._known) == 0


def a_server(kept: list[Book]) -> Server:
    server = Server("books", "1")
    editing = server.feature_set("books.edit", "Edit")
    editing.state(Book)

    @editing.tool
    def write(line: str, book: State[Book]) -> list[str]:
        """Write a line."""
        book.lines[line] = len(book.lines)
        kept.append(book)
        return list(book.lines)

    @editing.tool
    def turn_over(book: State[Book]) -> list[str]:
        """Put the lines into another order, which is none in JSON."""
        book.lines = dict(reversed(book.lines.items()))
        return list(book.lines)

    return server


async def test_what_a_tool_keeps_of_its_value_does_not_reach_the_next_call():
    kept: list[Book] = []
    async with a_server(kept).connect(mcpl=Mcpl(state=None)) as host:
        for line in ("b", "a"):
            await host.call("write", line=line)
            kept[-1].lines.clear()
            kept[-1].title = "mine"
        assert await host.call("write", line="c") == ["a", "b", "c"]
        assert kept[-1].title == ""


async def test_another_order_of_names_is_no_change():
    async with a_server([]).connect(mcpl=Mcpl(state=None)) as host:
        for line in ("b", "a"):
            await host.call("write", line=line)
        at = host.mcpl.state("books.edit").checkpoint
        assert await host.call("turn_over") == ["b", "a"]
        assert host.mcpl.state("books.edit").checkpoint == at


class Noted(BaseModel):
    note: Annotated[str, Field(pattern="[ab]*a[ab]{900}c")] | None = None


def test_a_text_that_is_too_long_for_a_pattern_is_refused_unmatched():
    content = CheckpointContent.from_value({"note": "ab" * 50_000})
    with pytest.raises(ValueError, match="at most"):
        StateValues(Noted, "notes").parse_value(content)
