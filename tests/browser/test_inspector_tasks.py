"""The Tasks panel of the inspector in a real browser."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from defserve import Server
from defserve.inspector.inspection import Inspection
from tests.inspector.workshop import workshop

from .accessibility import serious
from .inspecting import InspectorBeside, inspector_in, inspector_of, looks, open_at, target_of

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser

DETAIL = "document.querySelector('.t-res')?.innerText"
START = "document.querySelector('.t-form')?.innerText"
LIST = "document.querySelector('.t-list')?.innerText"
TOOL = "document.querySelector('#task-tool')"


class Bench:
    """The inspector, and the switch that lets slow tools go on. They wait until then."""

    def __init__(self, inspector: InspectorBeside, go_on: asyncio.Event) -> None:
        self.inspector, self._go_on = inspector, go_on

    def go_on(self) -> None:
        async def switch(_: Inspection) -> None:
            self._go_on.set()

        self.inspector.run(switch)


@pytest.fixture
def bench(browser: Browser) -> Iterator[Bench]:
    server, go_on = workshop()
    with inspector_in(browser, target_of(server), "data:") as beside:
        made = Bench(beside, go_on)
        yield made
        made.go_on()


def begin(browser: Browser, bench: Bench, era: str = "stateless") -> None:
    """Open the panel on no task, ready to start one."""
    open_at(browser, bench.inspector, "tasks/none", era, "document.querySelectorAll('#task-tool option').length > 3")


def choose(browser: Browser, tool: str) -> None:
    changed = f"{TOOL}.dispatchEvent(new Event('change', {{ bubbles: true }}))"
    browser.page(f"({TOOL}.value = {tool!r}, {changed}, {TOOL}.focus(), true)")
    assert browser.page(f"{TOOL}.value === {tool!r}")


def test_a_task_runs_tells_and_gives_its_result(browser: Browser, bench: Bench):
    begin(browser, bench)
    choose(browser, "rebuild")
    browser.key("Tab")
    browser.type("books")
    browser.key("Control+Enter")
    assert browser.page(f"{DETAIL}.includes('reading 1 of 4') && {DETAIL}.includes('the server tells each change')")
    assert browser.page(f"{DETAIL}.includes('60 m 0 s (ttl)') && {DETAIL}.includes('50 ms')")
    assert serious(browser) == []
    bench.go_on()
    assert browser.page(f"{DETAIL}.includes('412') && {DETAIL}.includes('Done') && {LIST}.includes('completed')")
    assert serious(browser) == []


def test_a_question_inside_of_a_task_is_answered_where_it_is(browser: Browser, bench: Bench):
    begin(browser, bench)
    choose(browser, "clean")
    browser.key("Control+Enter")
    assert browser.page(f"{DETAIL}.includes('Delete 12 documents?') && {LIST}.includes('asks you')")
    assert browser.page("document.querySelector('.nav[aria-current] .hot')?.innerText === '1'")
    assert serious(browser) == []
    browser.press(".question [role=switch], .question input[type=checkbox], .question .seg button")
    browser.press(".question .pri")
    assert browser.page(f"{DETAIL}.includes('12 deleted, because')")


@pytest.mark.slow
def test_a_task_is_cancelled_and_one_that_fails_says_why(browser: Browser, bench: Bench):
    begin(browser, bench)
    choose(browser, "clean")
    browser.key("Control+Enter")
    assert browser.page(f"{DETAIL}.includes('Delete 12 documents?')")
    browser.press(".t-res > .bar button")
    assert browser.page(f"{DETAIL}.includes('Cancelled') && !document.querySelector('.question')")
    choose(browser, "broken")
    browser.key("Control+Enter")
    assert browser.page(f"{DETAIL}.includes('the disk is full') && {DETAIL}.includes('-32005')")
    browser.press(".t-list .bar .sm")
    assert browser.page("!document.querySelector('.t-list [role=option]')")


@pytest.mark.slow
def test_in_a_session_it_is_a_plain_call_and_the_panel_says_so(browser: Browser, bench: Bench):
    begin(browser, bench, "handshake")
    assert browser.page(f"{START}.includes('Sessions have no tasks.')")
    choose(browser, "rebuild")
    browser.key("Tab")
    browser.type("books")
    browser.key("Control+Enter")
    assert browser.page(f"{DETAIL}.includes('reading 1 of 4') && {DETAIL}.includes('25 %')")
    assert browser.page(f"{DETAIL}.includes('A session has no tasks.')")
    bench.go_on()
    assert browser.page(f"{DETAIL}.includes('412')")


@pytest.mark.slow
def test_a_server_without_tasks_says_so(browser: Browser, bench: Bench):
    bare = Server("bare", "1")

    @bare.tool
    def hi() -> str:
        return "hi"

    assert hi
    with inspector_of(target_of(bare)) as other:
        browser.open(f"{other.url}#tasks")
        assert browser.page(f"{START}?.includes('This server has no tasks.') && {TOOL}")
        browser.key("Control+Enter")
        assert browser.page(f"{DETAIL}.includes('The server did not make it a task.') && {DETAIL}.includes('hi')")
        assert browser.complaints() == []
        browser.open("about:blank")


@pytest.mark.slow
def test_by_keys_alone_a_tool_is_started_and_followed_by_its_id(browser: Browser, bench: Bench):
    open_at(browser, bench.inspector, "tools")
    browser.go("j", f"!!{TOOL} && document.querySelector('main h1').textContent === 'Tasks'")
    browser.page(f"{TOOL}.focus() ?? true")
    browser.type("reb")
    assert browser.page(f"{TOOL}.value === 'rebuild'")
    browser.key("Tab")
    browser.type("maps")
    browser.key("Control+Enter")
    id = browser.page("document.querySelector('.t-res .kv code')?.textContent")
    assert id
    browser.page("document.querySelector('[aria-label=\"Id of a task\"]').focus() ?? true")
    browser.type(id)
    browser.key("Enter")
    assert browser.page(f"{DETAIL}.includes('a task of others')")
    bench.go_on()
    assert browser.page(f"{DETAIL}.includes('412') && {DETAIL}.includes('maps')")
    assert browser.page("document.querySelectorAll('.t-list .chip.ok').length === 2")
    browser.page("document.querySelector('.t-list [role=listbox]').focus() ?? true")
    browser.key("ArrowDown")
    assert browser.page("document.querySelector('.t-res .toolname').textContent === 'rebuild'")


@pytest.mark.pictures
@pytest.mark.slow
def test_it_fits_every_window_in_both_themes(browser: Browser, bench: Bench):
    async def start(inspection: Inspection) -> None:
        for tool, arguments in (("broken", {}), ("quick", {}), ("rebuild", {"index": "books"}), ("clean", {})):
            inspection.tasks.start("stateless", tool, arguments)

    async def over(inspection: Inspection) -> None:
        for each in inspection.tasks.to_wire():
            await inspection.tasks[each["task"]].cancel()

    bench.inspector.run(start)
    for look in looks(browser, f"{bench.inspector.url}#tasks", f"{LIST}?.includes('asks you')"):
        look.fits()
        browser.press(".t-list [role=option][id$='-0']")
        assert browser.page(f"{DETAIL}.includes('Delete 12 documents?') && {DETAIL}.includes('Steps')")
        look.is_fine()
        look.picture("tasks")
    bench.inspector.run(over)
