"""Blocks: plain text in a pipe, drawn at a terminal."""

from __future__ import annotations

import builtins
import io
from collections.abc import Iterator
from typing import Any

import pytest

from defserve.cli.screen import (
    can_draw,
    format_help,
    format_note,
    format_problem,
    show_block_stream,
    show_input_prompt,
    show_stderr,
    show_stdout,
)
from defserve.cli.screen_blocks import DiffBlock, DocumentBlock, JsonBlock, ScreenBlock, StyledLine, Table
from tests.cli.goldens import Terminal
from tests.effort import cpu_within
from tests.rows import for_each_row

BLOCKS: list[ScreenBlock] = [
    StyledLine(("name", "title"), " and more"),
    Table(("A", "B"), [(("x", "good"), 1), ("yy", "z")]),
    JsonBlock({"a": [1, None, True, "ü"]}),
    JsonBlock({"a": 1}, compact=True),
    DiffBlock("--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y\n"),
    DocumentBlock("one\ntwo"),
    "three\nfour",
]
PLAIN = (
    'name and more\nA   B\nx   1\nyy  z\n{\n  "a": [\n    1,\n    null,\n    true,\n    "ü"\n  ]\n}\n{"a": 1}\n'
    "--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y\none\ntwo\nthree\nfour\n"
)


def test_a_pipe_gets_plain_text(capsys: pytest.CaptureFixture[str]):
    show_stdout(*BLOCKS)
    assert capsys.readouterr().out == PLAIN


def test_a_terminal_without_colours_gets_the_same_text(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    show_stdout(*BLOCKS)
    assert [line.rstrip() for line in terminal.getvalue().splitlines()] == PLAIN.splitlines()


def test_a_terminal_gets_colours(terminal: Terminal):
    show_stdout(*BLOCKS)
    text = terminal.getvalue()
    assert "\x1b[1;36mname\x1b[0m and more\n" in text
    assert "\x1b[31m-x\x1b[0m\n\x1b[32m+y\x1b[0m\n" in text


@pytest.mark.parametrize(("name", "value"), [("TERM", "dumb"), ("TERM", None)])
def test_a_dumb_terminal_gets_plain_text(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, name: str, value: str | None
):
    monkeypatch.setenv(name, value or "vt100")
    assert can_draw(terminal) is (value is None)


def test_what_is_no_terminal_is_drawn_only_if_forced(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert not can_draw(io.StringIO())
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert can_draw(io.StringIO())


def _absent(name: str) -> None:
    """`find_spec` of a Python without any package."""


def test_without_rich_everything_is_plain(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def no_rich(name: str, *args: Any) -> Any:
        if name.partition(".")[0] == "rich":
            raise ModuleNotFoundError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", no_rich)
    monkeypatch.setattr("defserve.cli.screen.find_spec", _absent)
    show_stdout(*BLOCKS)
    show_stderr(*format_problem("error", "x\n  fix: y"))
    show_input_prompt(StyledLine("? "))
    assert terminal.getvalue() == f"{PLAIN}error: x\n  fix: y\n? "


BAD = "\x1b[2J\x9b\u202e\x07\u2028x"


@pytest.mark.parametrize(
    "block",
    [
        StyledLine(BAD, (BAD, "title")),
        Table((" ",), [(BAD,), ((BAD, "good"),)]),
        JsonBlock({BAD: BAD}),
        DiffBlock(f"+{BAD}"),
        DocumentBlock(BAD),
        DocumentBlock(BAD, "text/markdown"),
        DocumentBlock(f'{{"a": "{BAD}"}}', "application/json"),
    ],
    ids=lambda block: type(block).__name__,
)
def test_nothing_that_is_drawn_moves_the_cursor(
    terminal: Terminal, block: ScreenBlock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("NO_COLOR", "1")
    show_stdout(block)
    # Markdown is drawn with bold and italics even so; those sequences end with "m".
    assert not set(terminal.getvalue()) & set("\x9b\u202e\x07\u2028")
    assert "\x1b[2J" not in terminal.getvalue()


def test_a_pipe_gets_what_others_wrote_as_it_is(capsys: pytest.CaptureFixture[str]):
    show_stdout(DocumentBlock("a\tb\x1b[0m"))
    assert capsys.readouterr().out == "a\tb\x1b[0m\n"


def test_markup_in_a_text_is_text(terminal: Terminal):
    show_stdout(StyledLine("[bold]x[/bold] :smile:"), DocumentBlock("[red]y[/red]"), Table(("[b]",), [("[i]z",)]))
    assert all(text in terminal.getvalue() for text in ("[bold]x[/bold] :smile:", "[red]y[/red]", "[b]", "[i]z"))


def test_a_long_line_hangs(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    show_stdout(StyledLine("  ", ("alpha", "title"), " beta gamma delta epsilon zeta eta theta", hang=4))
    assert terminal.getvalue() == "  alpha beta gamma delta epsilon zeta\n      eta theta\n"


def test_a_word_longer_than_the_line_is_broken(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    show_stdout(StyledLine(f"  {'x' * 100}", hang=2))
    assert terminal.getvalue().replace("\n", "").replace(" ", "") == "x" * 100
    assert all(len(line) <= 40 for line in terminal.getvalue().splitlines())


def test_a_table_gives_way_in_the_columns_that_may(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    show_stdout(Table(("ID", "NOTE"), [("one", "a note that is too long for one line of it")], fit=("NOTE",)))
    assert [line.rstrip() for line in terminal.getvalue().splitlines()] == [
        "ID   NOTE",
        "one  a note that is too long for one",
        "     line of it",
    ]


def test_a_note_without_room_stands_below(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    rows = [("i" * 20, "a note that is longer than what is left"), ("j", "")]
    show_stdout(Table(("ID", "NOTE"), rows, fit=("NOTE",)))
    assert [line.rstrip() for line in terminal.getvalue().splitlines()] == [
        "ID",
        "i" * 20,
        "    a note that is longer than what is",
        "    left",
        "j",
    ]


def test_rows_are_lists_where_a_column_in_the_middle_would_not_be_drawn(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("NO_COLOR", "1")
    rows = [("i" * 16, "may do many things, not only one", "60/min"), ("j", "", "")]
    show_stdout(Table(("id", "may", "rates"), rows, fit=("may",)))
    assert [line.rstrip() for line in terminal.getvalue().splitlines()] == [
        f"id     {'i' * 16}",
        "may    may do many things, not only one",
        "rates  60/min",
        "",
        "id     j",
        "may",
        "rates",
    ]


def test_help_is_styled_and_its_text_stays():
    text = (
        "usage: defserve x [-h]\n\nAbout.\n\noptions:\n  -h, --help   show this\n  --on ADDRESS\n               where\n"
    )
    lines = list(format_help(text.rstrip("\n")))
    assert "\n".join(lines) + "\n" == text
    assert lines[0].parts[0] == ("usage:", "heading")
    assert lines[5].parts[0] == ("  -h, --help", "option") and lines[5].hang == 13


@for_each_row("line", ["a" * 26, "a " * 10_000, "  -x" + " --a" * 5_000])
def test_help_is_read_in_no_time(line: str):
    assert cpu_within(1, lambda: list(format_help(line)))


def test_a_problem_has_its_fix_on_a_line_of_its_own():
    first, second = format_problem("error", "it\tbroke\n  fix: mend it")
    assert (first, second) == ("error: it  broke", "  fix: mend it")
    assert second.parts[1] == ("fix:", "fix")
    assert format_problem("note", "") == ["note: "]


def test_blocks_are_shown_as_they_come(capsys: pytest.CaptureFixture[str]):
    seen: list[str] = []

    def blocks() -> Iterator[str]:
        yield "one"
        seen.append(capsys.readouterr().out)
        yield "two"

    show_block_stream(blocks())
    assert seen == ["one\n"] and capsys.readouterr().out == "two\n"


def test_several_problems_stand_below_each_other_and_a_traceback_keeps_its_indents():
    assert format_problem("error", "a: missing\nb: expected integer\n  fix: give both") == [
        "error: a: missing",
        "       b: expected integer",
        "  fix: give both",
    ]
    assert format_problem("error", "it failed\nTraceback:\n  File x") == ["error: it failed", "Traceback:", "  File x"]


def test_what_is_said_of_an_example_is_wrapped_below_itself():
    (line,) = format_help("  defserve call server.py plot --output here  pictures are saved")
    assert line.hang == len("defserve call server.py plot --output here  ")


def test_a_note_at_the_start_of_a_server_is_wrapped_and_its_head_is_coloured():
    warning, below, fix = map(
        format_note, ("warning: no keys: none at all", "  would be refused: all", "  fix: make one")
    )
    assert (warning, below, fix) == (
        "  warning: no keys: none at all",
        "    would be refused: all",
        "    fix: make one",
    )
    styles = [part[1] for line in (warning, below, fix) for part in line.parts if isinstance(part, tuple)]
    assert styles == ["warning", "faint", "fix"] and warning.hang == 2
