"""Lists of objects as tables, and texts that are drawn as Markdown."""

from __future__ import annotations

import io
from typing import Any

import pytest

pytest.importorskip("rich")

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from defserve.cli.content import looks_like_markdown, render_value
from defserve.cli.screen import make_console
from defserve.cli.screen_blocks import JsonBlock, RecordsBlock, Table, is_tabular
from defserve.cli.screen_drawing import MAX_CELL_WIDTH, MAX_ROWS, draw_blocks, fit_columns
from tests.rows import for_each_row

PEOPLE = [{"name": "Ada", "age": 36, "city": "London"}, {"name": "山田太郎", "age": 41, "city": None}]


def drawn(value: Any, width: int = 80) -> list[str]:
    screen = io.StringIO()
    console = make_console(screen, width=width)
    draw_blocks(console, [render_value(value)])
    return [line.rstrip() for line in screen.getvalue().splitlines()]


@pytest.fixture(autouse=True)
def without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


def test_columns_line_up_though_some_characters_are_wide():
    head, ada, taro = (line.replace("\x1b[1m", "").replace("\x1b[0m", "") for line in drawn(PEOPLE))
    assert (head, ada, taro) == ("name      age  city", "Ada        36  London", "山田太郎   41  null")


def test_a_pipe_gets_json():
    assert list(RecordsBlock(PEOPLE)) == list(JsonBlock(PEOPLE))


@for_each_row(
    "value",
    [
        [],
        {},
        [1, 2],
        [{}],
        [{"a": 1}, 2],
        [{"a": {"b": 1}}],
        [{"a": [{"b": 1}]}],
        [{f"column {number}": number for number in range(13)}],
    ],
)
def test_what_a_table_would_not_show_whole_stays_json(value: Any):
    assert not is_tabular(value)


def test_a_long_cell_is_cut_and_the_last_line_says_so():
    lines = drawn([{"name": "Ada", "text": "x" * 500}])
    assert max(map(cell_len, lines)) <= 80 and "…" in lines[1] and "--json prints all" in lines[-1]


def test_many_rows_are_counted_and_not_drawn():
    lines = drawn([{"number": number} for number in range(MAX_ROWS + 5)])
    assert len(lines) == MAX_ROWS + 2 and lines[-1].endswith("5 rows more: --json prints all")


def test_a_terminal_too_narrow_for_columns_gets_a_list_for_each_row():
    rows = [{f"a long name {number}": "a long value" for number in range(6)}]
    lines = drawn(rows, 40)
    assert len(lines) == 6 and max(map(cell_len, lines)) <= 40
    assert all(line.endswith("a long value") for line in lines)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=12), st.integers(1, 200))
def test_columns_fit_into_the_room_or_are_not_drawn(natural: list[int], room: int):
    widths = fit_columns(natural, room)
    if widths is not None:
        assert sum(widths) + 2 * (len(widths) - 1) <= room
        assert all(1 <= width <= min(wish, MAX_CELL_WIDTH) for width, wish in zip(widths, natural, strict=True))


def test_a_cell_cannot_move_the_cursor():
    assert "\x1b[2J" not in "".join(drawn([{"name": "a\x1b[2Jb\u202ec\nd"}]))
    assert "\u202e" not in "".join(drawn([{"name": "a\u202eb"}]))


def test_a_plain_table_lines_up_though_some_characters_are_wide():
    assert list(Table(("NAME", "AGE"), [("山田", "41"), ("Ada", "36")])) == ["NAME  AGE", "山田  41", "Ada   36"]


@for_each_row(
    ("text", "is_markdown"),
    [
        ("# Title\n\nText", True),
        ("Text\n\n## Part\n\nMore", True),
        ("```\ncode\n```", True),
        ("| a | b |\n|---|---|\n| 1 | 2 |", True),
        ("- one\n- **two**", True),
        ("- one\n- two", False),
        ("# a comment\nx = 1\n# another\ny = 2", False),
        ("total ---- 5", False),
        ("a | b\nc | d", False),
        ("2 ** 3 ** 4", False),
        ("", False),
    ],
)
def test_only_what_is_clearly_markdown_is_drawn_as_such(text: str, is_markdown: bool):
    assert looks_like_markdown(text) is is_markdown


def test_markdown_is_drawn_without_its_marks():
    lines = drawn("# Title\n\nSome **bold** words.\n\n- one\n\n```\nx = 1\n```\n\n| a | b |\n|---|--:|\n| c | 10 |\n")
    text = "\n".join(lines).replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[2m", "")
    assert "**" not in text and "```" not in text and "|" not in text
    assert text.startswith("Title\n\nSome bold words.\n\n • one\n\n    x = 1\n")
    assert "─" in text and " 10" in text
