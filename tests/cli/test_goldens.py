"""What commands draw is what was looked at: `python -m tests.cli.goldens` writes it again."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.goldens import DOCS, FOLDER, NAMES, RECORDING, documented, drawn, files
from tests.rows import for_each_row

ESCAPE = re.compile(r"\x1b\[[\d;]*m")


@for_each_row("name", NAMES)
def test_a_command_draws_what_was_looked_at(name: str):
    for path, drawing, width, colour in files():
        if drawing == name:
            assert drawn(name, width, colour=colour) == path.read_text(encoding="utf-8"), path.name


def test_every_golden_file_is_of_a_command():
    assert {path.name for path in FOLDER.glob("*.txt")} == {path.name for path, *_ in files()}


@for_each_row("path", sorted(FOLDER.glob("*-colour.txt")), ids=lambda path: path.stem)
def test_colours_change_no_character_and_no_line_is_too_wide(path: Path):
    text = path.read_text(encoding="utf-8")
    plain = path.with_name(path.name.replace("-colour", "")).read_text(encoding="utf-8")
    assert [line.rstrip() for line in ESCAPE.sub("", text).splitlines()] == plain.splitlines()
    assert "\x1b" not in plain
    width = int(path.stem.split("-")[-2])
    # JSON is not wrapped, so that it can be copied.
    assert all(len(line) <= width for line in plain.splitlines()) or path.stem.startswith("call-80")


def test_the_recordings_in_the_docs_are_the_golden_files():
    page = DOCS.read_text(encoding="utf-8")
    assert len(RECORDING.findall(page)) >= 10
    assert documented(page) == page
