"""The inspector in a real browser: a server that crashes or does not start, calls that stay, and their results."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from defserve import Context, Server
from defserve.inspector.inspection import Inspection

from .accessibility import serious
from .inspecting import LOOKS, ROOT, inspector_in, inspector_process, open_at, target_of

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser

SERVER = '''
import os, sys
from defserve import Server

server = Server("fragile", "1")


@server.tool
def add(a: int = 1, b: int = 2) -> int:
    """Add."""
    return a + b


@server.tool
def leave(code: int = 3) -> None:
    """Leave at once."""
    print("the last word", file=sys.stderr, flush=True)
    os._exit(code)


@server.tool
def divide(by: int = 0) -> float:
    """Divide one."""
    return 1 / by
'''
EXITED = "document.querySelector('.banner')?.innerText"
CONNECTED = "document.querySelector('.foot')?.innerText.includes('Connected') && !document.querySelector('.banner')"
TABS = "document.querySelectorAll('.t-res .no-m [role=tab]').length"
MAX_TASK_MS = 50


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "fragile.py").write_text(SERVER)
    with inspector_process("fragile.py", cwd=tmp_path) as (address, _):
        yield address


def call(browser: Browser, tool: str, outcome: str) -> None:
    """Call a tool with what its form has, and wait for the outcome: Done or Failed."""
    browser.page(f"(location.hash = '#tools/{tool}', true)")
    assert browser.page(f"document.querySelector('.t-form .toolname')?.textContent === {tool!r}")
    before: int = browser.page(f"{TABS} + 1") - 1
    browser.key("Control+Enter")
    words = "document.querySelector('.t-res .progress b')?.textContent"
    assert browser.page(f"{TABS} === {min(before + 1, 20)} && {words} === {outcome!r}"), tool


def open_tools(browser: Browser, address: str) -> None:
    browser.look(1440, 900)
    browser.open(f"{address}#tools/add")
    assert browser.page(CONNECTED)


def test_a_crash_is_told_with_its_last_lines_and_the_server_started_again(browser: Browser, address: str):
    open_tools(browser, address)
    call(browser, "add", "Done")
    call(browser, "leave", "Failed")
    said: str = browser.page(EXITED)
    assert "fragile.py exited with 3." in said and "the last word" in said
    assert "fragile.py exited with 3" in browser.page("document.querySelector('.t-res .note').innerText")
    assert serious(browser) == []
    browser.press(".banner .btn.pri")
    assert browser.page(CONNECTED)
    call(browser, "add", "Done")
    assert browser.page(f"{TABS} === 3")
    assert browser.complaints() == []


@pytest.mark.slow
def test_the_banner_of_a_crash_fits_every_window(browser: Browser, address: str):
    open_tools(browser, address)
    call(browser, "leave", "Failed")
    for width, height, scheme in LOOKS:
        browser.look(width, height, scheme)
        browser.open("about:blank")
        browser.open(f"{address}#tools")
        assert browser.page(EXITED), width
        assert browser.page("document.documentElement.scrollWidth <= innerWidth"), width
        assert browser.page("document.querySelector('main').getBoundingClientRect().height > 200"), width
        assert serious(browser) == [], width


def test_a_command_that_crashes_says_how_it_ended_and_then_its_last_lines(browser: Browser, tmp_path: Path):
    (tmp_path / "fragile.py").write_text(f"{SERVER}\n\nserver.main()\n")
    with inspector_process("--", sys.executable, "fragile.py", cwd=tmp_path) as (address, _):
        open_tools(browser, address)
        call(browser, "leave", "Failed")
        said: str = browser.page(EXITED)
        assert "exited with code 3. What is on this page stays." in said and "the last word" in said


@pytest.mark.parametrize(("width", "height"), [(375, 780), (768, 900), (1440, 900)])
def test_a_banner_stands_above_the_panel_and_hides_no_button(browser: Browser, tmp_path: Path, width: int, height: int):
    (tmp_path / "fragile.py").write_text(SERVER)
    with inspector_process("fragile.py", cwd=tmp_path) as (address, process):
        open_tools(browser, address)
        browser.look(width, height)
        process.terminate()
        assert browser.page("document.querySelector('.banner')?.innerText.includes('went away')")
        box = "document.querySelector({!r}).getBoundingClientRect()"
        assert browser.page(f"{box.format('.top')}.bottom <= {box.format('.banner')}.top")
        assert browser.page(f"{box.format('.banner')}.bottom <= {box.format('main')}.top")
        assert browser.page("document.documentElement.scrollWidth <= innerWidth")


def test_an_error_that_nobody_foresaw_shows_its_traceback(browser: Browser, address: str):
    open_tools(browser, address)
    call(browser, "divide", "Failed")
    shown: str = browser.page("document.querySelector('.traceback')?.innerText")
    assert "ZeroDivisionError" in shown and "return 1 / by" in shown


def test_a_page_that_is_loaded_anew_has_the_calls_with_their_results(browser: Browser, address: str):
    open_tools(browser, address)
    call(browser, "add", "Done")
    call(browser, "divide", "Failed")
    browser.page("(location.reload(), true)")
    assert browser.page(f"{TABS} === 2")
    assert "ZeroDivisionError" in browser.page("document.querySelector('.traceback')?.innerText")
    # Choosing a tab selects its tool, and R repeats what is in view.
    tabs: str = browser.page(
        "[...document.querySelectorAll('.t-res .no-m [role=tab]')].map(e => e.innerText).join('|')"
    )
    assert "add · 3 · " in tabs and "divide · failed" in tabs
    browser.page("([...document.querySelectorAll('.t-res .no-m [role=tab]')].at(-1).click(), true)")
    assert browser.page("document.querySelector('.t-form .toolname')?.textContent === 'add'")
    assert browser.page("document.querySelector('.cmd code')?.textContent.includes(' add ')")
    browser.key("r")
    assert browser.page(
        f"{TABS} === 3 && document.querySelector('.t-res .calledwith').innerText.startsWith('add a=1 b=2')"
    )


@pytest.mark.slow
def test_a_server_that_crashes_fifty_times_leaves_the_page_usable(browser: Browser, address: str):
    open_tools(browser, address)
    for _ in range(50):
        call(browser, "leave", "Failed")
        assert "exited with 3" in browser.page(EXITED)
        browser.press(".banner .btn.pri")
        assert browser.page(CONNECTED)
    call(browser, "add", "Done")
    assert browser.page(f"{TABS} === 20")
    assert browser.complaints() == []


def test_ten_thousand_log_lines_of_one_call_do_not_block_the_page(browser: Browser):
    with inspector_process("examples/everything.py", cwd=ROOT) as (address, _):
        browser.look(1440, 900)
        browser.open(f"{address}#tools/count_to")
        assert browser.page("!!document.querySelector('#arg-last')")
        browser.page("(document.querySelector('#arg-last').focus(), true)")
        browser.type("10000")
        browser.trace()
        browser.key("Control+Enter")
        assert browser.page("document.querySelector('.t-res .progress b')?.textContent === 'Done'")
        done: dict[str, Any] = browser.traced()
        assert browser.page("document.querySelector('.t-res').innerText.includes('10,000 lines')")
        # As a person reads it, and no more of it than is in view.
        lines: str = browser.page("document.querySelector('.t-res .log').innerText")
        assert "count_to: counted number=" in lines and "{" not in lines
        assert browser.page("document.querySelectorAll('.logline').length") < 100
    assert max(done["scripts"]) < MAX_TASK_MS, sorted(done["scripts"])[-5:]


def talkative() -> Server:
    server = Server("talkative", "1")

    @server.tool
    async def clear(bed: str, ctx: Context) -> str:
        """Clear a bed, after a question."""
        answer = await ctx.ask("Clear it?", bool)
        return f"{bed}: {answer}"

    @server.tool
    def table(rows: int = 30) -> list[dict[str, int]]:
        """Rows."""
        return [{"row": number, "square": number * number} for number in range(rows)]

    assert clear and table
    return server


def test_yes_and_no_stand_beside_the_result(browser: Browser):
    with inspector_in(browser, target_of(talkative(), era="handshake")) as inspector:
        open_at(browser, inspector, "tools/clear")
        browser.page("(document.querySelector('#arg-bed').focus(), true)")
        browser.type("fern")
        browser.key("Control+Enter")
        words = "[...document.querySelectorAll('.t-res .note button')].map(each => each.innerText).join()"
        assert browser.page(f"document.querySelector('.t-res .note') && {words}") == "Yes,No,Other answers"
        assert browser.page("!document.querySelector('.toast .ok') && !!document.querySelector('.toast.asks')")
        apart = "each.right <= toast.left || each.left >= toast.right || each.top >= toast.bottom"
        buttons = "[...document.querySelectorAll('.main .bar .btn')].map(each => each.getBoundingClientRect())"
        toast = "document.querySelector('.toast.asks').getBoundingClientRect()"
        assert browser.page(f"(toast => {buttons}.every(each => {apart}))({toast})")
        browser.page("(document.querySelector('.t-res .note button').click(), true)")
        assert browser.page("document.querySelector('.t-res .body').innerText.includes('fern: True')")


def test_a_result_is_searched_folded_and_compared_with_the_one_before(browser: Browser):
    with inspector_in(browser, target_of(talkative())) as inspector:
        open_at(browser, inspector, "tools/table")
        call(browser, "table", "Done")
        browser.page("(document.querySelector('#arg-rows').focus(), true)")
        browser.key("Control+a")
        browser.type("31")
        call(browser, "table", "Done")
        assert "table · 31 rows · " in browser.page("document.querySelector('.t-res .no-m [role=tab]').innerText")
        browser.page(
            "([...document.querySelectorAll('.t-res .seg button')].find(e => e.innerText === 'JSON').click(), true)"
        )
        assert browser.page("!!document.querySelector('.jsontools input')")
        browser.page("(document.querySelector('.jsontools input').focus(), true)")
        browser.type("900")
        assert browser.page("document.querySelectorAll('.jl.hit').length === 1")
        assert serious(browser) == []
        browser.page("(document.querySelector('.comparebtn').click(), true)")
        sides = "[...document.querySelectorAll('.comparison p.mono')].map(each => each.innerText.trim()).join('|')"
        assert browser.page(f"document.querySelector('.comparison') && {sides}") == "rows=30|rows=31"
        assert browser.page("document.querySelectorAll('.comparison .jl.ins').length > 0")
        assert serious(browser) == []


def test_a_version_that_does_not_start_is_a_banner_with_file_and_line(browser: Browser):
    with inspector_in(browser, target_of(talkative())) as inspector:
        open_at(browser, inspector, "tools/table")

        async def report(inspection: Inspection) -> None:
            inspection.build.report_problem("calc.py:6", "SyntaxError: invalid syntax", ["def x(:"], is_serving=True)

        async def clear(inspection: Inspection) -> None:
            inspection.build.clear_problem()

        inspector.run(report)
        said: str = browser.page(EXITED)
        assert "calc.py:6: SyntaxError: invalid syntax" in said and "The old version is still serving." in said
        call(browser, "table", "Done")
        inspector.run(clear)
        assert browser.page("!document.querySelector('.banner')")
