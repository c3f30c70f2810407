"""The inspector at many widths of the window: nothing reaches over an edge. And what the first call looks like."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from defserve import Server, dangerous
from defserve.inspector.era_connection import InspectionTarget
from defserve.inspector.state_trees import make_state_finder
from defserve.serve.lifespans import connect_in_memory
from tests.effort import thinned
from tests.inspector.beds import greenhouse
from tests.inspector.lively import lively

from .inspecting import Calling, InspectorBeside, inspector_in, target_of
from .scenes import STAGES, show

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser

WIDTHS = (360, 719, 720, 1024, 1199, 1200, 1280, 1366, 1440, 1920)
PANELS = ("Wire", "State", "Security", "Latency", "Prompts", "Resources", "Apps", "Tasks", "Skills")
CALLED = "!document.querySelector('.t-res .spin') && document.querySelector('.t-res .progress b')?.textContent"
BUTTON = "document.querySelector('.t-form .bar .pri')?.innerText"
SETTLED = "!document.querySelector('main .loading')"
# Rows of controls, and the panes that hold them. What scrolls on purpose is a text, a table or a picture in them.
OVER = """[document.documentElement, ...document.querySelectorAll(
    '.main, .pane, .head, .bar, .cmd, .top, .tabs, .whead, .wrow')]
  .filter(each => each === document.documentElement || each.offsetParent)
  .filter(each => each.scrollWidth > each.clientWidth + 1)
  .map(each => `${each.className || each.tagName}: ${each.scrollWidth} > ${each.clientWidth}`).join('; ') || 'none'"""

# What is drawn of the parts of a row of controls, text that left its box included, does not lie on each other.
LAPPED = """[...document.querySelectorAll('.head, .bar')].filter(row => row.offsetParent).flatMap(row => {
  const drawn = [...row.children].filter(each => each.offsetParent && !each.matches('.vh')).map(each => {
    const range = document.createRange();
    range.selectNodeContents(each);
    const inside = each.matches('.cut, .in, select') ? each.getBoundingClientRect() : range.getBoundingClientRect();
    return [each.textContent.trim().slice(0, 20), inside];
  }).filter(([, box]) => box.width > 0);
  return drawn.flatMap(([one, a], at) => drawn.slice(at + 1)
    .filter(([, b]) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)
    .map(([other]) => `${one} on ${other}`));
}).join('; ') || 'none'"""


@pytest.fixture
def inspector(browser: Browser) -> Iterator[InspectorBeside]:
    server = greenhouse()

    @server.tool
    def break_down() -> str:
        """Fail in a way that nobody foresaw."""
        raise KeyError("pump")

    section = server.mcpl.state
    assert section is not None
    target = InspectionTarget(
        "beds.py",
        ("beds.py",),
        lambda: connect_in_memory(server.composition),
        stored=make_state_finder(section),
        tracebacks="The traceback is in the terminal.",
    )
    with inspector_in(browser, target) as running:
        running.call("add_bed", name="north")
        yield running


def opened(browser: Browser, inspector: InspectorBeside, tool: str, width: int = 1280) -> None:
    browser.look(width, 800)
    browser.open(f"{inspector.url}#tools/{tool}")
    assert browser.page(f"document.querySelector('.t-form .toolname')?.textContent === {tool!r}")


@pytest.mark.parametrize("width", thinned(WIDTHS, 5))
def test_nothing_reaches_over_an_edge(browser: Browser, inspector: InspectorBeside, width: int):
    opened(browser, inspector, "add_bed", width)
    assert browser.page(OVER) == "none"
    browser.key("Control+Enter")
    assert browser.page(CALLED) == "Failed"
    assert browser.page(OVER) == "none"
    found = dict[str, str]()
    for panel in PANELS:
        browser.page(f"(location.hash = '#{panel.lower()}') && true")
        assert browser.page(f"document.querySelector('main h1')?.textContent === {panel!r}"), panel
        assert browser.page(SETTLED)
        found[panel] = browser.page(OVER)
    assert found == dict.fromkeys(PANELS, "none")


# Names and tabs of a tool that are cut, by their texts.
SHORTENED = """[...document.querySelectorAll('.t-form .toolname, .t-form .tablist')]
  .filter(each => each.scrollWidth > each.clientWidth).map(each => each.textContent).join('; ') || 'none'"""
# Calls in the list of the slowest that reach over the edge, or stand on two lines.
SPILT = """[...document.querySelectorAll('.l-detail tr')].filter(row => row.getBoundingClientRect().height > 48
  || row.getBoundingClientRect().right > document.querySelector('.l-detail').getBoundingClientRect().right - 8)
  .map(row => row.innerText).join('; ') || 'none'"""


@pytest.mark.parametrize("width", [720, 768])
def test_in_a_small_window_a_tool_s_name_its_tabs_and_its_slowest_calls_are_whole(
    browser: Browser, inspector: InspectorBeside, width: int
):
    opened(browser, inspector, "add_bed", width)
    assert browser.page(SHORTENED) == "none"
    browser.page("(location.hash = '#latency') && true")
    assert browser.page("document.querySelectorAll('.l-detail tr').length > 0")
    if shots := os.environ.get("DEFSERVE_SHOTS"):
        browser.shot(Path(shots) / f"slowest-{width}.png")
    assert browser.page(SPILT) == "none"


def test_a_tool_without_arguments_is_called_from_the_list_and_from_its_search(
    browser: Browser, inspector: InspectorBeside
):
    opened(browser, inspector, "break_down")
    for place in ("[role=listbox]", "input"):
        browser.page(f"document.querySelector('.t-list {place}').focus() || true")
        browser.key("Control+Enter")
        assert browser.page(CALLED) == "Failed"
        browser.open("about:blank")
        opened(browser, inspector, "break_down")


@pytest.mark.slow
def test_in_the_live_panel_nothing_lies_on_its_neighbour(browser: Browser):
    with inspector_in(browser, target_of(lively())) as live:
        for width in (360, 720, 1024, 1200, 1300, 1440):
            browser.look(width, 800)
            browser.open("about:blank")
            browser.open(f"{live.url}#live")
            assert browser.page("!!document.querySelector('.v-feed .seg')"), width
            assert (browser.page(LAPPED), browser.page(OVER)) == ("none", "none"), width


@pytest.mark.slow
def test_panes_that_were_dragged_in_a_wide_window_fit_a_small_one(browser: Browser, inspector: InspectorBeside):
    opened(browser, inspector, "add_bed")
    browser.page("(localStorage.setItem('defserve.panes.tools', '[500, 900]'), true)")
    opened(browser, inspector, "add_bed")
    assert browser.page(OVER) == "none"
    assert browser.page("document.querySelector('.t-res').getBoundingClientRect().width >= 159")


def test_a_form_that_nobody_touched_is_called_and_not_called_anyway(browser: Browser, inspector: InspectorBeside):
    opened(browser, inspector, "add_bed")
    assert "anyway" not in browser.page(BUTTON)
    browser.key("Control+Enter")
    assert browser.page(CALLED) == "Failed"
    assert "Call anyway" in browser.page(BUTTON)


@pytest.mark.slow
def test_an_error_nobody_foresaw_has_one_id_and_says_where_its_traceback_is(
    browser: Browser, inspector: InspectorBeside
):
    opened(browser, inspector, "break_down")
    browser.key("Control+Enter")
    assert browser.page(CALLED) == "Failed"
    note = browser.page("document.querySelector('.t-res .note').innerText")
    assert note.count("id ") == 1
    assert "The traceback is in the terminal." in note


LONG = {"note": "n" * 300, "path": "/home/ann/" + "documents/" * 300 + "the-end"}
# Parts of a dialog with text that can neither be seen nor scrolled to.
HIDDEN = """[...document.querySelectorAll('[role=alertdialog] *:not(.vh)')]
  .filter(each => each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).display !== 'inline')
  .map(each => `${each.className || each.tagName}: ${each.scrollWidth} > ${each.clientWidth}`).join('; ') || 'none'"""
SCROLLED_TO_ITS_END = """(() => {
  const dialog = document.querySelector('[role=alertdialog]').getBoundingClientRect();
  const body = document.querySelector('[role=alertdialog] .dbody');
  body.scrollTop = body.scrollHeight;
  const last = [...body.querySelectorAll('.jl')].at(-1).getBoundingClientRect();
  return dialog.top >= 0 && dialog.bottom <= innerHeight && last.bottom <= body.getBoundingClientRect().bottom;
})()"""


@pytest.mark.parametrize("width", [390, 1280])
def test_a_person_can_read_every_argument_of_a_call_before_saying_yes(browser: Browser, width: int):
    server = Server("files")

    @server.tool
    @dangerous
    def copy(path: str, note: str) -> str:
        """Copy a file."""
        return path

    assert copy
    with inspector_in(browser, target_of(server, era="handshake")) as inspector:
        browser.look(width, 800)
        browser.open(f"{inspector.url}#tools")
        assert browser.page("!!document.querySelector('.t-list [role=option]')")
        asked = Calling(inspector, "copy", **LONG)
        text = browser.page("document.querySelector('[role=alertdialog] .json')?.textContent")
        assert all(f'"{each}"' in text for each in LONG.values())
        if shots := os.environ.get("DEFSERVE_SHOTS"):
            browser.shot(Path(shots) / f"yes-{width}.png")
        assert browser.page(HIDDEN) == "none"
        assert browser.page(SCROLLED_TO_ITS_END)
        browser.key("Escape")
        asked.result()


# Words of a table that are drawn on more than one line, by where their letters are.
BROKEN = """[...document.querySelectorAll('.t-res td .cell')].flatMap(cell => {
  const text = cell.firstChild, tops = word => {
    const range = document.createRange();
    range.setStart(text, word.index);
    range.setEnd(text, word.index + word[0].length);
    return new Set([...range.getClientRects()].map(each => Math.round(each.top))).size;
  };
  return [...text.data.matchAll(/\\S+/g)].filter(word => word[0].length < 40 && tops(word) > 1).map(word => word[0]);
}).join('; ') || 'none'"""
ROWS_IN_A_TABLE = "document.querySelectorAll('.t-res .scrolls tbody tr').length"  # not those of the waterfall
SCROLLS = """(() => {
  const box = document.querySelector('.t-res .scrolls');
  return box.scrollWidth > box.clientWidth && getComputedStyle(box).overflowX === 'auto';
})()"""


@pytest.mark.parametrize("width", [390, 1280])
def test_a_wide_table_scrolls_and_breaks_no_word_and_no_number(browser: Browser, width: int):
    server = Server("stock")

    @server.tool
    def stock() -> list[dict[str, str | float]]:
        """What is there."""
        words = {f"column{n}": "value " * n for n in range(1, 10)}
        return [
            {"sku": "A-100-b", "price": "3.10", "count": 12345.75, "date": "2026-11-17", "link": "x" * 500, **words}
        ]

    assert stock
    with inspector_in(browser, target_of(server)) as inspector:
        opened(browser, inspector, "stock", width)
        browser.key("Control+Enter")
        assert browser.page(f"{ROWS_IN_A_TABLE} === 1")
        if shots := os.environ.get("DEFSERVE_SHOTS"):
            browser.shot(Path(shots) / f"table-{width}.png")
        assert browser.page(BROKEN) == "none"
        assert browser.page(SCROLLS)
        assert browser.page(OVER) == "none"


@pytest.mark.parametrize("width", [375, 768, 1280])
def test_permissions_and_why_somebody_may_call_break_no_word(browser: Browser, tmp_path: Path, width: int):
    stage = STAGES["guarded"]
    broken = """(range => [...document.querySelectorAll('.perms .name, .whysteps > b')].filter(each => {
      range.selectNodeContents(each);
      return new Set([...range.getClientRects()].map(({ top }) => top)).size > 1;
    }).map(each => each.textContent).join() || 'none')(document.createRange())"""
    with stage.open(tmp_path) as url:
        show(browser, url, next(scene for scene in stage.scenes if scene.name == "why"), width, 900)
        assert browser.page(broken) == "none"
