"""What is drawn is what was recorded and measured, in the colours of the inspector."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from tests.rows import for_each_row

from . import terminal
from .charts import CHARTS, best, kept_results
from .pages import Pages
from .pictures import drawings, files, on_a_page
from .places import DOCS
from .terminal import COMMANDS, SECONDS, read_recording, read_screen, record, schedule, transcript
from .tokens import in_each_scheme, stylesheet, tokens

SPINNER = "\x1b[?25l\x1b[36m⠋\x1b[0m Asking\r\x1b[2K\x1b[36m⠙\x1b[0m Asking\r\n\x1b[?25h\r\x1b[1A\x1b[2K"


def test_the_pictures_are_up_to_date():
    stale = [path.name for path, text in files().items() if not path.exists() or path.read_text("utf-8") != text]
    assert stale == [], "run: python -m tests.site.pictures"


@for_each_row("name", [*drawings()])
def test_a_drawing_is_whole_and_says_what_it_shows(name: str):
    for text in in_each_scheme(drawings()[name]).values():
        root = ElementTree.fromstring(text)
        assert root.get("role") == "img" and len(root.get("aria-label") or "") > 20
        assert "var(" not in text and not re.search(r"(href|src)=|url\(|@import", text)


def test_the_colours_are_those_of_the_inspector():
    assert tokens("light")["accent"] != tokens("dark")["accent"]
    assert f"[data-md-color-scheme=slate]{{--bg:{tokens('dark')['bg']};" in stylesheet()
    assert in_each_scheme('<a fill="var(--bg)"/>') == {
        "": f'<a fill="{tokens("light")["bg"]}"/>',
        "-dark": f'<a fill="{tokens("dark")["bg"]}"/>',
    }


def test_a_page_of_the_site_has_the_drawing_itself_and_its_text_has_the_picture():
    pages = Pages()
    assert "](pictures/terminal.svg)" in pages.texts["index.md"]
    shown = on_a_page("terminal")
    assert "var(--surface)" in shown and "\n" not in shown.strip()
    assert "$ defserve list calc.py&#10;calculator" in shown


# -- the terminal ------------------------------------------------------------------------------------------------------


def test_a_terminal_shows_what_is_left_of_a_spinner():
    assert read_screen(f"{SPINNER}\x1b[1mTools\x1b[0m (1)\r\n\r\nend\r\n") == [
        [("Tools", "1"), (" (1)", "")],
        [],
        [("end", "")],
    ]


def test_a_terminal_says_what_it_does_not_know():
    with pytest.raises(ValueError, match=r"does not know '\\x1b\[2J'"):
        read_screen("\x1b[2Jgone")


def test_it_plays_for_eight_seconds_in_the_order_of_the_commands():
    steps = read_recording()
    moments = [moment for times in schedule(steps) for moment in (times.prompt, times.typed, times.printed)]
    assert moments == sorted(moments) and moments[-1] < SECONDS == 8
    assert [step["command"] for step in steps] == list(COMMANDS)


def test_who_wants_no_motion_sees_all_of_it():
    moving = re.search(r"@media \(prefers-reduced-motion:no-preference\)\{.*?\n\}", terminal.STYLE, re.DOTALL)
    assert moving and "animation" not in terminal.STYLE.replace(moving[0], "")


@pytest.mark.slow
def test_the_commands_still_print_what_was_recorded():
    assert transcript(record()) == transcript(read_recording()), "run: python -m tests.site.pictures --record"


# -- charts ------------------------------------------------------------------------------------------------------------


def test_the_faster_mode_of_the_others_counts():
    results = kept_results()
    chart = CHARTS["bench-session"]
    plain, in_json = (results.figure("http/session", name) for name in ("fastmcp", "fastmcp json"))
    assert plain and in_json and best(results, chart, "fastmcp") == max(plain.median, in_json.median)


def test_a_claim_is_what_the_bars_show():
    results = kept_results()
    chart = CHARTS["figure-calls"]
    times = best(results, chart, "defserve") / best(results, chart, "fastmcp")
    assert f">{times:.0f} × the calls<" in drawings()["figure-calls"]
    sooner = re.search(r">Ready (\d+) × sooner<", drawings()["figure-start"])
    assert sooner is not None
    first_words = (DOCS / "index.md").read_text()
    assert f"**It starts {sooner[1]} × sooner than FastMCP and answers {times:.0f} × the calls.**" in first_words
