"""The inspector and a server that wants to harm its page."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.effort import slow

from .inspecting import inspector_process

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser

READY = "document.querySelectorAll('[role=option]').length > 3"
PANELS = (
    ("tools", "apps", "resources", "prompts"),
    ("tasks", "skills", "questions", "wire", "latency", "state", "live", "security", "kernel", "topics"),
)
# Everything in a list is opened and run, one after the other.
EVERYTHING = """(async () => {
  const rest = () => new Promise(done => setTimeout(done, 60));
  const count = () => document.querySelectorAll("main [role=option]").length;
  for (let at = 0; at < Math.min(count(), 14); at++) {
    document.querySelectorAll("main [role=option]")[at].click();
    await rest();
    document.querySelector("main .t-form .bar .btn")?.click();
    await rest();
    for (const tab of document.querySelectorAll("main .t-form [role=tab]")) { tab.click(); await rest(); }
    if (/could not be (drawn|loaded)/.test(document.body.innerText)) return document.querySelector("main").innerText;
  }
  return "drawn";
})()"""
UNHARMED = "window.pwned === undefined && !document.querySelector('main script, main img[src=x]') && 'unharmed'"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with inspector_process("--", sys.executable, "tests/inspector/hostile.py") as (address, _):
        yield address


@pytest.mark.parametrize(
    "tool", ["markup", *map(slow, ("loops", "wrong", "types", "slow", "constructor", "many_1999"))]
)
def test_whatever_a_server_says_is_text_and_the_page_stays(browser: Browser, address: str, tool: str):
    browser.look(1440, 900)
    browser.open("about:blank")
    browser.open(f"{address}#tools/{tool}")
    assert browser.page(READY)
    assert browser.page(f"document.querySelector('.t-form .toolname')?.textContent === {tool!r}")
    for tab in ("JSON", "Definition", "Form"):
        tabs = "[...document.querySelectorAll('.t-form [role=tab]')]"
        browser.page(f"{tabs}.find(each => each.innerText === {tab!r}).click() || true")
        assert browser.page(UNHARMED) == "unharmed"
    browser.key("Control+Enter")
    assert browser.page("!!document.querySelector('.t-res .progress') && !document.querySelector('.t-res .spin')")
    assert browser.page(UNHARMED) == "unharmed"
    assert (
        browser.page(
            "[...document.querySelectorAll('main a')].every(each => /^https?:/.test(each.protocol)) && 'only web'"
        )
        == "only web"
    )
    # Nothing of it could not be drawn.
    assert browser.page("document.body.innerText.includes('could not be drawn') ? 'broken' : 'drawn'") == "drawn"
    browser.open("about:blank")


def test_names_that_every_object_has_are_names_as_any_other(browser: Browser, address: str):
    browser.look(1440, 900)
    native = "[...document.querySelectorAll('main input')].some(each => each.value.includes('native code'))"
    for name in ("__proto__", "constructor", "toString", "hasOwnProperty"):
        browser.open("about:blank")
        browser.open(f"{address}#prompts/{name}")
        assert browser.page(f"document.querySelector('.t-form .toolname')?.textContent === {name!r}")
        assert browser.page(f"{native} ? 'of the page' : 'empty'") == "empty"
        browser.key("Control+Enter")
        assert browser.page("document.querySelectorAll('.t-res .message').length === 4")
        assert browser.page("[...document.querySelectorAll('.who')].map(each => each.textContent).join()") == (
            "__proto__,constructor,toString,hasOwnProperty"
        )
        assert browser.page("document.body.innerText.includes('could not be drawn') ? 'broken' : 'drawn'") == "drawn"
    browser.open("about:blank")


@pytest.mark.slow
def test_of_very_many_tools_some_are_shown_and_all_are_found(browser: Browser, address: str):
    browser.look(1440, 900)
    browser.open(f"{address}#tools")
    assert browser.page(READY)
    assert browser.page("document.querySelectorAll('[role=option]').length <= 400")
    assert browser.page("document.querySelector('.t-list').innerText.includes('more. Search to find them.')")
    browser.key("/")
    browser.type("many_1999")
    assert browser.page("document.querySelectorAll('[role=option]').length === 1")
    browser.open("about:blank")


@pytest.mark.parametrize("number", [*map(slow, (1, 2, 3))])
def test_whatever_a_server_sends_in_place_of_what_it_should_every_panel_is_drawn(browser: Browser, number: int):
    with inspector_process("--", sys.executable, "tests/inspector/junk.py", str(number)) as (address, _):
        browser.look(1440, 900)
        browser.open(f"{address}#tools")
        assert browser.page(READY)
        for panel in PANELS[0]:
            assert browser.page(f"(location.hash = '#{panel}', true)")
            assert browser.page(f"document.querySelector('main.p-{panel} [role=option]') && 'listed'") == "listed"
            assert browser.page(EVERYTHING) == "drawn", panel
        for panel in PANELS[1]:
            assert browser.page(f"(location.hash = '#{panel}', true)")
            assert browser.page(f"document.querySelector('.side [aria-current=page]').hash.startsWith('#{panel}')")
            assert browser.page("!!document.querySelector('main h1')")
            assert browser.page(EVERYTHING) == "drawn", panel
        assert browser.page(UNHARMED) == "unharmed"
        assert browser.complaints() == []
        browser.open("about:blank")
