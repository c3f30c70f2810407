"""Where the time of a call went, in a real browser: its stages as a table with bars, in every window and theme."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from defserve.inspector.session_files import make_session_target, read_session_file

from .accessibility import serious
from .inspecting import FITS, Look, inspector_in, inspector_process

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser

SERVER = '''
import asyncio
from typing import Annotated
from defserve import Depends, Server, ToolError

server = Server("shop", "1")


async def read_settings():
    await asyncio.sleep(0.004)
    return {}


async def open_database(settings: Annotated[dict, Depends(read_settings)]):
    await asyncio.sleep(0.008)
    yield "db"
    await asyncio.sleep(0.005)


@server.around("tools/call")
async def count_calls(call, params, next):
    return await next(call, params)


@server.tool
async def find_orders(customer: str = "Ada", db: Annotated[str, Depends(open_database)] = "") -> list[str]:
    """Find orders."""
    await asyncio.sleep(0.03)
    return ["1", "2"]


@server.tool
async def pay(amount: int = 1, db: Annotated[str, Depends(open_database)] = "") -> str:
    """Pay."""
    raise ToolError("the card was refused")
'''
SIZES = ((390, 844), (1024, 768), (1440, 900))
ROWS = "[...document.querySelectorAll('.waterfall tbody tr')]"
STAGES = f"{ROWS}.map(each => each.querySelector('th').innerText.trim())"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "shop.py").write_text(SERVER)
    with inspector_process("shop.py", cwd=tmp_path) as (address, _):
        yield address


def call(browser: Browser, address: str, tool: str) -> None:
    """Call a tool with what its form has, and wait for its waterfall."""
    browser.look(1440, 900)
    browser.open(f"{address}#tools/{tool}")
    assert browser.page(f"document.querySelector('.t-form .toolname')?.textContent === {tool!r}")
    browser.key("Control+Enter")
    assert browser.page(f"{ROWS}.length > 3"), tool


def test_a_call_shows_its_stages_in_order_and_keeps_them(browser: Browser, address: str):
    call(browser, address, "find_orders")
    shown: list[str] = browser.page(STAGES)
    wanted = ["to the server", "count_calls", "arguments", "set-up: open_database", "read_settings", "find_orders"]
    wanted += ["tear-down: open_database", "packing the result", "writing the reply", "back from the server"]
    places = [next(at for at, title in enumerate(shown) if each in title) for each in wanted]
    assert places == sorted(places), shown
    # Set-up is inside nothing else of this kind; what it needs is inside it.
    indents = f"{ROWS}.map(each => parseFloat(each.querySelector('.stage')?.style.paddingLeft || 0))"
    indented: list[float] = browser.page(indents)
    assert indented[places[4]] > indented[places[3]] == indented[places[5]]
    browser.page("(location.reload(), true)")
    assert browser.page(f"{ROWS}.length > 3") and browser.page(STAGES) == shown
    assert browser.complaints() == []


def test_the_stage_that_failed_is_marked_in_red_and_in_words(browser: Browser, address: str):
    call(browser, address, "pay")
    failed: list[str] = browser.page(f"{ROWS}.filter(each => each.querySelector('rect.failed')).map(e => e.innerText)")
    assert len(failed) == 1 and "pay" in failed[0] and "failed" in failed[0]


def test_the_wire_shows_the_waterfall_of_a_call_too(browser: Browser, address: str):
    call(browser, address, "find_orders")
    shown: list[str] = browser.page(STAGES)
    browser.page("([...document.querySelectorAll('.t-res .bar button')].at(-1).click(), true)")
    assert browser.page("!!document.querySelector('.wrow .w-method')")
    browser.press(".wrow .w-method")
    tab = "[...document.querySelectorAll('.wdrawer [role=tab]')].find(each => each.innerText === 'Waterfall')"
    assert browser.page(f"(each => each && (each.click(), true))({tab})")
    assert browser.page(f"{ROWS}.length > 3") and browser.page(STAGES) == shown
    assert serious(browser) == []


def test_it_fits_every_window_and_theme_and_axe_finds_nothing(browser: Browser, address: str):
    call(browser, address, "find_orders")
    call(browser, address, "pay")
    for tool in ("find_orders", "pay"):
        for scheme in ("light", "dark"):
            for width, height in SIZES:
                browser.look(width, height, scheme)
                browser.open("about:blank")
                browser.open(f"{address}#tools/{tool}")
                if width < 720:
                    tab = "[...document.querySelectorAll('[role=tab]')].find(each => each.innerText.includes('Result'))"
                    assert browser.page(f"(each => each && (each.click(), true))({tab})")
                assert browser.page(f"{ROWS}.length > 3"), (width, scheme)
                assert browser.page("(document.querySelector('.waterfall').scrollIntoView({block: 'center'}), true)")
                assert browser.page(FITS), (width, scheme)
                inside = "document.querySelector('.waterfall').getBoundingClientRect().right <= innerWidth"
                assert browser.page(inside), (width, scheme)
                assert serious(browser) == [], (width, scheme)
                Look(browser, width, scheme).picture(f"waterfall-{tool}")


NASTY = "<img src=x onerror=alert(1)>"
STAGES_OF_FILE = (
    {"kind": "outside", "title": "to the server", "depth": 0, "start": 0, "ms": 1},
    {"kind": "function", "title": NASTY, "depth": 12, "start": 1, "ms": 6, "failed": True},
    {"kind": "function", "title": "beside it", "depth": 12, "start": 2, "ms": 6},
)
MESSAGE = {"time": 1_700_000_000, "era": "stateless", "size": 9, "method": "tools/call", "id": 1}
RECORDS: tuple[Any, ...] = (
    {"defsession": {"version": 1, "maker": "defserve", "time": 1_700_000_000, "address": "it.py", "words": ["it.py"]}},
    {
        "definitions": {
            "era": "stateless",
            "initialize": {
                "protocolVersion": "2026-07-28",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "it"},
            },
            "tools": [{"name": "add", "inputSchema": {"type": "object"}}],
        }
    },
    {
        "message": {
            **MESSAGE,
            "seq": 0,
            "direction": "sent",
            "kind": "request",
            "about": "add",
            "body": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": {}}},
            "ms": 10,
            "waterfall": {"ms": 10, "between": 2, "stages": STAGES_OF_FILE, "left_out": 3, "note": NASTY},
        }
    },
    {
        "message": {
            **MESSAGE,
            "seq": 1,
            "direction": "received",
            "kind": "answer",
            "of": 0,
            "ms": 10,
            "body": {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "3"}]}},
        }
    },
    {"end": True},
)


def test_a_session_file_of_a_stranger_shows_its_waterfall_as_text_and_calls_nothing(browser: Browser, tmp_path: Path):
    path = tmp_path / "it.defsession"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    session = read_session_file(path)
    try:
        with inspector_in(browser, make_session_target(session)) as inspector:
            browser.look(1440, 900)
            browser.open(f"{inspector.url}#tools/add")
            assert browser.page(f"{ROWS}.length === 4")
            shown: list[str] = browser.page(STAGES)
            assert any(NASTY in each for each in shown) and browser.page("!document.querySelector('.t-res img')")
            # Two stages at a time are drawn beside each other, and told so.
            assert browser.page("document.querySelector('.waterfall').textContent.includes('at the same time as <img')")
            assert "3 more stages" in browser.page("document.querySelector('.t-res').innerText")
            button = "[...document.querySelectorAll('.t-form .bar button')].find(each => /^Call/.test(each.innerText))"
            assert browser.page(f"{button}.disabled && {button}.title.includes('saved session')")
            browser.key("Control+Enter")
            browser.key("r")
            assert browser.page("document.querySelectorAll('.t-res .no-m [role=tab]').length === 1")
            assert serious(browser) == []
    finally:
        session.recorder.close()
