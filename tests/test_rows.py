"""Tables as one test: every row is run, and each that fails is named."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.rows import ROW_BY_ROW, for_each_row

pytestmark = pytest.mark.skipif(ROW_BY_ROW, reason="every row is a test of its own")

ROWS = [(1, "one"), (2, "two"), (3, "three")]


def notes(test: Any, **given: Any) -> list[list[str]]:
    with pytest.raises(ExceptionGroup) as failed:
        done = test(**given)
        if done is not None:
            asyncio.run(done)
    return [error.__notes__ for error in failed.value.exceptions]


def test_all_rows_are_run_and_each_that_fails_is_named():
    seen: list[str] = []

    @for_each_row("number, word", ROWS)
    def table(number: int, word: str) -> None:
        seen.append(word)
        assert number == 2

    assert notes(table) == [["row: number=1, word='one'"], ["row: number=3, word='three'"]]
    assert seen == ["one", "two", "three"]


def test_a_row_that_raises_nothing_where_it_should_is_a_failure():
    @for_each_row("number", [1, 0])
    def table(number: int) -> None:
        with pytest.raises(ZeroDivisionError):
            assert 1 / number

    assert notes(table) == [["row: number=1"]]


def test_rows_of_a_coroutine_are_run_as_well():
    @for_each_row(["number", "word"], ROWS)
    async def table(number: int, word: str) -> None:
        await asyncio.sleep(0)
        assert len(word) == 3

    assert notes(table) == [["row: number=3, word='three'"]]


def test_of_a_long_table_a_share_is_run():
    seen: list[int] = []

    @for_each_row("number", range(10), every=4)
    def table(number: int) -> None:
        seen.append(number)

    for share in range(4):
        table(share=share)
    assert seen == [0, 4, 8, 1, 5, 9, 2, 6, 3, 7]
    (mark,) = table.pytestmark
    assert [getattr(share, "marks", ()) != () for share in mark.args[1]] == [False, True, True, True]
