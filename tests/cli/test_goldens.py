"""What commands draw is what was looked at: `python -m tests.cli.goldens` writes it again."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.goldens import DOCS, FOLDER, NAMES, RECORDING, documented, drawn, files
from tests.rows import for_each_row

ESCAPE = re.compile(r"\x1b\[[\d;]*m")


@for_each_row("name", NAMES)
def test_a_command_draws_what_was_looked_at(name: str):
    for path, drawing, variant in files():
        if drawing == name:
            assert drawn(name, variant) == path.read_text(encoding="utf-8"), path.name


def test_every_golden_file_is_of_a_command():
    assert {path.name for path in FOLDER.glob("*.txt")} == {path.name for path, *_ in files()}


@for_each_row("path", sorted(FOLDER.glob("*-colour.txt")), ids=lambda path: path.stem)
def test_colours_change_no_character_and_no_line_is_too_wide(path: Path):
    text = path.read_text(encoding="utf-8")
    plain = path.with_name(path.name.replace("-colour", "")).read_text(encoding="utf-8")
    assert [line.rstrip() for line in ESCAPE.sub("", text).splitlines()] == plain.splitlines()
    assert "\x1b" not in plain
    width = int(path.stem.split("-")[-2])
    # An address is not wrapped, so that it can be opened.
    assert all(len(line) <= width or "://" in line for line in plain.splitlines())


@for_each_row("path", sorted(FOLDER.glob("*-plain.txt")), ids=lambda path: path.stem)
def test_without_a_terminal_nothing_is_styled(path: Path):
    assert "\x1b" not in path.read_text(encoding="utf-8")


@for_each_row("page", DOCS, ids=lambda page: page.name)
def test_the_recordings_in_the_docs_are_the_golden_files(page: Path):
    text = page.read_text(encoding="utf-8")
    assert len(RECORDING.findall(text)) >= 3
    assert documented(text) == text
